package model

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// operations are the verbs inside of one transaction.
type operations interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	CheckRateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error
	GiveBack(ctx context.Context, res ratelimit.Result) error
}

// road is a way of running several operations, in one transaction if it has any, anew after a
// conflict.
type road struct {
	name     string
	portable bool
	level    pgx.TxIsoLevel // of the transaction; empty if there is none
	open     func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner
}

type runner func(ctx context.Context, fn func(operations) error) error

var roads = append([]road{
	{"ReadCommitted", false, pgx.ReadCommitted, transactions(pgx.ReadCommitted)},
	{"RepeatableRead", false, pgx.RepeatableRead, transactions(pgx.RepeatableRead)},
	{"Serializable", false, pgx.Serializable, transactions(pgx.Serializable)},
	{"Portable", true, pgx.Serializable, transactions(pgx.Serializable)},
	{"DatabaseSQL", false, pgx.ReadCommitted, sqlTransactions},
	{"Autocommit", false, "", func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner {
		return func(_ context.Context, fn func(operations) error) error { return fn(l.Autocommit(pool)) }
	}},
	{"Coalesced", false, "", func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner {
		c := rig.Coalesce(t, l, pool)
		return func(_ context.Context, fn func(operations) error) error { return fn(c) }
	}},
}, nodes()...)

// nodes has callers use all nodes of a cluster in turn. On one server it is nothing else than
// Autocommit, and left out.
func nodes() []road {
	if !pgtest.Citus() {
		return nil
	}
	return []road{{"EachNode", false, "", func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner {
		rows, _ := pool.Query(t.Context(), `SELECT nodename, nodeport FROM pg_dist_node ORDER BY nodeid`)
		addresses, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Host string
			Port int32
		}])
		if err != nil || len(addresses) < 2 {
			t.Fatal(addresses, err)
		}
		var each []*ratelimit.Autocommit
		for _, a := range addresses {
			cfg := pool.Config()
			cfg.ConnConfig.Host, cfg.ConnConfig.Port = a.Host, uint16(a.Port) //nolint:gosec // a port
			node, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(node.Close)
			each = append(each, l.Autocommit(node))
		}
		var next atomic.Int64
		return func(_ context.Context, fn func(operations) error) error {
			return fn(each[next.Add(1)%int64(len(each))])
		}
	}}}
}

type pgxOperations struct {
	ratelimit.Verbs
	l  *ratelimit.Limiter
	tx pgx.Tx
}

func transactions(level pgx.TxIsoLevel) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) runner {
	return func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner {
		if level == pgx.Serializable {
			pgtest.OneServer(t, "a conflict at COMMIT cannot be told from the loss of a node there")
		}
		return func(ctx context.Context, fn func(operations) error) error {
			return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(_ context.Context, tx pgx.Tx) error {
				return fn(pgxOperations{l.In(tx), l, tx})
			})
		}
	}
}

func sqlTransactions(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) runner {
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return func(ctx context.Context, fn func(operations) error) error {
		return rig.SQL(l, db, false).Do(ctx, func(_ context.Context, tx *sql.Tx) error { return fn(l.InSQL(tx)) })
	}
}
