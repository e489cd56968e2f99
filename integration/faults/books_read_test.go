package faults

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// books reads all there is, in one snapshot.
func (f *fixture) books(t testing.TB) *books {
	t.Helper()
	b := &books{balances: map[account]float64{}, ahead: map[account]float64{},
		letGo: map[account]float64{}, unsure: map[account]bool{}, shards: map[account]int{}}
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead,
			AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			var e entry
			var value, ahead float64
			var shards, changes int // changes: since it has shards
			writtenDown := map[account]int{}
			if err := each(ctx, tx, `SELECT limit_name, key, sum(tokens), count(*) FROM let_go
				GROUP BY limit_name, key`, []any{&e.Account.Limit, &e.Account.Key, &value, &changes}, func() {
				b.letGo[e.Account], writtenDown[e.Account] = value, changes
			}); err != nil {
				return err
			}
			if err := each(ctx, tx, `SELECT name, key, sum(least(value, capacity)) FILTER (WHERE shard >= 0),
				coalesce(sum(rate * CASE WHEN origin IS NULL
					THEN extract(epoch FROM paused_until - ts)::float8 * 1e6 / period
					ELSE floor(extract(epoch FROM paused_until - origin)::float8 * 1e6 / period)
						- floor(extract(epoch FROM ts - origin)::float8 * 1e6 / period) END)
					FILTER (WHERE shard >= 0 AND paused_until > ts), 0),
				coalesce(max(value::bigint % 2048) FILTER (WHERE shard = -1), 1),
				coalesce(max(value::bigint / 2048 - 1) FILTER (WHERE shard = -1), 0)
				FROM weir_balance WHERE value > '-Infinity' GROUP BY name, key HAVING max(shard) >= 0`,
				[]any{&e.Account.Limit, &e.Account.Key, &value, &ahead, &shards, &changes}, func() {
					b.balances[e.Account], b.shards[e.Account] = value, shards
					b.unsure[e.Account] = changes != writtenDown[e.Account]
					if ahead > tolerance { // not that of a pause of some milliseconds
						b.ahead[e.Account] = ahead
					}
				}); err != nil { // of all shards together
				return err
			}
			columns := []any{&e.id, &e.Account.Limit, &e.Account.Key, &e.Tokens}
			if err := each(ctx, tx, `SELECT id, limit_name, key, tokens FROM work`, columns, func() {
				b.works = append(b.works, e)
			}); err != nil {
				return err
			}
			var r reservation
			columns = []any{&r.id, &r.Account.Limit, &r.Account.Key, &r.Tokens, &r.runAt, &r.job}
			if err := each(ctx, tx, `SELECT id, limit_name, key, tokens, run_at, job FROM reservation`,
				columns, func() {
					b.reservations = append(b.reservations, r)
				}); err != nil {
				return err
			}
			var j job
			return each(ctx, tx, `SELECT id, args->>'id', scheduled_at FROM river_job`,
				[]any{&j.number, &j.id, &j.due}, func() {
					b.jobs = append(b.jobs, j)
				})
		})
	})
	return b
}

func each(ctx context.Context, tx pgx.Tx, sql string, columns []any, add func()) error {
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, columns, func() error { add(); return nil })
	return err
}
