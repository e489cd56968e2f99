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

	"github.com/weir-go/weir/internal/where"
)

func limiterFor(t *testing.T, cfg Config) *Limiter {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestContentionIsOfBoundedNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c contention
		for i := range 3 * mostContended {
			c.note(where.Of("limit", fmt.Sprint(i), 0))
			if len(c.rows) > mostContended {
				t.Fatalf("%d rows", len(c.rows))
			}
		}
		for r := range c.rows {
			c.rows[r] = time.Now().Add(-time.Second)
		}
		c.note(where.Of("limit", "new", 0))
		if _, ok := c.rows[where.Of("limit", "new", 0)]; !ok || len(c.rows) != 1 {
			t.Errorf("%d rows after the others have expired", len(c.rows))
		}
	})
}

// A row that goes on failing stays contended, also when there is no room for others.
func TestFullContentionStillProlongsARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c contention
		hot := where.Of("limit", "hot", 0)
		c.note(hot)
		for i := range mostContended {
			c.note(where.Of("limit", fmt.Sprint(i), 0))
		}
		soon := time.Now().Add(contendedFor / 2)
		c.rows[hot] = soon
		c.note(hot)
		if !c.rows[hot].After(soon) {
			t.Error("a conflict of a row that is known was not noted")
		}
	})
}

func TestOnlyRowsThatAreWrittenAndLatelyFailedQueueUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiterFor(t, Config{})
		calls := resolved(t, apples.For("x"), apples.For("y"), apples.For("z"))
		take := []*statement{l.takeOf(&calls[0]), l.takeOf(&calls[1]), l.lookOf(&calls[2])}
		c := &l.contention
		if got := c.contended(take); got != nil {
			t.Errorf("before any conflict: %v", got)
		}
		c.note(calls[0].Row)
		c.note(calls[2].Row)
		if got := c.contended(take); !slices.Equal(got, []where.Row{calls[0].Row}) {
			t.Errorf("%v", got)
		}
		c.rows[calls[0].Row] = time.Now().Add(-time.Nanosecond)
		if got := c.contended(take); got != nil {
			t.Errorf("after a while: %v", got)
		}
	})
}

// A lock after the snapshot was taken is in vain, and another limiter's rows may be those of
// another schema.
func TestAttemptQueuesFirstOrNotAtAll(t *testing.T) {
	t.Parallel()
	calls := resolved(t, apples.For("x"))
	l, other := limiterFor(t, Config{}), limiterFor(t, Config{})
	l.contention.note(calls[0].Row)
	other.contention.note(calls[0].Row)
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
}

// Of what goes wrong, only a conflict on the row itself makes it contended.
func TestOnlyAConflictOnTheRowMakesItContended(t *testing.T) {
	t.Parallel()
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
		if len(a.conflicts) != want || len(l.contention.rows) != want {
			t.Errorf("%s: %v, %v", name, a.conflicts, l.contention.rows)
		}
		if (a.conflict != nil) != tc.again {
			t.Errorf("%s: %v", name, a.conflict)
		}
	}
	var none *attempt // in a transaction that the caller began
	none.observe(limiterFor(t, Config{}), nil, &pgconn.PgError{Code: "40001"})
}

func TestContentionIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	calls := resolved(t, apples.For("x"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				l.contention.note(where.Of("limit", fmt.Sprint((i+j)%20), 0))
				l.contention.contended([]*statement{l.takeOf(&calls[0])})
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
		l.contention.note(calls[0].Row)
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
	l := limiterFor(t, Config{})
	var take []*statement
	for i := range 2 * mostQueued {
		calls := resolved(t, apples.For(fmt.Sprint(i)))
		l.contention.note(calls[0].Row)
		take = append(take, l.takeOf(&calls[0]))
	}
	if got := len(l.contention.contended(take)); got != mostQueued {
		t.Errorf("%d rows, want %d", got, mostQueued)
	}
}
