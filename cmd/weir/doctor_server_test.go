package main

import (
	"encoding/binary"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

// spoiled is a server of the test's own, on which things may be wrong.
func spoiled(t *testing.T, opts ...pgserver.Option) (*pgserver.Server, *pgxpool.Pool) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("the server that DATABASE_URL names is not spoiled on purpose")
	}
	return pgtest.Own(t, opts...)
}

func TestTheDoctorFindsWhatIsWrongWithAServer(t *testing.T) {
	t.Parallel()
	server, _ := spoiled(t, pgserver.Setting("fsync", "off"), pgserver.Setting("autovacuum", "off"),
		pgserver.Setting("track_counts", "off"))
	at := func(database string) string {
		u, err := url.Parse(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/" + database
		return u.String()
	}
	on := func(url string, do func(pool *pgxpool.Pool)) {
		t.Helper()
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		do(pool)
	}
	// wants holds the findings of the server against the starts of what is to be found, and no
	// other check may find anything.
	wants := func(url string, starts ...string) {
		t.Helper()
		r := weirAs(t, nil, same, "doctor", "--json", "--sample", "30ms", "--database", url)
		var all report
		r.json(t, &all)
		if r.code != exitFailed || all.Healthy {
			t.Errorf("status %d, of %+v", r.code, all)
		}
		found := slices.DeleteFunc(all.Findings, func(f finding) bool { return f.Level == fine })
		for _, f := range found {
			if f.Check != "server" || f.Fix == "" || !slices.ContainsFunc(starts, func(s string) bool {
				return strings.HasPrefix(f.Found, s)
			}) {
				t.Errorf("%+v", f)
			}
		}
		if len(found) != len(starts) {
			t.Errorf("%d findings, want %d: %+v", len(found), len(starts), found)
		}
	}
	off := []string{"fsync is off", "autovacuum is off", "track_counts is off"}

	on(server.URL(), func(pool *pgxpool.Pool) {
		exec(t, pool, `CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0`)
		if err := schema.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	})
	wants(server.URL(), off...)

	on(at("latin"), func(pool *pgxpool.Pool) {
		if err := schema.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	})
	wants(at("latin"), append(off, "the encoding is LATIN1")...)

	var dir string
	on(server.URL(), func(pool *pgxpool.Pool) {
		if err := pool.QueryRow(t.Context(), `SHOW data_directory`).Scan(&dir); err != nil {
			t.Fatal(err)
		}
	})
	if err := server.Shutdown("fast"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // for the server's user
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	wants(server.URL(), append(off, "this is a standby")...)
	on(server.URL(), func(pool *pgxpool.Pool) { // it is one
		if _, err := pool.Exec(t.Context(), `DELETE FROM weir_balance`); err == nil {
			t.Error("a standby was written to")
		}
	})
}

// feedback is what a standby with hot_standby_feedback says: that it needs what xid sees. Then it
// goes away.
func feedback(t *testing.T, url, slot string, xid uint32) {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	system, err := conn.Exec(t.Context(), `IDENTIFY_SYSTEM`).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	front := conn.Frontend()
	front.SendQuery(&pgproto3.Query{
		String: `START_REPLICATION SLOT ` + slot + ` PHYSICAL ` + string(system[0].Rows[0][2]),
	})
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		message, err := conn.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, begun := message.(*pgproto3.CopyBothResponse); begun {
			break
		}
	}
	said := binary.BigEndian.AppendUint64([]byte{'h'}, 0) // when: of no matter
	for _, n := range []uint32{xid, 0, 0, 0} {            // xmin and its epoch, that of catalogs and its epoch
		said = binary.BigEndian.AppendUint32(said, n)
	}
	front.Send(&pgproto3.CopyData{Data: said})
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestTheDoctorFindsASlotThatNobodyReads(t *testing.T) {
	t.Parallel()
	server, pool := spoiled(t) // as a slot is of all databases
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT pg_create_physical_replication_slot('the_old_standby', true)`)
	find := func() []finding { return doctor(t, nil, same, "--database", server.URL()) }
	if found := find(); len(found) != 0 {
		t.Errorf("nobody has ever read from it: %+v", found)
	}
	var xid uint32
	if err := pool.QueryRow(t.Context(), `SELECT pg_current_xact_id()::xid`).Scan(&xid); err != nil {
		t.Fatal(err)
	}
	feedback(t, server.URL(), "the_old_standby", xid)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var held bool
		if err := pool.QueryRow(t.Context(), `SELECT xmin IS NOT NULL AND NOT active FROM pg_replication_slots`).
			Scan(&held); err != nil {
			t.Fatal(err)
		}
		if held {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the slot does not hold what the standby needs")
		}
	}
	finds(t, find(), "transactions", wrong, "'the_old_standby', ", "pg_drop_replication_slot")
	exec(t, pool, `SELECT pg_drop_replication_slot('the_old_standby')`)
	if found := find(); len(found) != 0 {
		t.Errorf("after the fix: %+v", found)
	}
}
