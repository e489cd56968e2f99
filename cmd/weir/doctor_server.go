package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/schema"
)

// server looks at the settings that a connection of this role gets.
func (p *patient) server(ctx context.Context) error {
	settings := map[string]string{}
	err := p.read(ctx, func(tx pgx.Tx) error {
		var name, value string
		rows, err := tx.Query(ctx,
			`SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('server_version', 'server_version_num', 'server_encoding', 'fsync',
				'synchronous_commit', 'autovacuum', 'track_counts', 'default_transaction_isolation', 'default_transaction_read_only', '`+
				recoverInterval+`')
			UNION ALL SELECT 'recovery', pg_catalog.pg_is_in_recovery()::text`)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
			settings[name] = value
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	if !p.citus {
		delete(settings, recoverInterval)
	}
	p.settings(settings)
	return nil
}

// recoverInterval is how often a node of Citus looks for transactions that a killed node has left
// prepared, in milliseconds. It never looks if that is not above 0.
const recoverInterval = "citus.recover_2pc_interval"

// longRecovery is more than callers should wait for the rows of such a transaction.
const longRecovery = 10 * time.Second

// settings judges what the server is set to.
func (p *patient) settings(s map[string]string) {
	if n, err := strconv.Atoi(s["server_version_num"]); err == nil && n < 140000 {
		p.find(wrong, "Upgrade Postgres: Weir is tested on 14 and later.", "this is Postgres %s",
			s["server_version"])
	}
	if s["recovery"] == "true" {
		p.find(wrong, "Connect to the primary.",
			"this is a standby, on which no limit can be taken")
	}
	if s["default_transaction_read_only"] == "on" {
		p.find(wrong, "SET default_transaction_read_only = off for the role or the database.",
			"transactions are read-only by default, and a limit is taken by writing")
	}
	if level := s["default_transaction_isolation"]; level != "read committed" {
		p.find(note,
			"Let programs take in limiter.InTx, which runs such a transaction again; or ALTER ROLE ... SET "+
				"default_transaction_isolation = 'read committed'.",
			"default_transaction_isolation is %q: transactions that programs begin themselves fail with 40001 when they meet another "+
				"on the same key", level)
	}
	if s["fsync"] == "off" {
		p.find(wrong, "Set fsync = on, except on a server that you will throw away.",
			"fsync is off: a crash of the machine may ruin the database, and its limits with it")
	}
	if s["synchronous_commit"] == "off" {
		p.find(note, "Set synchronous_commit = on where that matters.",
			"synchronous_commit is off: a crash of the server gives back "+
				"the tokens of its last moments")
	}
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s[name] == "off" {
			p.find(wrong, "Set "+name+" = on.",
				"%s is off: nothing removes the old versions of rows, and each take leaves one",
				name)
		}
	}
	if s["server_encoding"] != "UTF8" {
		p.find(note, "Use keys of ASCII, or a database of encoding UTF8.",
			"the encoding is %s: a key with other characters is an error",
			s["server_encoding"])
	}
	if ms, err := strconv.Atoi(s[recoverInterval]); err == nil {
		p.recovery(time.Duration(ms) * time.Millisecond)
	}
}

// recovery judges for how long rows stay locked after a node of the cluster was killed.
func (p *patient) recovery(every time.Duration) {
	looks := "does every " + lasting(every)
	switch {
	case every <= 0:
		looks = "never does"
	case every <= longRecovery:
		return
	}
	p.find(note,
		"On each node: ALTER SYSTEM SET "+recoverInterval+" = '5s', then SELECT pg_reload_conf().",
		"after a node was killed, rows that it was writing stay locked until Citus looks for them, "+
			"which it %s (%s)",
		looks, recoverInterval)
}

// pooler finds out whether the server that answers is the one that was connected to.
func (p *patient) pooler(ctx context.Context) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.Conn().PgConn().PID() {
		p.find(note,
			"Set max_prepared_statements in PgBouncer 1.21 or later; or let programs use pgx.QueryExecModeExec "+
				"(default_query_exec_mode=exec in the URL).",
			"there is a pooler in between: in transaction mode, statements that pgx has prepared are missing in the next transaction")
	}
	return nil
}

// clock compares the clock of this machine with that of the database, which is the one that
// decides.
func (p *patient) clock(ctx context.Context) error {
	var off, within time.Duration
	for i := range 3 {
		var at time.Time
		from := p.e.now()
		if err := p.pool.QueryRow(ctx, `SELECT pg_catalog.clock_timestamp()`).
			Scan(&at); err != nil {
			return err
		}
		to := p.e.now()
		if took := to.Sub(from); i == 0 || took/2 < within {
			within, off = took/2, at.Sub(from.Add(took/2))
		}
	}
	how, apart := "ahead of", off
	if off < 0 {
		how, apart = "behind", -off
	}
	if apart -= within; apart < time.Second {
		return nil
	}
	l := note
	if apart > 30*time.Second {
		l = wrong
	}
	p.find(l,
		"Keep both machines' clocks right with NTP. Only the database's clock decides limits; programs should wait for "+
			"Result.RetryAfter, and not compare RetryAt with their own clock.",
		"the database's clock is %s %s that of this machine", lasting(off.Abs()), how)
	return nil
}

// versions looks at the migrations.
func (p *patient) versions(ctx context.Context) error {
	if p.schema == "" {
		p.find(wrong, `Run "weir migrate", or say with --schema where the tables are.`, "%v",
			p.notMigrated(ctx))
		return nil
	}
	in := schema.In(p.schema)
	if err := schema.Check(ctx, p.pool, in); err != nil {
		switch {
		case errors.Is(err, schema.ErrNotMigrated):
			p.find(wrong, `Run "weir migrate".`, "%v", err)
		case errors.Is(err, schema.ErrIncompatible):
			p.find(wrong, "Upgrade the programs, and this one, to a later release of Weir.", "%v",
				err)
		default:
			return err
		}
		return nil
	}
	var versions []int
	if err := p.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(
			ctx, `SELECT version FROM `+p.table("weir_schema")+` ORDER BY version`,
		)
		if err != nil {
			return err
		}
		versions, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	}); err != nil {
		return err
	}
	for i, v := range versions {
		if v != i+1 {
			p.find(wrong,
				"Apply the missing migration by hand, from package schema's Files, or restore weir_schema.",
				"the migrations that were applied are %v: version %d is missing", versions, i+1)
			return nil
		}
	}
	switch newest := len(versions); {
	case newest < schema.Newest:
		p.find(note, `Run "weir migrate".`, "the schema is at version %d, and there is %d", newest,
			schema.Newest)
	case newest > schema.Newest:
		p.find(note, "Install a later weir.",
			"the schema is at version %d, which this command works on but does not know", newest)
	default:
		p.find(fine, "", "%s", fmt.Sprintf("schema %q is at version %d", p.schema, newest))
	}
	return nil
}
