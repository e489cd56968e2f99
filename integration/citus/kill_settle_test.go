package citus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/ratelimit"
)

// toSettle is how many tokens are taken from each key. Another call settles them.
const toSettle = 5

// settlement is what became of one: what its caller was told, and what the cluster has of it.
type settlement struct {
	way         string
	reservation ratelimit.Reservation
	used        float64 // of the tokens that were taken
	err         error

	gone    float64 // tokens of its key
	settled bool    // the cluster has it
	row     bool    // that it wrote on the coordinator
	hasARow bool
}

// violation says what is wrong with it, if anything is.
func (s *settlement) violation() string {
	want := float64(toSettle)
	if s.settled {
		want = s.used
	}
	switch {
	case s.gone != want:
		return fmt.Sprintf("it is settled: %v, and %v tokens are gone, want %v", s.settled, s.gone, want)
	case s.hasARow && s.row != s.settled:
		return fmt.Sprintf("it is settled: %v, and the row is there: %v", s.settled, s.row)
	case s.err == nil && !s.settled:
		return "the caller was told that it is settled, and it is not"
	case s.err != nil && !errors.Is(s.err, ratelimit.ErrOutcomeUnknown) && s.settled:
		return fmt.Sprintf("the caller was told that it is not settled, and it is: %v", s.err)
	}
	return ""
}

func TestTheAuditOfSettlementsFindsWhatIsWrong(t *testing.T) {
	unknown, failed := fmt.Errorf("lost: %w", ratelimit.ErrOutcomeUnknown), errors.New("refused")
	for name, c := range map[string]struct {
		settlement settlement
		bad        bool
	}{
		"Settled":               {settlement{used: 2, gone: 2, settled: true, row: true, hasARow: true}, false},
		"NotSettled":            {settlement{used: 2, gone: toSettle, err: failed, hasARow: true}, false},
		"UnknownAndSettled":     {settlement{used: 2, gone: 2, settled: true, err: unknown}, false},
		"UnknownAndNotSettled":  {settlement{used: 2, gone: toSettle, err: unknown}, false},
		"Lost":                  {settlement{used: 2, gone: toSettle}, true},
		"SettledThoughToldNot":  {settlement{used: 2, gone: 2, settled: true, err: failed}, true},
		"NothingGivenBack":      {settlement{used: 2, gone: toSettle, settled: true}, true},
		"GivenBackTwice":        {settlement{used: 2, gone: 0, settled: true}, true},
		"GivenBackNotRecorded":  {settlement{used: 2, gone: 2, err: unknown}, true},
		"SettledWithoutTheRow":  {settlement{used: 2, gone: 2, settled: true, hasARow: true}, true},
		"TheRowNotTheTokens":    {settlement{used: 2, gone: toSettle, err: unknown, row: true, hasARow: true}, true},
		"NeitherTakenNorGiven":  {settlement{used: 2, gone: 0, err: unknown}, true},
		"ReleasedNotGivenBack":  {settlement{used: 0, gone: toSettle, settled: true}, true},
		"Released":              {settlement{used: 0, gone: 0, settled: true, row: true, hasARow: true}, false},
		"ChargedMore":           {settlement{used: 9, gone: 9, settled: true}, false},
		"ChargedAndNotRecorded": {settlement{used: 9, gone: 9, err: unknown}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if v := c.settlement.violation(); (v != "") != c.bad {
				t.Errorf("found %q", v)
			}
		})
	}
}

var errSettledBefore = errors.New("it was settled before")

// mustSettle returns an error if a settlement that must be the first one was not.
func mustSettle(settled bool, err error) error {
	if err == nil && !settled {
		err = errSettledBefore
	}
	return err
}

// While nodes are killed, the tokens that a settlement gives back or charges, its record and its caller's
// row are kept or lost together. Its caller is told which of the two happened, or that the outcome is
// unknown. A caller that then settles again settles what was not settled, and nothing twice. Each
// reservation has a key of its own.
func TestKilledNodesSettleOnce(t *testing.T) {
	c, pool := killable(t)
	pool = wide(t, pool)
	exec(t, pool, `CREATE TABLE work (id bigint PRIMARY KEY)`)
	l := limiter(t, ratelimit.Config{Citus: true})
	take := l.Autocommit(pool)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	const insert = `INSERT INTO work VALUES ($1)`
	key := func(id int) string { return fmt.Sprint("k", id) }
	used := func(id int, s *settlement) ratelimit.Request { return budget.For(key(id)).Count(s.used) }
	inTx := func(ctx context.Context, id int, s *settlement) error {
		return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := mustSettle(l.Settle(ctx, tx, s.reservation, used(id, s))); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insert, id)
			return err
		})
	}
	ways := []struct {
		name string
		used float64
		is   bool // there is a row
		call func(ctx context.Context, id int, s *settlement) error
	}{
		{"InTx", 2, true, inTx},
		{"InTxOfMore", 9, true, inTx},
		{"Own", 2, true, func(ctx context.Context, id int, s *settlement) error {
			committing := false
			err := own(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, insert, id); err != nil {
					return err
				}
				return mustSettle(l.Settle(ctx, tx, s.reservation, used(id, s)))
			}, &committing)
			if err != nil && committing {
				err = fmt.Errorf("%w: %w", ratelimit.ErrOutcomeUnknown, err)
			}
			return err
		}},
		{"InSQLTx", 2, true, func(ctx context.Context, id int, s *settlement) error {
			return l.InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := mustSettle(l.InSQL(tx).Settle(ctx, s.reservation, used(id, s))); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, insert, id)
				return err
			})
		}},
		{"Autocommit", 2, false, func(ctx context.Context, id int, s *settlement) error {
			return mustSettle(take.Settle(ctx, s.reservation, used(id, s)))
		}},
		{"Release", 0, true, func(ctx context.Context, id int, s *settlement) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := mustSettle(l.Release(ctx, tx, s.reservation)); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, insert, id)
				return err
			})
		}},
	}

	began := time.Now()
	var mu sync.Mutex
	all, through := map[int]*settlement{}, 0
	stop := callUntilStopped(2*len(ways), func(id int) {
		way := ways[id%len(ways)]
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		res, err := take.RateLimit(ctx, budget.For(key(id)).Count(toSettle))
		if err != nil { // what became of such takes is audited elsewhere
			return
		}
		s := &settlement{way: way.name, reservation: res.Reservation(), used: way.used, hasARow: way.is}
		s.err = way.call(ctx, id, s)
		mu.Lock()
		defer mu.Unlock()
		all[id] = s
		if s.err == nil {
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

	pool = wide(t, pool) // no connection of which has met a kill
	gone, has, written := map[string]float64{}, map[string]bool{}, map[int]bool{}
	var of string
	var n float64
	var id int
	// Rounded, as some of a token comes between the take and the settlement.
	rows, _ := pool.Query(t.Context(), `SELECT key, $1 - value FROM weir_balance WHERE name = 'budget'`, float64(capacity))
	if _, err := pgx.ForEachRow(rows, []any{&of, &n}, func() error { gone[of] = math.Round(n); return nil }); err != nil {
		t.Fatal(err)
	}
	rows, _ = pool.Query(t.Context(), `SELECT key FROM weir_settled`)
	if _, err := pgx.ForEachRow(rows, []any{&of}, func() error { has[of] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	rows, _ = pool.Query(t.Context(), `SELECT id FROM work`)
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { written[id] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	told := tallies{}
	for id, s := range all {
		s.gone, s.settled, s.row = gone[key(id)], has[key(id)], written[id]
		if v := s.violation(); v != "" {
			t.Errorf("%s, reservation %d: %s", s.way, id, v)
		}
		if told.add(s.way, s.err); s.err == nil {
			continue
		}
		again := l.Autocommit(pool)
		if now, err := again.Settle(t.Context(), s.reservation, used(id, s)); err != nil || now == s.settled {
			t.Errorf("%s, reservation %d: settled again: %v, %v; it was settled before: %v", s.way, id, now, err, s.settled)
		}
		state, err := again.Value(t.Context(), used(id, s))
		came := time.Since(began).Hours() // a token comes an hour
		if n := capacity - state.Value; err != nil || n > s.used+0.001 || n < s.used-came-0.001 {
			t.Errorf("%s, reservation %d: %v tokens are gone, %v, want %v", s.way, id, n, err, s.used)
		}
	}
	told.report(t, kills)
}
