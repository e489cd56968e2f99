package orms

import (
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// A transaction that Ent begins for an operation of its own is the caller's: it ends when that ends.
func TestEntWritesInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE upload (id serial, owner text, name text)`); err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	count := func() (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM upload`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, commit := range []bool{false, true} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		inner, err := entIn(tx).Tx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := inner.Exec(t.Context(), `INSERT INTO upload (owner, name) VALUES ('ann', 'a.txt')`, []any{}, nil); err != nil {
			t.Fatal(err)
		}
		if err := inner.Commit(); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != 0 {
			t.Errorf("%d rows before the caller's transaction has ended", n)
		}
		end, want := tx.Rollback, 0
		if commit {
			end, want = tx.Commit, 1
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != want {
			t.Errorf("%d rows, want %d", n, want)
		}
	}
}
