package statements

// Statements that prune on engines that can lock rows of only one key at a time. A page is read
// without locks. Then statements for each key look again, and delete. They skip rows that others
// have locked, and delete the same rows as prune.go.

// page reads the next $4 balances after ($1, $2, $3), and whether each is idle.
//
// $1 name $2 key $3 shard $4 batch $5 clock $6 see prune
func (n names) page() string {
	return `SELECT b.name, b.key, b.shard, ` + isIdle(`$6`) + `
FROM ` + n.balance + ` b CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
WHERE (b.name, b.key, b.shard) > ($1::text, $2::text, $3::integer)
ORDER BY b.name, b.key, b.shard LIMIT $4::bigint`
}

// lockKey locks the rows of a key that nobody else has locked, and says which are idle.
//
// Locks: those. Predicate reads: at READ COMMITTED none.
//
// $1 name $2 key $3 clock $4 see prune
func (n names) lockKey() string {
	return `SELECT b.shard, b.value = '-Infinity', ` + isIdle(`$4`) + `
FROM ` + n.balance + ` b CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS clock) c
WHERE b.name = $1::text AND b.key = $2::text FOR UPDATE OF b SKIP LOCKED`
}

func (n names) countKey() string {
	return `SELECT count(*) FROM ` + n.balance + ` WHERE name = $1::text AND key = $2::text`
}

// $1 name $2 key $3 shards
func (n names) deleteRows() string {
	return `DELETE FROM ` + n.balance +
		` WHERE name = $1::text AND key = $2::text AND shard = ANY ($3::integer[])`
}

// $1 name $2 key $3 slot $4 batch $5 clock
func (n names) pageSlots() string {
	return `SELECT s.name, s.key, s.slot, ` + isForgotten + `, c.clock
FROM ` + n.slot + ` s CROSS JOIN (SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock) c
WHERE (s.name, s.key, s.slot) > ($1::text, $2::text, $3::integer)
ORDER BY s.name, s.key, s.slot LIMIT $4::bigint`
}

// Locks: the row. It may wait for a caller that takes the slot, and then finds it held.
//
// $1 name $2 key $3 slot $4 the clock by which it was read
func (n names) deleteSlot() string {
	return `DELETE FROM ` + n.slot + `
WHERE name = $1::text AND key = $2::text AND slot = $3::integer AND until <= $4::timestamptz`
}

// $1 id, after which $2 batch $3 clock
func (n names) pageSettled() string {
	return `SELECT id, key, until <= coalesce($3::timestamptz, statement_timestamp())
FROM ` + n.settled + ` WHERE id > $1::uuid ORDER BY id LIMIT $2::bigint`
}

// $1 id $2 key
func (n names) deleteSettled() string {
	return `DELETE FROM ` + n.settled + ` WHERE id = $1::uuid AND key = $2::text`
}
