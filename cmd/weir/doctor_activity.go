package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// transactions finds what keeps vacuum from removing the old versions of rows, which each take of
// the same key then walks past.
func (p *patient) transactions(ctx context.Context) error {
	const long = `SELECT pg_catalog.format('process %s of role %s (%s), %s for %s s', pid, usename, coalesce(nullif(application_name, ''), 'no application_name'), state,
			round(date_part('epoch', pg_catalog.clock_timestamp() - xact_start)))
		FROM pg_catalog.pg_stat_activity
		WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_catalog.pg_backend_pid() AND (datname = pg_catalog.current_database() OR datname IS NULL)
			AND xact_start < pg_catalog.clock_timestamp() - $1::bigint::float8 * interval '1 microsecond' AND backend_type <> 'autovacuum worker'
		ORDER BY xact_start LIMIT 5`
	found, err := p.lines(ctx, long, p.long.Microseconds())
	if err != nil {
		return err
	}
	for i := range found {
		found[i] = printable(found[i])
	}
	const fix = "End them, if necessary with pg_terminate_backend(pid), and set idle_in_transaction_session_timeout; run reports on a standby."
	if len(found) > 0 {
		p.find(wrong, fix,
			"transactions that are open for more than %s hold back vacuum, and the keys that they took from are "+
				"locked: %s", lasting(p.long), strings.Join(found, "; "))
	}
	const prepared = `SELECT quote_literal(gid) FROM pg_catalog.pg_prepared_xacts
		WHERE database = pg_catalog.current_database() AND prepared < pg_catalog.clock_timestamp() - $1::bigint::float8 * interval '1 microsecond' ORDER BY prepared LIMIT 5`
	if found, err = p.lines(ctx, prepared, p.long.Microseconds()); err != nil {
		return err
	}
	for i := range found {
		found[i] = printable(found[i])
	}
	if len(found) > 0 {
		p.find(wrong, "COMMIT PREPARED or ROLLBACK PREPARED them.",
			"prepared transactions hold back vacuum: %s", strings.Join(found,
				", "))
	}
	// A slot remembers the snapshot of a standby with hot_standby_feedback also while that is away.
	const slots = `SELECT pg_catalog.format('%L, %s transactions ago', slot_name, pg_catalog.age(xmin)) FROM pg_catalog.pg_replication_slots
		WHERE xmin IS NOT NULL AND NOT active ORDER BY pg_catalog.age(xmin) DESC LIMIT 5`
	if found, err = p.lines(ctx, slots); err != nil {
		return err
	}
	if len(found) > 0 {
		p.find(wrong,
			"Start the standby again; or, if it is gone, SELECT pg_drop_replication_slot(name).",
			"replication slots that nobody reads hold back vacuum: %s", strings.Join(found, "; "))
	}
	const hidden = `SELECT count(*)::text FROM pg_catalog.pg_stat_activity WHERE query = '<insufficient privilege>'`
	if found, err = p.lines(ctx, hidden); err != nil {
		return err
	}
	if found[0] != "0" {
		p.find(note, "GRANT pg_read_all_stats to the role that runs this.",
			"%s sessions of other roles are not visible", found[0])
	}
	return nil
}

// deadRows finds what vacuum has left.
func (p *patient) deadRows(ctx context.Context) error {
	var live, dead, pages int64
	balance := p.table("weir_balance")
	if err := p.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx,
			`SELECT n_live_tup, n_dead_tup, pg_catalog.pg_relation_size(relid) / current_setting('block_size')::bigint
			FROM pg_catalog.pg_stat_all_tables WHERE relid = $1::regclass::oid`, balance).
			Scan(&live, &dead, &pages)
	}); err != nil {
		return err
	}
	if dead > 10_000 && dead > 5*live {
		p.find(wrong,
			"Fix what the checks transactions and storage have found; then VACUUM "+balance+".",
			"weir_balance has %s dead rows beside %s live ones: each look at a key walks past those of that key",
			number(float64(dead)),
			number(float64(live)))
		return nil
	}
	const rowsOfAPage = 35 // of 200 bytes, which is a long key
	if expected := 50 + live/rowsOfAPage; pages > 1000 && pages > 8*expected {
		p.find(note,
			"VACUUM FULL "+balance+" while no program takes, or use pg_repack; then see what the check storage finds.",
			"weir_balance has %s pages, of which its %s rows need about %s: it was larger once",
			number(float64(pages)),
			number(float64(live)), number(float64(expected)))
	}
	return nil
}

// hotKey is a row that transactions wait for.
type hotKey struct {
	name, key string
	sharded   bool
}

// samples are how often it is watched who waits for whom.
const samples = 10

// hotKeys watches who waits for whom.
func (p *patient) hotKeys(ctx context.Context) error {
	// Who waits for a row waits for the end of the transaction that has changed it last.
	const waiting = `SELECT w.transactionid::text FROM pg_catalog.pg_locks w WHERE w.locktype = 'transactionid' AND NOT w.granted AND EXISTS (
		SELECT FROM pg_catalog.pg_locks h WHERE h.pid = w.pid AND h.granted AND h.relation = $1::regclass::oid
			AND h.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))`
	// Above READ COMMITTED they queue for the advisory lock of the row, whose upper 16 bits are
	// 0x5765.
	const queueing = `SELECT w.pid::text FROM pg_catalog.pg_locks w
		WHERE w.locktype = 'advisory' AND NOT w.granted AND w.objsubid = 1 AND w.classid::bigint >> 16 = x'5765'::bigint
			AND w.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
			AND EXISTS (SELECT FROM pg_catalog.pg_locks h JOIN pg_catalog.pg_locks r ON r.pid = h.pid
				WHERE h.locktype = 'advisory' AND h.granted AND h.objsubid = 1 AND h.database = w.database
					AND h.classid = w.classid AND h.objid = w.objid AND r.granted AND r.relation = $1::regclass::oid AND r.database = w.database)`
	waits, waited, queued := map[hotKey]int{}, 0, 0
	for i := range samples {
		if i > 0 {
			select {
			case <-time.After(p.sample / samples):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		xids, err := p.lines(ctx, waiting, p.table("weir_balance"))
		if err != nil {
			return err
		}
		waited += len(xids)
		if len(xids) > 1 {
			if err := p.heldBy(ctx, xids, waits); err != nil {
				return err
			}
		}
		lines, err := p.lines(ctx, queueing, p.table("weir_balance"))
		if err != nil {
			return err
		}
		queued += len(lines)
	}
	named := false
	for k, n := range waits {
		if n < 2*samples {
			continue
		}
		named = true
		want := "Define it with ratelimit.Shards(%d)"
		if k.sharded {
			want = "Define it with more shards, such as Shards(%d)"
		}
		of := printable(k.name)
		if k.key != "" {
			of += " of " + printable(k.key)
		}
		p.find(note,
			fmt.Sprintf(want+", twice as many as transactions that take at the same time; or take later in the transaction. "+
				"See docs/shards.md.", 2*(n/samples+1)),
			"on average %d transactions wait for one that has taken from %s", n/samples, of)
	}
	if waited >= 2*samples && !named {
		p.find(note,
			"Find the limits that all callers share, and give them shards (docs/shards.md). Take later in long transactions.",
			"on average %d transactions wait for rows of weir_balance", waited/samples)
	}
	if queued >= 2*samples {
		p.find(note,
			"Find the limits that all callers share, and give them shards (docs/shards.md); or take at READ COMMITTED, where no caller has to "+
				"run again.",
			"on average %d transactions queue for keys on which they failed to serialize",
			queued/samples)
	}
	return nil
}

// heldSQL reads the whole table, unless it is large: Postgres answers a subquery that depends on no
// row before it reads one.
//
// $1 transactions $2 the table $3 pages
const heldSQL = `SELECT xmax::text, name, key, shard > 0 FROM {table} WHERE xmax::text = ANY($1::text[])
	AND (SELECT pg_catalog.pg_relation_size($2::regclass)) < $3::bigint * current_setting('block_size')::bigint LIMIT 1000`

// heldBy adds to waits the rows that transactions have changed for which others wait.
func (p *patient) heldBy(ctx context.Context, xids []string, waits map[hotKey]int) error {
	const mostPages = 20_000
	of := map[string]int{}
	for _, xid := range xids {
		of[xid]++
	}
	balance := p.table("weir_balance")
	return p.read(ctx, func(tx pgx.Tx) error {
		var xid string
		var k hotKey
		rows, err := tx.Query(ctx, strings.ReplaceAll(heldSQL, "{table}", balance), xids, balance,
			mostPages)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&xid, &k.name, &k.key, &k.sharded}, func() error {
			waits[k] += of[xid]
			return nil
		})
		return err
	})
}
