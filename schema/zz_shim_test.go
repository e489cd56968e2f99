package schema_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type shim struct{}

var pgtest shim

func (shim) Bare(t *testing.T) *pgxpool.Pool {
	t.Helper()
	name := fmt.Sprintf("t_%d", rand.Uint64())
	cfg, err := pgxpool.ParseConfig("postgres://postgres@127.0.0.1:54777/postgres")
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.ConnectConfig(context.Background(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(context.Background(), "create schema "+name); err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	p, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Exec(context.Background(), "drop schema "+name+" cascade")
		p.Close()
	})
	return p
}
