package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/limits/where"
)

// contendedFor is how long a row is contended after a conflict: see package contended.
const contendedFor = 2500 * time.Millisecond

func limiterFor(t *testing.T, cfg Config) *Limiter {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestOnlyRowsThatAreWrittenAndLatelyFailedQueueUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, Config{})
		calls := resolved(t, apples.For("x"), apples.For("y"), apples.For("z"))
		take := []*statement{l.takeOf(&calls[0]), l.takeOf(&calls[1]), l.lookOf(&calls[2])}
		contended := func() []where.Row { return queueable(take, l.contended.Has) }
		if got := contended(); got != nil {
			t.Errorf("before any conflict: %v", got)
		}
		l.contended.Note(calls[0].Row)
		l.contended.Note(calls[2].Row)
		if got := contended(); !slices.Equal(got, []where.Row{calls[0].Row}) {
			t.Errorf("%v", got)
		}
		time.Sleep(contendedFor + time.Nanosecond)
		if got := contended(); got != nil {
			t.Errorf("after a while: %v", got)
		}
	})
}

// A lock after the snapshot was taken is in vain, and another limiter's rows may be those of
// another schema.
func TestAttemptQueuesFirstOrNotAtAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := resolved(t, apples.For("x"))
		l, other := limiterFor(t, Config{}), limiterFor(t, Config{})
		l.contended.Note(calls[0].Row)
		other.contended.Note(calls[0].Row)
		for _, tc := range []struct {
			name string
			a    *attempt
			of   *Limiter
			want bool
		}{
			{"first", &attempt{l: l, queues: true}, l, true},
			{"read committed", &attempt{l: l}, l, false},
			{"used before", &attempt{l: l, queues: true, used: true}, l, false},
			{"another limiter's", &attempt{l: l, queues: true}, other, false},
			{"a transaction that the caller began", nil, l, false},
		} {
			if got := tc.a.queueFor(tc.of, []*statement{l.takeOf(&calls[0])}); (len(got) > 0) != tc.want {
				t.Errorf("%s: %v", tc.name, got)
			}
		}
	})
}

// Of what goes wrong, only a conflict on the row itself makes it contended.
func TestOnlyAConflictOnTheRowMakesItContended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			err               error
			contended, queues bool
			again             bool // worth another attempt
		}{
			"lost":            {&pgconn.PgError{Code: "40001", File: "nodeModifyTable.c"}, true, true, true},
			"read committed":  {&pgconn.PgError{Code: "40001", File: "nodeModifyTable.c"}, false, false, true},
			"reads":           {&pgconn.PgError{Code: "40001", File: "predicate.c"}, false, true, true},
			"deadlock":        {&pgconn.PgError{Code: "40P01", File: "deadlock.c"}, false, true, true},
			"lock timeout":    {&pgconn.PgError{Code: "55P03"}, false, true, false},
			"not of Postgres": {errors.New("x"), false, true, false},
			"none":            {nil, false, true, false},
		} {
			l := limiterFor(t, Config{})
			calls := resolved(t, apples.For("x"))
			a := &attempt{l: l, queues: tc.queues}
			for range 2 {
				err := tc.err
				if err != nil {
					err = fmt.Errorf("take: %w", err)
				}
				a.observe(l, l.takeOf(&calls[0]), err)
			}
			want := 0
			if tc.contended {
				want = 1
			}
			if len(a.conflicts) != want || l.contended.Has(calls[0].Row) != tc.contended {
				t.Errorf("%s: %v, %v", name, a.conflicts, l.contended.Has(calls[0].Row))
			}
			if (a.conflict != nil) != tc.again {
				t.Errorf("%s: %v", name, a.conflict)
			}
		}
		var none *attempt // in a transaction that the caller began
		none.observe(limiterFor(t, Config{}), nil, &pgconn.PgError{Code: "40001"})
	})
}

func TestContentionIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	calls := resolved(t, apples.For("x"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				l.contended.Note(where.Of("limit", fmt.Sprint((i+j)%20), 0))
				queueable([]*statement{l.takeOf(&calls[0])}, l.contended.Has)
			}
		})
	}
	wg.Wait()
}

// Nothing but another conflict prolongs it, however many callers queue meanwhile.
func TestContentionEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, Config{})
		calls := resolved(t, apples.For("x"))
		l.contended.Note(calls[0].Row)
		queued := 0
		for began := time.Now(); time.Since(began) < 10*contendedFor; time.Sleep(contendedFor / 10) {
			a := &attempt{l: l, queues: true}
			queued += len(a.queueFor(l, []*statement{l.takeOf(&calls[0])}))
			a.observe(l, l.takeOf(&calls[0]), nil)
		}
		if queued != 10 {
			t.Errorf("%d of 100 attempts queued, want the first 10", queued)
		}
	})
}

func TestACallQueuesForABoundedNumberOfRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, Config{})
		var take []*statement
		for i := range 2 * mostQueued {
			calls := resolved(t, apples.For(fmt.Sprint(i)))
			l.contended.Note(calls[0].Row)
			take = append(take, l.takeOf(&calls[0]))
		}
		if got := len(queueable(take, l.contended.Has)); got != mostQueued {
			t.Errorf("%d rows, want %d", got, mostQueued)
		}
	})
}
