package ratelimit

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"
)

func limiterFor(t *testing.T, cfg Config) *Limiter {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Processes of different releases queue for the same tables: a row's queue must never change.
func TestQueueOfARowIsStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		row  row
		want int
	}{
		{row{"partnerAPI", "tenant-1", 0}, 7},
		{row{"partnerAPI", "tenant-2", 0}, 2},
		{row{"signUp", "", 0}, 3},
		{row{"größe", "日本", 0}, 2},
		{row{"hot", "", 1023}, 6},
		{row{"hot", "", 524799}, 0},
	} {
		if got := queuesOf([]row{tc.row}); !slices.Equal(got, []int{tc.want}) {
			t.Errorf("%+v: %v, want %d", tc.row, got, tc.want)
		}
	}
}

// Everybody locks the queues in one order, each once.
func TestQueuesAreAscendingAndUnique(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOf(rapid.Custom(func(t *rapid.T) row {
			return row{rapid.String().Draw(t, "name"), rapid.String().Draw(t, "key"), rapid.Int32Range(0, 5e5).Draw(t, "shard")}
		})).Draw(t, "rows")
		qs := queuesOf(rows)
		for i, q := range qs {
			if q < 0 || q >= queues || i > 0 && qs[i-1] >= q {
				t.Fatalf("%v", qs)
			}
		}
		for _, r := range rows {
			if !slices.Contains(qs, queuesOf([]row{r})[0]) {
				t.Fatalf("%+v is not in %v", r, qs)
			}
		}
	})
}

func TestRowsSpreadOverTheQueues(t *testing.T) {
	t.Parallel()
	var counts [queues]int
	const rows = 8000
	for i := range rows {
		counts[queuesOf([]row{{"limit", fmt.Sprintf("user:%d", i), 0}})[0]]++
	}
	for q, n := range counts {
		if n < rows/queues*8/10 || n > rows/queues*12/10 {
			t.Errorf("%d of %d rows in queue %d", n, rows, q)
		}
	}
}

func TestContentionIsOfBoundedNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c contention
		for i := range 3 * mostContended {
			c.note(row{"limit", fmt.Sprint(i), 0})
			if len(c.rows) > mostContended {
				t.Fatalf("%d rows", len(c.rows))
			}
		}
		for r := range c.rows {
			c.rows[r] = time.Now().Add(-time.Second)
		}
		c.note(row{"limit", "new", 0})
		if _, ok := c.rows[row{"limit", "new", 0}]; !ok || len(c.rows) != 1 {
			t.Errorf("%d rows after the others have expired", len(c.rows))
		}
	})
}

// A row that goes on failing stays contended, also when there is no room for others.
func TestFullContentionStillProlongsARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c contention
		hot := row{"limit", "hot", 0}
		c.note(hot)
		for i := range mostContended {
			c.note(row{"limit", fmt.Sprint(i), 0})
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
		c.note(calls[0].row())
		c.note(calls[2].row())
		if got := c.contended(take); !slices.Equal(got, []row{calls[0].row()}) {
			t.Errorf("%v", got)
		}
		c.rows[calls[0].row()] = time.Now().Add(-time.Nanosecond)
		if got := c.contended(take); got != nil {
			t.Errorf("after a while: %v", got)
		}
	})
}

// A lock after the snapshot was taken is in vain, one at READ COMMITTED without need, and some engines have none.
func TestAttemptQueuesFirstOrNotAtAll(t *testing.T) {
	t.Parallel()
	conflict := fmt.Errorf("take: %w", &pgconn.PgError{Code: "40001"})
	calls := resolved(t, apples.For("x"))
	for _, tc := range []struct {
		name     string
		level    pgx.TxIsoLevel
		used     bool
		portable bool
		want     bool
	}{
		{"serializable", pgx.Serializable, false, false, true},
		{"repeatable read", pgx.RepeatableRead, false, false, true},
		{"read committed", pgx.ReadCommitted, false, false, false},
		{"read uncommitted", pgx.ReadUncommitted, false, false, false},
		{"used before", pgx.Serializable, true, false, false},
		{"portable", pgx.Serializable, false, true, false},
	} {
		l := limiterFor(t, Config{Portable: tc.portable, Schema: "s"})
		l.contention.note(calls[0].row())
		a := &attempt{l: l, level: tc.level, used: tc.used}
		lock, _ := a.queueUp(l, []*statement{l.takeOf(&calls[0])})
		if (lock != nil) != tc.want {
			t.Errorf("%s: %+v", tc.name, lock)
		}
		if lock != nil {
			want := fmt.Sprintf(`LOCK TABLE "s".weir_queue_%d IN SHARE ROW EXCLUSIVE MODE`, queuesOf([]row{calls[0].row()})[0])
			if again, _ := a.queueUp(l, []*statement{l.takeOf(&calls[0])}); lock.sql != want || again != nil {
				t.Errorf("%s: %q, want %q, once", tc.name, lock.sql, want)
			}
		}
		a.observe(l, l.takeOf(&calls[0]), conflict)
		a.observe(l, l.takeOf(&calls[0]), conflict)
		if a.conflict == nil || len(a.conflicts) > 1 || (len(a.conflicts) == 1) != (tc.want || tc.used) {
			t.Errorf("%s: %v, %v", tc.name, a.conflict, a.conflicts)
		}
	}
}

func TestAttemptNotesNothingButConflicts(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	calls := resolved(t, apples.For("x"))
	a := &attempt{l: l, level: pgx.Serializable}
	for _, err := range []error{nil, errors.New("x"), &pgconn.PgError{Code: "23505"}} {
		a.observe(l, l.takeOf(&calls[0]), err)
	}
	if a.conflict != nil || a.conflicts != nil || len(l.contention.rows) != 0 {
		t.Errorf("%+v", a)
	}

	var none *attempt // in a transaction that the caller began
	none.observe(l, l.takeOf(&calls[0]), &pgconn.PgError{Code: "40001"})
	if lock, _ := none.queueUp(l, []*statement{l.takeOf(&calls[0])}); lock != nil || none.queued() {
		t.Error("no attempt, yet a lock")
	}
}

func TestContentionIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	calls := resolved(t, apples.For("x"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				l.contention.note(row{"limit", fmt.Sprint((i + j) % 20), 0})
				l.contention.contended([]*statement{l.takeOf(&calls[0])})
			}
		})
	}
	wg.Wait()
}

// Who had to wait in a queue knows that it is needed, though the queue has kept all from a conflict.
func TestARowIsContendedAsLongAsItsCallersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]bool{waited / 2: false, waited: true} {
			l := limiterFor(t, Config{})
			calls := resolved(t, apples.For("x"))
			take := []*statement{l.takeOf(&calls[0])}
			l.contention.note(calls[0].row())
			l.contention.rows[calls[0].row()] = time.Now().Add(contendedFor / 4) // it is nearly over
			a := &attempt{l: l, level: pgx.Serializable}
			lock, rows := a.queueUp(l, take)
			if lock == nil {
				t.Fatal("not contended")
			}
			a.queuedUp(rows, took)
			if got := time.Until(l.contention.rows[calls[0].row()]) > contendedFor/2; got != want {
				t.Errorf("after a trip of %v: %v", took, got)
			}
		}
	})
}
