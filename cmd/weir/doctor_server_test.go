package main

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgserver"
	"github.com/weir-go/weir/schema"
)

// What is wrong with a whole server needs one that may be spoiled.
func TestTheDoctorFindsWhatIsWrongWithAServer(t *testing.T) {
	t.Parallel()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("a server that is given by DATABASE_URL is not set wrong on purpose")
	}
	server, err := pgserver.Start(t.Context(), pgserver.Setting("fsync", "off"), pgserver.Setting("autovacuum", "off"), pgserver.Setting("track_counts", "off"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
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
	// wants holds the findings of the server against the starts of what is to be found, and no other check may find anything.
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
			if f.Check != "server" || f.Mend == "" || !slices.ContainsFunc(starts, func(s string) bool { return strings.HasPrefix(f.Found, s) }) {
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
