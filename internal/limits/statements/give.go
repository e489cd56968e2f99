package statements

// give is Give of package algebra, for the $7 tokens of a take. The statement may have read the
// clock before it waited for the row. That is harmless: the clock is only used to give back less.
//
// A closed row holds no tokens, and stays as it is: the tokens are then given back to the rows of
// the present layout, and its line is moved by charge.
//
// $10 a full balance $11 tokens used $12 whether to move the line; for a window, the row as the
// take left it: $13 its time $14 what it owed $15 its delay $16 its moved
func (n names) give(k kind) string { return n.giveIf(k, "") }

// giveShard is give for a shard. It also tries the shard's advisory lock, when it has the row, so
// that takes prefer other shards until the transaction ends. It does not matter whether another
// transaction has that lock.
//
// Last comes the advisory lock: $13, or $17 for a window.
func (n names) giveShard(k kind) string {
	return n.giveIf(k, n.tryLock(asked(k).choose(`$13`, `$17`)+`::integer`)+` IS NOT NULL AND `)
}

func (n names) giveIf(k kind, condition string) string {
	unused := unused(asked(k))
	// Not above the capacity, and not lower if a larger rule has filled it higher.
	given := `greatest(b.value, least(b.capacity, b.value + ` + unused + `))`
	return n.upsert(row(absent(`$10::float8`)), condition+unused+` > 0::float8`,
		`value = `+given,
		`moved = CASE WHEN NOT $12::boolean OR b.value >= 0::float8 OR `+isClosed+` THEN b.moved
		ELSE coalesce(b.moved, 0) + (-b.value - greatest(0, -`+given+`)) END`)
}

// unused is what can be given back of the $7 tokens of a take, of which $11 were used.
//
// For a bucket that is the rest. For a window the tokens are gone once the row is in a later
// window. Charges put off only takes that wait, so they change nothing in that. A take that was
// granted ahead owed the tokens of several windows: the first window repays the oldest part of the
// debt, and so on. Of such a take, what the row's window and later windows were to repay can be
// given back. If work waits in the row, the later one of the row's window and the clock's window
// counts: otherwise that work would get those tokens in the clock's window, on top of its own.
// Pauses delay windows, too. A pause by the windows of another rule may not be a whole number of
// this take's windows: the incomplete one is not given back.
func unused(r rule) string {
	later := `(` +
		r.window(
			`greatest(b.ts, b.paused_until, CASE WHEN b.value < 0::float8 THEN excluded.ts END)`,
		) +
		` -
		` + r.window(`$13::timestamptz`) + ` -
		` + r.windowOf(`(coalesce(b.delay, 0) - $15::bigint)::float8`) + `)`
	return r.choose(`($7::float8 - $11::float8)`,
		`(CASE WHEN `+later+` <= 0::float8 THEN $7::float8
		WHEN $14::float8 <= 0::float8 THEN 0::float8
		ELSE least($7, $14::float8 - (coalesce(b.moved, 0) - $16::float8) - $5::float8 * (`+later+` - 1::float8)) END - $11::float8)`)
}

// charge is Charge of package algebra, for $7 tokens. A number below 0 moves up the line of a
// closed row.
func (n names) charge() string { return n.chargeIf("") }

// chargeShard is charge for a shard. It also tries the shard's advisory lock, like giveShard: $10.
func (n names) chargeShard() string {
	return n.chargeIf(n.tryLock(`$10::integer`) + ` IS NOT NULL`)
}

func (n names) chargeIf(condition string) string {
	refilled := stored.refilled(`excluded.ts`)
	return n.upsert(row(absent(`$4::float8 - $7::float8`)), condition,
		`value = `+refilled+` - $7::float8`,
		tsForward, pauseOver,
		`moved = CASE WHEN `+isClosed+` THEN coalesce(b.moved, 0) - least(0, $7::float8)
		ELSE coalesce(b.moved, 0) - (greatest(0, $7::float8 - `+refilled+`) - greatest(0, -`+refilled+`)) END`)
}

// settle answers with a row if it is the first to settle a reservation, and the time is before
// until. Otherwise it answers with none.
//
// Locks: the row; it waits for a concurrent transaction that settles the same reservation.
// Predicate reads: none.
//
// $1 id $2 until $3 clock $4 key
func (n names) settle() string {
	return `INSERT INTO ` + n.settled + ` (id, until, key)
SELECT $1::uuid, $2::timestamptz, $4::text WHERE $2::timestamptz > coalesce($3::timestamptz, clock_timestamp())
ON CONFLICT (id, key) DO NOTHING
RETURNING true`
}

// reset fills a balance with $7, whatever the rule. It is the only statement that may move ts back:
// that repairs a row that a wrong clock has put far into the future. A pause continues. A closed row
// keeps what it says of the work that waits in it.
func (n names) reset() string {
	return n.upsert(row(absent(`$7::float8`)), "",
		`value = CASE WHEN `+isClosed+` THEN b.value ELSE $7 END`,
		unlessClosed("ts", "capacity", "rate", "period", "origin"))
}
