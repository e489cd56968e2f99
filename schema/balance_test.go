package schema_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const takeSQL = `
	INSERT INTO weir_balance AS b (name, key, shard, value, ts, capacity, rate, period, origin)
	VALUES ($1, $2, 0, $3, clock_timestamp(), 10, 10, 1000000, NULL)
	ON CONFLICT (name, key, shard) DO UPDATE SET value = b.value - 1, ts = greatest(b.ts, excluded.ts)
	RETURNING value`

func TestBalanceRefusesWhatWouldBeGrantedForEverOrCannotBeIndexed(t *testing.T) {
	t.Parallel()
	pool := migrated(t)

	type row struct {
		name, key             string
		value, capacity, rate float64
		ts                    pgtype.Timestamptz
		period                int64
		origin, pausedUntil   pgtype.Timestamptz
	}
	now := pgtype.Timestamptz{Time: time.Now(), Valid: true}
	for _, test := range []struct {
		name   string
		change func(*row)
	}{
		{"a plain row", func(*row) {}},
		{"debt", func(r *row) { r.value = -1 << 53 }},
		{"tombstone", func(r *row) { r.value = math.Inf(-1) }},
		{"window", func(r *row) { r.origin = now }},
		{"paused", func(r *row) { r.pausedUntil = now }},
		{"no capacity", func(r *row) { r.value, r.capacity = 0, 0 }},
		{"no key", func(r *row) { r.key = "" }},
		{"longest name", func(r *row) { r.name = strings.Repeat("n", 255) }},
		{"longest key", func(r *row) { r.key = strings.Repeat("k", 1024) }},
		{"longest key that does not compress", func(r *row) { r.key = noise(1024) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := row{name: test.name, key: "k", value: 1, capacity: 10, rate: 10, ts: now, period: 1_000_000}
			test.change(&r)
			const sql = `
				INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period, origin, paused_until)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
			_, err := pool.Exec(t.Context(), sql, r.name, r.key, r.value, r.ts, r.capacity, r.rate,
				r.period, r.origin, r.pausedUntil)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Ten versions on a full page, in one transaction so that none of them can be pruned: each must
// find room beside the last, and no index may care.
func TestUpdatesOfABalanceAreHOT(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	exec(t, pool, `
		INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'login', 'user ' || i, 10, clock_timestamp(), 10, 10, 1000000 FROM generate_series(1, 1000) AS i`)

	tx := begin(t, pool, pgx.ReadCommitted)
	const updates = 10
	for range updates {
		exec(t, tx, takeSQL, "login", "user 7", 9)
	}
	const sql = `SELECT n_tup_upd || ' updates, HOT ' || n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'weir_balance'::regclass`
	if got, want := scan[string](t, tx, sql), "10 updates, HOT 10"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
