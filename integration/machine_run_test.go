package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// machine runs the limiter beside its model. All numbers are such that float64 keeps them exactly, or come in calls for one
// limit, where the arithmetic has an order: so everything is compared to the last bit.
type machine struct {
	pool   *pgxpool.Pool
	db     *sql.DB
	clock  *clock
	l      *ratelimit.Limiter
	ways   map[string]verbs
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
	verbs
	query func(ctx context.Context, sql string, each func(scan func(...any) error) error) error
	// savepoint runs fn in one and keeps what it did, or not. Nil outside of transactions.
	savepoint func(ctx context.Context, fn func(place) (keep bool)) error
}

func (o pgxOperations) Value(ctx context.Context, r ratelimit.Request) (ratelimit.State, error) {
	return o.l.Value(ctx, o.tx, r)
}

func (o pgxOperations) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	return o.l.Pause(ctx, o.tx, d, requests...)
}

func (o pgxOperations) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return o.l.Resume(ctx, o.tx, requests...)
}

func (o sqlOperations) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	return o.s.Pause(ctx, o.tx, d, requests...)
}

func (o sqlOperations) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return o.s.Resume(ctx, o.tx, requests...)
}

func (o pgxOperations) Settle(ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request) (bool, error) {
	return o.l.Settle(ctx, o.tx, r, used...)
}

func (o pgxOperations) Release(ctx context.Context, r ratelimit.Reservation) (bool, error) {
	return o.l.Release(ctx, o.tx, r)
}

func (o pgxOperations) Renew(ctx context.Context, reservations ...*ratelimit.Reservation) error {
	return o.l.Renew(ctx, o.tx, reservations...)
}

func (o sqlOperations) Settle(ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request) (bool, error) {
	return o.s.Settle(ctx, o.tx, r, used...)
}

func (o sqlOperations) Release(ctx context.Context, r ratelimit.Reservation) (bool, error) {
	return o.s.Release(ctx, o.tx, r)
}

func (o sqlOperations) Value(ctx context.Context, r ratelimit.Request) (ratelimit.State, error) {
	return o.s.Value(ctx, o.tx, r)
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
	return place{pgxOperations{m.l, tx}, pgxQuery(tx), func(ctx context.Context, fn func(place) bool) error {
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
	return place{sqlOperations{m.l.SQL(), tx}, query, func(ctx context.Context, fn func(place) bool) error {
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

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// exactRule draws a rule all of whose balances float64 holds exactly.
func exactRule() *rapid.Generator[ratelimit.Rule] {
	return rapid.Custom(func(t *rapid.T) ratelimit.Rule {
		rate := rapid.SampledFrom([]float64{1, 2, 3, 5, 10, 0.5}).Draw(t, "rate")
		period := micros(int64(1) << rapid.SampledFrom([]int{10, 20, 24, 30}).Draw(t, "period"))
		return drawRule(t, rate, period)
	})
}

func oddRule() *rapid.Generator[ratelimit.Rule] {
	return rapid.Custom(func(t *rapid.T) ratelimit.Rule {
		rate := rapid.OneOf(rapid.SampledFrom([]float64{3, 7, 1.0 / 3, 0.1}), rapid.Float64Range(0.01, 100)).Draw(t, "rate")
		period := rapid.OneOf(
			rapid.SampledFrom([]time.Duration{110 * time.Millisecond, 333 * time.Millisecond, 7 * time.Second, micros(7)}),
			rapid.Map(rapid.Int64Range(1, 1e10), micros),
		).Draw(t, "period")
		return drawRule(t, rate, period)
	})
}

func drawRule(t *rapid.T, rate float64, period time.Duration) ratelimit.Rule {
	number := func(label string, of ...float64) *float64 {
		if rapid.IntRange(0, 2).Draw(t, label+" unset") == 0 {
			return nil
		}
		return ratelimit.Tokens(rapid.SampledFrom(of).Draw(t, label))
	}
	capacity, reserved := number("capacity", 0, 0.5, 2, 5, 10, 20), number("reserved", 0, 1, 5, 30)
	if rapid.Bool().Draw(t, "window") {
		w := ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: capacity, MaxReserved: reserved}
		if rapid.Bool().Draw(t, "started") {
			w.Start = newClock().t.Add(micros(rapid.Int64Range(-1e12, 1e12).Draw(t, "start")))
		}
		return w
	}
	return ratelimit.TokenBucket{Rate: rate, Period: period, Capacity: capacity, MaxReserved: reserved}
}

// lawOf says what a rule means for an account.
func lawOf(rule ratelimit.Rule, r ratelimit.Request) law {
	n := numbersOf(rule)
	w := law{windowed: n.windowed, rate: n.rate, capacity: n.capacity, period: n.period.Microseconds(), reserved: math.Inf(1)}
	var reserved *float64
	switch rule := rule.(type) {
	case ratelimit.TokenBucket:
		reserved = rule.MaxReserved
	case ratelimit.FixedWindow:
		reserved = rule.MaxReserved
		w.start = rule.Start.UnixMicro()
		if rule.Start.IsZero() { // derived from the name and the key in a way that is the library's own
			w.start = windowEnd(n, r.Rule(rule), newClock().t).UnixMicro()
		}
		w.start %= w.period
	}
	if reserved != nil {
		w.reserved = *reserved
	}
	return w
}

func (m *machine) draw(t *rapid.T, l machineLimit) ask {
	a := ask{account: account{limit: l.limit.Name()}}
	if a.key = rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "key"); a.key == "" {
		a.request = l.limit.Global()
	} else {
		a.request = l.limit.For(a.key)
	}
	rule := l.base
	if rapid.IntRange(0, 3).Draw(t, "other rule") == 0 {
		if l.odd {
			rule = oddRule().Draw(t, "rule")
		} else {
			rule = exactRule().Draw(t, "rule")
		}
		a.request = a.request.Rule(rule)
	}
	a.law = lawOf(rule, a.request)
	m.drawAhead(t, l, &a)
	a.n = rapid.SampledFrom([]float64{0, 0.25, 1, 1, 1, 2, 3.5, a.law.capacity, a.law.capacity / 2, 8}).Draw(t, "count")
	if a.never() != nil && rapid.IntRange(0, 9).Draw(t, "refused") > 0 {
		a.n = a.law.capacity
	}
	a.request = a.request.Count(a.n)
	return a
}

// drawAsks draws the requests of a call: one of any limit, or several of exact ones.
func (m *machine) drawAsks(t *rapid.T) []ask {
	exact := slices.DeleteFunc(slices.Clone(m.limits), func(l machineLimit) bool { return l.odd })
	n := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "requests")
	if n == 1 {
		return []ask{m.draw(t, rapid.SampledFrom(m.limits).Draw(t, "limit"))}
	}
	asks := make([]ask, n)
	for i := range asks {
		if i > 0 && rapid.IntRange(0, 3).Draw(t, "twice") == 0 {
			asks[i] = asks[i-1]
			continue
		}
		asks[i] = m.draw(t, rapid.SampledFrom(exact).Draw(t, "limit"))
	}
	return asks
}

func requestsOf(asks []ask) []ratelimit.Request {
	requests := make([]ratelimit.Request, len(asks))
	for i := range asks {
		requests[i] = asks[i].request
	}
	return requests
}

func (m *machine) now() int64 { return m.clock.now().UnixMicro() }

func (m *machine) operate(t *rapid.T, at place) {
	op := rapid.SampledFrom([]string{"take", "take", "take", "take", "take", "check", "reset", "give back", "give back", "value", "pause", "resume",
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
		d := rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Millisecond, period / 3, period, 5 * period / 2, -period}).Draw(t, "duration")
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

// bareAsks are asks of which only the balance and the rule matter.
func bareAsks(asks []ask) []ask {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i] = ask{account: asks[i].account, law: asks[i].law, request: asks[i].request}
	}
	return asks
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
	if got := show(res); got != show(want) {
		t.Fatalf("at %v of %+v:\ngot  %s\nwant %s", m.clock.now(), m.book, got, show(want))
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

// adopt takes over the rows of a call that was denied in part. If a denial was expected, nothing was written. Else what
// was taken has been given back, which leaves balances refilled up to now.
func (m *machine) adopt(t *rapid.T, at place, merged []ask, res ratelimit.Result, now int64) {
	if rows := m.rows(t, at); maps.Equal(rows, m.book.normalized(merged, res, now)) {
		m.book = rows
	}
}

// show writes down what a Result says.
func show(r ratelimit.Result) string {
	var s strings.Builder
	when := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format("02T15:04:05.000000")
	}
	fmt.Fprintf(&s, "ok %v at %s run %s retry %s by %s/%s", r.OK, when(r.At), when(r.RunAt), when(r.RetryAt), r.Limit, r.Key)
	for _, o := range r.Outcomes {
		fmt.Fprintf(&s, "\n  %s/%s ok %v value %v period %v run %s paced %s retry %s delay %v",
			o.Limit, o.Key, o.OK, o.Value, o.Period, when(o.RunAt), when(o.PacedAt), when(o.RetryAt), o.Delay)
	}
	return s.String()
}

func (m *machine) rows(t *rapid.T, at place) book {
	b := book{}
	err := at.query(t.Context(), `SELECT name, key, value, ts, paused_until, coalesce(delay, 0), coalesce(moved, 0), capacity, rate, period, origin FROM weir_balance`, func(scan func(...any) error) error {
		var a account
		var e entry
		var ts time.Time
		var until, origin *time.Time
		r := &e.rule
		if err := scan(&a.limit, &a.key, &e.value, &ts, &until, &e.delay, &e.moved, &r.capacity, &r.rate, &r.period, &origin); err != nil {
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
		t.Fatalf("at %v (%d) the rows are\n%v, want\n%v", m.clock.now(), m.now(), rows, m.book)
	}
	m.compareSettled(t, at)
	for i := range m.kept {
		m.compareDue(t, &m.kept[i])
	}
}

// tick moves the clock, forth more often than back.
func (m *machine) tick(t *rapid.T) {
	m.n["tick"]++
	var to time.Time
	switch rapid.SampledFrom([]string{"on", "on", "on", "on", "on", "back", "back", "retry", "retry", "run", "run", "end", "end", "month"}).Draw(t, "tick") {
	case "on":
		period := numbersOf(rapid.SampledFrom(m.limits).Draw(t, "limit").base).period
		by := rapid.SampledFrom([]time.Duration{1, 999 * time.Microsecond, period / 16, period / 5, period / 2, period, 3 * period}).Draw(t, "by")
		to = m.clock.now().Add(by.Truncate(time.Microsecond))
	case "back":
		to = m.clock.now().Add(-micros(rapid.SampledFrom([]int64{1, 1 << 10, 1 << 20, 1 << 25, 1 << 32}).Draw(t, "by")))
	case "retry":
		to = m.last.RetryAt
	case "run":
		to = m.last.RunAt
	case "end": // of a window that tokens were taken from
		if n := len(m.grants); n > 0 {
			h := m.grants[n-1].takes[0]
			to = instant(h.end(m.book[h.account].delay))
		}
	case "month": // until a reservation is settled no more
		if n := len(m.kept); n > 0 {
			to = instant(settleable(m.kept[n-1].takes))
		}
	}
	if to.IsZero() {
		return
	}
	m.clock.set(to.Add(-micros(rapid.Int64Range(0, 1).Draw(t, "less"))))
}

// script does several things in one transaction, in part within savepoints, and reports whether to keep them.
func (m *machine) script(t *rapid.T, at place, depth int) (keep bool) {
	before, settled, kept := maps.Clone(m.book), maps.Clone(m.settled), slices.Clone(m.kept)
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		switch n := rapid.IntRange(0, 9).Draw(t, "step"); {
		case n < 2 && depth < 3:
			m.n["savepoint"]++
			if err := at.savepoint(t.Context(), func(inner place) bool { return m.script(t, inner, depth+1) }); err != nil {
				t.Fatal(err)
			}
		case n < 4:
			m.tick(t)
		default:
			m.operate(t, at)
		}
		m.compare(t, at)
	}
	if keep = rapid.IntRange(0, 2).Draw(t, "keep") > 0; !keep {
		m.n["rollback"]++
		m.book, m.settled = before, settled
		m.kept = unrenewed(kept, m.kept)
	}
	return keep
}

func (m *machine) transaction(t *rapid.T) {
	m.n["transaction"]++
	level := rapid.SampledFrom(levels).Draw(t, "level")
	ctx := t.Context()
	switch rapid.SampledFrom([]string{"InTx", "pgx", "sql"}).Draw(t, "transaction") {
	case "InTx":
		runs := 0
		err := m.l.InTxOptions(ctx, m.pool, pgx.TxOptions{IsoLevel: level}, func(_ context.Context, tx pgx.Tx) error {
			if runs++; runs > 1 {
				t.Fatal("there is nobody to conflict with")
			}
			if !m.script(t, m.inPgx(tx), 0) {
				return errUndo
			}
			return nil
		})
		if err != nil && !errors.Is(err, errUndo) {
			t.Fatal(err)
		}
	case "pgx":
		tx, err := m.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if m.script(t, m.inPgx(tx), 0) {
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
	case "sql":
		isolation := map[pgx.TxIsoLevel]sql.IsolationLevel{pgx.ReadCommitted: sql.LevelReadCommitted,
			pgx.RepeatableRead: sql.LevelRepeatableRead, pgx.Serializable: sql.LevelSerializable}[level]
		tx, err := m.db.BeginTx(ctx, &sql.TxOptions{Isolation: isolation})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if m.script(t, m.inSQL(tx, 0), 0) {
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Whatever is called, in whatever order, through whichever way, by whichever rule, with the clock set forth and back, and
// however much of it is rolled back: the answers are those of the model, and so are the rows.
func TestEveryOperationDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	names := make([]string, 0, len(ways))
	for _, w := range ways {
		names = append(names, w.name)
	}
	n := map[string]int{}

	for range rounds(t, 4) {
		rapid.Check(t, func(t *rapid.T) {
			m := &machine{pool: pool, db: db, clock: newClock(), book: book{}, settled: map[string]int64{}, ways: map[string]verbs{}, n: n}
			if _, err := pool.Exec(t.Context(), `WITH gone AS (DELETE FROM weir_settled) DELETE FROM weir_balance`); err != nil {
				t.Fatal(err)
			}
			open := func(portable bool) *ratelimit.Limiter {
				l, err := ratelimit.New(ratelimit.Config{Portable: portable, Clock: m.clock.now})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			m.l = open(false)
			portable := open(true)
			for _, w := range ways {
				l := m.l
				if w.portable {
					l = portable
				}
				m.ways[w.name] = sqlVerbs{l, db}
				if w.name != "DatabaseSQL" {
					m.ways[w.name] = w.verbs(nil, l, pool)
				}
			}
			for i, rule := range []*rapid.Generator[ratelimit.Rule]{exactRule(), exactRule(), oddRule(), oddRule()} {
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
