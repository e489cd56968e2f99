package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

func TestTheServerIsKilled(t *testing.T) {
	t.Parallel()
	ours(t)
	eachLayout(t, func(t *testing.T, f *fixture) { end(t, f, func(f *fixture) error { return f.server.Kill() }) })
}

func TestTheServerIsShutDownImmediately(t *testing.T) {
	t.Parallel()
	ours(t)
	end(t, setUp(t), func(f *fixture) error { return f.server.Shutdown("immediate") })
}

func TestTheServerIsShutDownFast(t *testing.T) {
	t.Parallel()
	ours(t)
	end(t, setUp(t), func(f *fixture) error { return f.server.Shutdown("fast") })
}

func end(t *testing.T, f *fixture, how func(*fixture) error) {
	t.Helper()
	f.run(t, fault{rounds: 1, hits: []class{away}, allowed: []class{unknown}, inject: ending(how)})
}

// ending ends the server, and starts it again.
func ending(how func(*fixture) error) func(t *testing.T, f *fixture) {
	return func(t *testing.T, f *fixture) {
		t.Helper()
		f.callers.await(t, granted, rand.N(100))
		if err := how(f); err != nil {
			t.Fatal(err)
		}
		f.callers.await(t, away, 20)
		f.mustRefuse(t)
		if err := f.server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// mustRefuse checks what is answered when there is no server: an error, and no denial. As nothing
// could be sent, it is not unknown what became of it either.
func (f *fixture) mustRefuse(t *testing.T) {
	t.Helper()
	pool := f.connect(t) // the other may have connections that it takes to be alive
	l := f.app.limiter
	ac := l.Autocommit(pool)
	if err := l.InTx(t.Context(), pool, func(context.Context, pgx.Tx) error {
		t.Error("the callback ran without a server")
		return nil
	}); classify(err) != away {
		t.Errorf("InTx without a server: %v", err)
	}
	for name, call := range map[string]func() (ratelimit.Result, error){
		"RateLimit": func() (ratelimit.Result, error) { return ac.RateLimit(t.Context(), bucket.For("none")) },
		"several": func() (ratelimit.Result, error) {
			return ac.RateLimit(t.Context(), bucket.For("none"), window.For("none"))
		},
		"CheckRateLimit": func() (ratelimit.Result, error) {
			return ac.CheckRateLimit(t.Context(), bucket.For("none"))
		},
	} {
		res, err := call()
		if classify(err) != away || res.OK || !errors.Is(res.Err(), ratelimit.ErrNoDecision) {
			t.Errorf("%s without a server: %+v and %v", name, res, err)
		}
	}
	if _, err := ac.Value(t.Context(), bucket.For("none")); classify(err) != away {
		t.Errorf("Value without a server: %v", err)
	}
}

// A backend that dies takes all others with it: the server restarts by itself. So it goes when
// memory runs out. On a busy machine that may be over before a caller looks, and the others may all
// have been at COMMIT: then it is done again.
func TestABackendIsKilled(t *testing.T) {
	t.Parallel()
	ours(t)
	eachLayout(t, backendIsKilled)
}

func backendIsKilled(t *testing.T, f *fixture) {
	t.Helper()
	f.run(t, fault{rounds: 1, hits: []class{away}, allowed: []class{unknown}, inject: killABackend})
}

func killABackend(t *testing.T, f *fixture) {
	t.Helper()
	f.callers.await(t, granted, rand.N(50))
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			var pid int
			if err := conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 1`,
				f.name).Scan(&pid); err != nil {
				return err
			}
			p, err := os.FindProcess(pid)
			if err == nil {
				err = p.Kill()
			}
			switch {
			case errors.Is(err, os.ErrProcessDone):
				continue // an operator has just closed its second connection
			case err != nil:
				return err
			}
			// until the server takes this backend down with it, others may still be at work
			switch _, err := conn.Exec(ctx, `SELECT pg_sleep(30)`); {
			case classify(err) == away:
				return nil
			case err != nil:
				return fmt.Errorf("the server outlived a killed backend: %w", err)
			}
			// it was at its end already
		}
	})
}

// While the database takes no writes, callers learn that, and what was denied before is denied
// still.
func TestTheDatabaseIsReadOnlyForAWhile(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	f.run(t, fault{rounds: 1, hits: []class{readOnly}, inject: func(t *testing.T, f *fixture) {
		f.callers.await(t, granted, rand.N(50))
		f.exec(t, `ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
		f.callers.await(t, readOnly, 50)
		if res, err := f.app.limiter.Autocommit(f.pool).CheckRateLimit(t.Context(),
			bucket.For("unused")); err != nil || !res.OK {
			t.Errorf("a check writes nothing, yet: %+v and %v", res, err)
		}
		f.exec(t, `ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`)
	}})
}
