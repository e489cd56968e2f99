package inspect

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/pgerr"
	"github.com/weir-go/weir/shard"
)

// These statements are for Citus. It spreads the rows of a limit over nodes by their key, and
// cannot run a recursive query over all of them. They are sent if the engine refuses those of the
// other files.
const (
	// $1 the name before
	nextNameSQL = `SELECT min(name) FROM {table} WHERE name > $1::text`

	// Its parameters are those of keysSQL, except $5: here this is the prefix of reserved keys,
	// under which limits without keys store their shards. Such a limit is found by its head row.
	someKeysSQL = `SELECT DISTINCT key COLLATE "C" AS key FROM {table}
WHERE name = $1::text AND key COLLATE "C" >= $2::text AND starts_with(key, $3::text) AND NOT starts_with(key, $5::text)
ORDER BY key LIMIT $4::bigint`

	// rowsSQL reads all rows of keys, also those of former layouts, and the heads.
	//
	// $1 name $2 keys $3 clock $4 the prefix of reserved keys
	rowsSQL = `WITH b AS MATERIALIZED (
	SELECT CASE WHEN starts_with(key, $4::text) THEN '' ELSE key COLLATE "C" END AS key,
		shard, value, ts, capacity, rate, period, origin, paused_until
	FROM {table} WHERE name = $1::text AND key = ANY ($2::text[])
)
SELECT b.key, c.clock, coalesce(h.value, 1::float8), b.shard, b.value, b.ts, b.capacity, b.rate, b.period, b.origin, b.paused_until
FROM b CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS clock) c
LEFT JOIN b h ON h.key = b.key AND h.shard = -1
ORDER BY b.key COLLATE "C", b.shard`
)

// isUnsupported reports whether the engine does not support a statement. Its transaction has failed
// then.
func isUnsupported(err error) bool {
	return pgerr.State(err) == "0A000" // feature_not_supported
}

// namesOneByOne returns the same names as namesSQL, with a round trip for each.
func (r *Reader) namesOneByOne(ctx context.Context, tx pgx.Tx) (names []string, err error) {
	last := ""
	for len(names) < mostLimits {
		var name *string
		if err := tx.QueryRow(ctx, r.sql(nextNameSQL), last).Scan(&name); err != nil ||
			name == nil {
			return names, err
		}
		last = *name
		names = append(names, last)
	}
	return names, nil
}

// rowsOfKeys returns rows as keysSQL does.
func (r *Reader) rowsOfKeys(
	ctx context.Context, tx pgx.Tx, name, from, prefix string, most int,
) (pgx.Rows, error) {
	// CollectRows returns the error of Query, too
	rows, _ := tx.Query(ctx, r.sql(someKeysSQL), name, from, prefix, most, shard.Reserved)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	if slices.Contains(keys, "") {
		for nr := range shard.Homes {
			keys = append(keys, shard.Home(nr))
		}
	}
	now := r.now()
	if now == nil { // otherwise rowsSQL would read the clock of some node
		var at time.Time
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
			return nil, err
		}
		now = at
	}
	return tx.Query(ctx, r.sql(rowsSQL), name, keys, now, shard.Reserved)
}
