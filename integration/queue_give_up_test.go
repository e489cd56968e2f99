package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Whatever ends the wait in a queue, the session that goes back to the pool holds no lock of it,
// and goes on.
func TestWhoGivesUpInAQueueLeavesNoLock(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	for _, mode := range modes {
		for way, state := range map[string]string{"lock_timeout": "55P03",
			"statement_timeout": "57014", "pg_cancel_backend": "57014", "context": ""} {
			t.Run(strings.ReplaceAll(mode.String(), " ", "")+"/"+way, func(t *testing.T) {
				t.Parallel()
				admin := pgtest.Pool(t)
				cfg := admin.Config()
				cfg.ConnConfig.DefaultQueryExecMode = mode
				pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				for _, held := range []string{"a", "b"} { // of one of them the other's lock comes first
					// Where the machine stands still, a statement_timeout may end another statement.
					for try := 1; ; try++ {
						wrong := giveUp(t, admin, pool, held, way, state)
						if wrong == "" {
							break
						}
						if way != "statement_timeout" || try == 5 {
							t.Fatal(wrong)
						}
					}
				}
			})
		}
	}
}

// giveUp ends the wait of a transaction for the queues of two rows, one of which somebody else
// holds. It returns what is wrong then.
func giveUp(t *testing.T, admin, pool *pgxpool.Pool, held, way, state string) (wrong string) {
	t.Helper()
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("gives up", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	a, b := limit.For("a"), limit.For("b")
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	defer func() {
		if wrong != "" { // whatever is set in the session must not reach the next one
			_ = conn.Conn().Close(context.WithoutCancel(t.Context()))
		}
	}()
	pid := conn.Conn().PgConn().PID()
	locks := func(which string) (n int) {
		if err := admin.QueryRow(t.Context(), `SELECT count(*) `+queueLocks+which+` AND q.pid = $1`,
			pid).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var goOn func()
	var end sync.WaitGroup
	runs := 0
	err = l.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		switch runs++; runs {
		case 1, 2: // it loses the one, and then the other
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
			lost := []ratelimit.Request{a, b}[runs-1]
			rig.Take(t, l.Autocommit(admin), lost)
			_, err := l.RateLimit(ctx, tx, lost)
			return err
		case 3: // nothing was sent yet
			goOn = stall(t, admin, pgx.Serializable, limit.For(held))
			if strings.HasSuffix(way, "timeout") {
				if _, err := conn.Exec(ctx, `SET `+way+` = '300ms'`); err != nil {
					return err
				}
				break
			}
			end.Go(func() {
				until(t, func() bool { return locks(` AND NOT q.granted`) == 1 })
				if way == "context" {
					cancel()
				} else if _, err := admin.Exec(t.Context(), `SELECT pg_cancel_backend($1)`, pid); err != nil {
					t.Error(err)
				}
			})
		}
		_, err := l.RateLimit(ctx, tx, a, b)
		return err
	})
	end.Wait()
	is := strings.Contains(fmt.Sprint(err), "queue for a contended limit")
	if way == "context" { // which loses the connection, in the whole of the trip
		is = errors.Is(err, context.Canceled)
	}
	if runs != 3 || rig.SQLState(err) != state || !is {
		wrong = fmt.Sprintf("ran %d times, then %v", runs, err)
	}
	if goOn == nil {
		return wrong
	}
	until(t, func() bool { return locks("") == 0 })
	goOn()
	if conn.Conn().IsClosed() != (way == "context") {
		return fmt.Sprintf("%s; the connection is closed: %v", wrong, conn.Conn().IsClosed())
	}
	if way == "context" {
		return wrong
	}
	if _, err := conn.Exec(t.Context(), `RESET ALL`); err != nil {
		return fmt.Sprintf("%s; %v", wrong, err)
	}
	if err := queued(t.Context(), l, admin, pgx.Serializable, limit.For(held), nothing); err != nil {
		t.Error(err)
	}
	return wrong
}
