package model

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/weirtest"
)

// machine runs the limiter beside its model. All numbers are such that float64 keeps them exactly,
// or come in calls for one limit, where the arithmetic has an order: so everything is compared to
// the last bit.
type machine struct {
	pool   *pgxpool.Pool
	db     *sql.DB
	clock  *weirtest.Clock
	l      *ratelimit.Limiter
	ways   map[string]rig.Verbs
	limits []machineLimit

	book    book
	settled map[string]int64 // until when, in microseconds, by the ids of reservations
	grants  []given
	kept    []reserved
	last    ratelimit.Result // of the last take or check
	n       map[string]int   // what was done, for the log
}

type machineLimit struct {
	limit ratelimit.Limit
	base  ratelimit.Rule
	odd   bool // its numbers are not dyadic
}

// place is where operations happen: in a transaction, or each in one of its own.
type place struct {
	rig.Verbs
	query func(ctx context.Context, sql string, each func(scan func(...any) error) error) error
	// savepoint runs fn in one and keeps what it did, or not. Nil outside of transactions.
	savepoint func(ctx context.Context, fn func(place) (keep bool)) error
}

func (o pgxOperations) Renew(ctx context.Context, reservations ...*ratelimit.Reservation) error {
	return o.l.Renew(ctx, o.tx, reservations...)
}

type pgxQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func pgxQuery(q pgxQuerier) func(context.Context, string, func(func(...any) error) error) error {
	return func(ctx context.Context, sql string, each func(func(...any) error) error) error {
		rows, err := q.Query(ctx, sql)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

func (m *machine) inPgx(tx pgx.Tx) place {
	return place{pgxOperations{m.l.In(tx), m.l, tx}, pgxQuery(tx),
		func(ctx context.Context, fn func(place) bool) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if fn(m.inPgx(inner)) {
				return inner.Commit(ctx)
			}
			return inner.Rollback(ctx)
		}}
}

func (m *machine) inSQL(tx *sql.Tx, depth int) place {
	query := func(ctx context.Context, text string, each func(func(...any) error) error) error {
		rows, err := tx.QueryContext(ctx, text)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	return place{m.l.InSQL(tx), query, func(ctx context.Context, fn func(place) bool) error {
		name := fmt.Sprint("sp", depth)
		if _, err := tx.ExecContext(ctx, `SAVEPOINT `+name); err != nil {
			return err
		}
		end := `ROLLBACK TO ` + name
		if fn(m.inSQL(tx, depth+1)) {
			end = `RELEASE ` + name
		}
		_, err := tx.ExecContext(ctx, end)
		return err
	}}
}

func (m *machine) outside(way string) place { return place{m.ways[way], pgxQuery(m.pool), nil} }

func (m *machine) now() int64 { return m.clock.Now().UnixMicro() }

func (m *machine) operate(t *rapid.T, at place) {
	op := rapid.SampledFrom([]string{"take", "take", "take", "take", "take", "check", "reset",
		"give back", "give back", "value", "pause", "resume",
		"settle", "settle", "settle", "release", "renew"}).Draw(t, "operation")
	m.n[op]++
	now := m.now()
	switch op {
	case "take", "check":
		m.call(t, at, op == "take")
	case "reset":
		asks := m.drawAsks(t)
		_, refused := merge(bareAsks(asks))
		err := at.ResetRateLimit(t.Context(), requestsOf(asks)...)
		if m.refused(t, err, refused) {
			return
		}
		m.book.reset(asks, now)
	case "pause":
		asks := m.drawAsks(t)
		period := time.Duration(asks[0].law.period) * time.Microsecond
		d := rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Millisecond, period / 3,
			period, 5 * period / 2, -period}).Draw(t, "duration")
		merged, refused := merge(bareAsks(asks))
		if d <= 0 {
			refused = ratelimit.ErrInvalid
		}
		if m.refused(t, at.Pause(t.Context(), d, requestsOf(asks)...), refused) {
			return
		}
		m.book.pause(merged, now, (d + time.Microsecond - 1).Microseconds())
	case "resume":
		asks := m.drawAsks(t)
		merged, refused := merge(bareAsks(asks))
		if m.refused(t, at.Resume(t.Context(), requestsOf(asks)...), refused) {
			return
		}
		m.book.resume(merged, now)
	case "give back":
		if len(m.grants) == 0 {
			if err := at.GiveBack(t.Context(), ratelimit.Result{}); !errors.Is(err, ratelimit.ErrNoDecision) {
				t.Fatalf("giving back nothing: %v", err)
			}
			return
		}
		i := rapid.IntRange(0, len(m.grants)-1).Draw(t, "which")
		g := m.grants[i]
		if rapid.IntRange(0, 3).Draw(t, "again") > 0 {
			m.grants = slices.Delete(slices.Clone(m.grants), i, i+1)
		}
		if err := at.GiveBack(t.Context(), g.res); err != nil {
			t.Fatal(err)
		}
		m.book.giveBack(g.takes, now)
	case "settle", "release":
		m.settle(t, at, op == "release")
	case "renew":
		m.renew(t, at)
	case "value":
		a := m.draw(t, rapid.SampledFrom(m.limits).Draw(t, "limit"))
		s, err := at.Value(t.Context(), a.request)
		if want := m.book.value(a, now); err != nil || s != want {
			t.Fatalf("the value is %+v (%v), want %+v", s, err, want)
		}
	}
}

// refused reports whether the call was, as it should be.
func (m *machine) refused(t *rapid.T, err, want error) bool {
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		t.Fatalf("%v, want %v", err, want)
	}
	return want != nil
}

func (m *machine) call(t *rapid.T, at place, takes bool) {
	asks, now := m.drawAsks(t), m.now()
	merged, refused := merge(asks)
	do := at.CheckRateLimit
	if takes {
		do = at.RateLimit
	}
	res, err := do(t.Context(), requestsOf(asks)...)
	if m.refused(t, err, refused) {
		m.n["refused"]++
		if res.Outcomes != nil || res.OK {
			t.Fatalf("refused with %+v", res)
		}
		return
	}
	want, after := m.book.try(asks, merged, now)
	want.At = instant(now)
	if takes && want.OK {
		want.At = instant(after.latest(math.MinInt64))
	}
	if got := rig.Show(res); got != rig.Show(want) {
		t.Fatalf("at %v of %+v:\ngot  %s\nwant %s", m.clock.Now(), m.book, got, rig.Show(want))
	}
	m.last = res
	switch {
	case !takes:
		if err := at.GiveBack(t.Context(), res); res.OK != errors.Is(err, ratelimit.ErrInvalid) {
			t.Fatalf("giving back what a check found: %v", err)
		}
	case res.OK:
		m.n["granted"]++
		maps.Copy(m.book, after)
		takes := heldOf(merged, after)
		m.grants = append(m.grants, given{res, takes})
		m.kept = append(m.kept, reserved{res.Reservation(), slices.Clone(takes)})
	default:
		m.n["denied"]++
		if len(merged) > 1 {
			m.adopt(t, at, merged, res, now)
		}
	}
}

// adopt takes over the rows of a call that was denied in part. If a denial was expected, nothing
// was written. Else what was taken has been given back, which leaves balances refilled up to now.
func (m *machine) adopt(t *rapid.T, at place, merged []ask, res ratelimit.Result, now int64) {
	if rows := m.rows(t, at); maps.Equal(rows, m.book.normalized(merged, res, now)) {
		m.book = rows
	}
}

func (m *machine) rows(t *rapid.T, at place) book {
	b := book{}
	err := at.query(t.Context(), `SELECT name, key, value, ts, paused_until, coalesce(delay, 0), coalesce(moved, 0), capacity, rate, period, origin FROM weir_balance`, func(scan func(...any) error) error {
		var a account
		var e entry
		var ts time.Time
		var until, origin *time.Time
		r := &e.rule
		if err := scan(&a.limit, &a.key, &e.value, &ts, &until, &e.delay, &e.moved, &r.capacity,
			&r.rate, &r.period, &origin); err != nil {
			return err
		}
		if e.ts = ts.UnixMicro(); until != nil {
			e.until = until.UnixMicro()
		}
		if r.windowed = origin != nil; r.windowed {
			r.start = origin.UnixMicro() % r.period
		}
		b[a] = e
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (m *machine) compare(t *rapid.T, at place) {
	if rows := m.rows(t, at); !maps.Equal(rows, m.book) {
		t.Fatalf("at %v (%d) the rows are\n%v, want\n%v", m.clock.Now(), m.now(), rows, m.book)
	}
	m.compareSettled(t, at)
	for i := range m.kept {
		m.compareDue(t, &m.kept[i])
	}
}

// alonePool is a pool on a server that no other test uses. While any SERIALIZABLE transaction is
// open, Postgres keeps track of those that have ended since, of 10 for each connection that it
// allows. Of older ones it remembers less, and then it may fail one with a serialization failure
// that has met nobody.
func alonePool(t *testing.T) *pgxpool.Pool {
	if pgtest.Citus() {
		return pgtest.Pool(t)
	}
	_, pool := pgtest.Own(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// Whatever is called, in whatever order, through whichever way, by whichever rule, with the clock
// set forth and back, and however much of it is rolled back: the answers are those of the model,
// and so are the rows.
func TestEveryOperationDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	pool := alonePool(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	names := make([]string, 0, len(rig.Ways))
	for _, w := range rig.Ways {
		names = append(names, w.Name)
	}
	n := map[string]int{}

	for round := range rig.Rounds(t, 2) {
		rapid.Check(t, func(t *rapid.T) {
			for range round { // as the seed is the same
				rapid.Uint64().Draw(t, "another round")
			}
			m := &machine{pool: pool, db: db, clock: rig.Clock(), book: book{},
				settled: map[string]int64{}, ways: map[string]rig.Verbs{}, n: n}
			if _, err := pool.Exec(t.Context(),
				`WITH gone AS (DELETE FROM weir_settled) DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			open := func(portable bool) *ratelimit.Limiter {
				l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Portable: portable, Clock: m.clock.Now})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			m.l = open(false)
			portable := open(true)
			for _, w := range rig.Ways {
				l := m.l
				if w.Portable {
					l = portable
				}
				m.ways[w.Name] = rig.SQL(l, db, w.Name == "InSQLTx")
				if w.Name != "DatabaseSQL" && w.Name != "InSQLTx" {
					m.ways[w.Name] = w.Verbs(nil, l, pool)
				}
			}
			for i, rule := range []*rapid.Generator[ratelimit.Rule]{rig.ExactRule(), rig.ExactRule(), rig.OddRule(), rig.OddRule()} {
				base := rule.Draw(t, "rule")
				limit, err := ratelimit.Define(fmt.Sprint("machine", i), base)
				if err != nil {
					t.Fatal(err)
				}
				m.limits = append(m.limits, machineLimit{limit, base, i >= 2})
			}

			outside := func(t *rapid.T) place { return m.outside(rapid.SampledFrom(names).Draw(t, "way")) }
			t.Repeat(map[string]func(*rapid.T){
				"operate":       func(t *rapid.T) { m.operate(t, outside(t)) },
				"operate again": func(t *rapid.T) { m.operate(t, outside(t)) },
				"operate more":  func(t *rapid.T) { m.operate(t, outside(t)) },
				"transaction":   m.transaction,
				"tick":          m.tick,
				"":              func(t *rapid.T) { m.compare(t, m.outside(names[0])) },
			})
		})
	}
	t.Logf("%v", n)
}
