package citus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
)

// fate is what became of a call: what its caller was told, and what the cluster has of it.
type fate struct {
	way             string
	err             error
	first, second   bool // the tokens of its keys are gone
	row             bool // that it wrote on the coordinator
	hasTwo, hasARow bool
}

// violation says what is wrong with it, if anything is.
func (f *fate) violation() string {
	unknown := errors.Is(f.err, ratelimit.ErrOutcomeUnknown)
	switch {
	case f.hasTwo && f.second != f.first:
		return "one key's tokens are gone, and not the other's"
	case f.hasARow && f.row != f.first:
		return fmt.Sprintf("tokens are gone: %v, and the row is there: %v", f.first, f.row)
	case f.err == nil && !f.first:
		return "the caller was told that tokens are taken, and they are not"
	case f.err != nil && !unknown && f.first:
		return fmt.Sprintf("the caller was told that nothing was taken, and it was: %v", f.err)
	}
	return ""
}

func TestTheAuditOfFatesFindsWhatIsWrong(t *testing.T) {
	unknown, failed := fmt.Errorf("lost: %w", ratelimit.ErrOutcomeUnknown), errors.New("refused")
	for name, c := range map[string]struct {
		fate fate
		bad  bool
	}{
		"Taken":               {fate{first: true, second: true, row: true, hasTwo: true, hasARow: true}, false},
		"NotTaken":            {fate{err: failed, hasTwo: true, hasARow: true}, false},
		"UnknownAndTaken":     {fate{err: unknown, first: true}, false},
		"UnknownAndNotTaken":  {fate{err: unknown}, false},
		"Lost":                {fate{}, true},
		"TakenThoughToldNot":  {fate{err: failed, first: true}, true},
		"OneOfTwo":            {fate{err: unknown, first: true, hasTwo: true}, true},
		"TheOtherOne":         {fate{err: unknown, second: true, hasTwo: true}, true},
		"TokensWithoutTheRow": {fate{first: true, hasARow: true}, true},
		"TheRowWithoutTokens": {fate{err: unknown, row: true, hasARow: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if v := c.fate.violation(); (v != "") != c.bad {
				t.Errorf("found %q", v)
			}
		})
	}
}

// wide is a pool to the same server with a connection for each caller of a test.
func wide(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	cfg.MaxConns = 24
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// killEach kills the nodes in turn and starts them again, each at least twice. It waits for sixty
// calls to get through before each, so there are several hundred.
func killEach(t *testing.T, c pgserver.Cluster, through func() int) (kills int) {
	t.Helper()
	for ; kills < roundsOfKills(); kills++ {
		node, before := c[kills%len(c)], through()
		until(t, "calls get through between two kills", func() bool { return through() > before+60 })
		if err := node.Kill(); err != nil {
			t.Error(err)
			return kills
		}
		if err := node.Restart(t.Context()); err != nil {
			t.Error(err)
			return kills
		}
	}
	return kills
}

// While nodes are killed, a call takes from all of its keys or from none, and its row is written if
// and only if it takes. Its caller is told which of the two happened, or that the outcome is
// unknown. Each call has keys of its own, so that the cluster shows what became of it.
func TestKilledNodesTakeWhatCallersWereTold(t *testing.T) {
	c, pool := killable(t)
	pool = wide(t, pool)
	exec(t, pool, `CREATE TABLE work (id bigint PRIMARY KEY)`)
	l := limiter(t, ratelimit.Config{Citus: true})
	take, coalesced := l.Autocommit(pool), l.Coalesce(pool)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() {
		coalesced.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	const insert = `INSERT INTO work VALUES ($1)`
	ways := []struct {
		name    string
		two, is bool // two keys; there is a row
		call    func(ctx context.Context, id int, first, second ratelimit.Request) error
	}{
		{"Autocommit", false, false, func(ctx context.Context, _ int, first, _ ratelimit.Request) error {
			return take.Consume(ctx, first)
		}},
		{"AutocommitOfTwo", true, false, func(ctx context.Context, _ int, first, second ratelimit.Request) error {
			return take.Consume(ctx, first, second)
		}},
		{"Coalesced", false, false, func(ctx context.Context, _ int, first, _ ratelimit.Request) error {
			return coalesced.Consume(ctx, first)
		}},
		{"CoalescedOfTwo", true, false, func(ctx context.Context, _ int, first, second ratelimit.Request) error {
			return coalesced.Consume(ctx, first, second)
		}},
		{"InTx", true, true, func(ctx context.Context, id int, first, second ratelimit.Request) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, first, second); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, insert, id)
				return err
			})
		}},
		{"InSQLTx", false, true, func(ctx context.Context, id int, first, _ ratelimit.Request) error {
			return l.InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := l.InSQL(tx).Consume(ctx, first); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, insert, id)
				return err
			})
		}},
		{"SendBatch", false, true, func(ctx context.Context, id int, first, _ ratelimit.Request) error {
			res, err := l.SendBatch(ctx, pool, func(b *pgx.Batch) error {
				b.Queue(insert, id)
				return nil
			}, first)
			if err == nil && !res.OK {
				err = errors.New("denied")
			}
			return err
		}},
	}

	var mu sync.Mutex
	fates, through := map[int]*fate{}, 0
	keys := func(id int) (first, second string) { return fmt.Sprint("a", id), fmt.Sprint("b", id) }
	stop := callUntilStopped(len(ways), func(id int) {
		way := ways[id%len(ways)]
		first, second := keys(id)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := way.call(ctx, id, budget.For(first), budget.For(second))
		mu.Lock()
		defer mu.Unlock()
		fates[id] = &fate{way: way.name, err: err, hasTwo: way.two, hasARow: way.is}
		if err == nil {
			through++
		}
	})
	defer stop()
	kills := killEach(t, c, func() int {
		mu.Lock()
		defer mu.Unlock()
		return through
	})
	stop()
	recovered(t, pool)

	gone := map[string]bool{}
	var key string
	rows, _ := pool.Query(t.Context(), `SELECT key FROM weir_balance WHERE name = 'budget' AND value < $1`, capacity-0.5)
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { gone[key] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	written := map[int]bool{}
	var id int
	rows, _ = pool.Query(t.Context(), `SELECT id FROM work`)
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { written[id] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	told := tallies{}
	for id, f := range fates {
		first, second := keys(id)
		f.first, f.second, f.row = gone[first], gone[second], written[id]
		if v := f.violation(); v != "" {
			t.Errorf("%s, call %d: %s", f.way, id, v)
		}
		told.add(f.way, f.err)
	}
	told.report(t, kills)
}
