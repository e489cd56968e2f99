package statements

import (
	"strconv"

	"github.com/weir-go/weir/internal/limits/where"
)

// isShadow tells the rows of shadows, which everything locks last.
func isShadow(name string) string {
	return `pg_catalog.right(` + name + `, ` + strconv.Itoa(len(where.Shadowed)) + `) = '` + where.Shadowed + `'`
}

// resetKey is reset for all balances of a key. There are few names of limits, and it finds each
// with one descent of the index. It locks rows in the order in which all calls lock theirs, also
// those of former layouts: nobody changes the layout while it has them.
//
// Locks: the rows. Predicate reads: those, and the index pages at which the names begin.
//
// $1 key $2 a full balance $3 clock
func (n names) resetKey() string {
	return `WITH RECURSIVE names (name) AS (
	(SELECT name FROM ` + n.balance + ` ORDER BY name LIMIT 1)
	UNION ALL
	SELECT (SELECT b.name FROM ` + n.balance +
		` b WHERE b.name > n.name ORDER BY b.name LIMIT 1) FROM names n WHERE n.name IS NOT NULL
), held AS MATERIALIZED (
	SELECT b.name, b.shard FROM names n JOIN ` + n.balance +
		` b ON b.name = n.name AND b.key = $1::text AND b.shard >= 0
	ORDER BY ` + isShadow(`b.name`) + `, b.name, b.shard FOR NO KEY UPDATE OF b
)
UPDATE ` + n.balance + ` b SET value = $2::float8, ts = coalesce($3::timestamptz, clock_timestamp())
FROM held WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard AND b.value > '-Infinity'
RETURNING true`
}

// resetKeyHere is resetKey for distributed engines, on which the node with the rows of a key cannot
// find all names of limits. It reads all rows of that node, or of the part of the table that
// contains the key.
//
// Parameters as above
func (n names) resetKeyHere() string {
	return `WITH c AS MATERIALIZED (
	SELECT coalesce($3::timestamptz, clock_timestamp()) AS now
), held AS MATERIALIZED (
	SELECT name, shard FROM ` + n.balance +
		` WHERE key = $1::text AND shard >= 0
	ORDER BY ` + isShadow(`name`) + `, name, shard FOR NO KEY UPDATE
)
UPDATE ` + n.balance + ` b SET value = $2::float8, ts = c.now
FROM held, c WHERE b.name = held.name AND b.key = $1::text AND b.shard = held.shard AND b.value > '-Infinity'
RETURNING true`
}
