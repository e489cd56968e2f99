package model

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// lawOf says what a rule means for an account.
func lawOf(rule ratelimit.Rule, r ratelimit.Request) law {
	n := rig.NumbersOf(rule)
	w := law{windowed: n.Windowed, rate: n.Rate, capacity: n.Capacity,
		period: n.Period.Microseconds(), reserved: math.Inf(1)}
	var reserved *float64
	switch rule := rule.(type) {
	case ratelimit.TokenBucket:
		reserved = rule.MaxReserved
	case ratelimit.FixedWindow:
		reserved = rule.MaxReserved
		w.start = rule.Start.UnixMicro()
		if rule.Start.IsZero() { // derived from the name and the key in a way that is the library's own
			w.start = rig.WindowEnd(n, r.Rule(rule), rig.Clock().Now()).UnixMicro()
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
			rule = rig.OddRule().Draw(t, "rule")
		} else {
			rule = rig.ExactRule().Draw(t, "rule")
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

// bareAsks are asks of which only the balance and the rule matter.
func bareAsks(asks []ask) []ask {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i] = ask{account: asks[i].account, law: asks[i].law, request: asks[i].request}
	}
	return asks
}

// tick moves the clock, forth more often than back.
func (m *machine) tick(t *rapid.T) {
	m.n["tick"]++
	var to time.Time
	switch rapid.SampledFrom([]string{"on", "on", "on", "on", "on", "back", "back", "retry",
		"retry", "run", "run", "end", "end", "month"}).Draw(t, "tick") {
	case "on":
		period := rig.NumbersOf(rapid.SampledFrom(m.limits).Draw(t, "limit").base).Period
		by := rapid.SampledFrom([]time.Duration{1, 999 * time.Microsecond, period / 16, period / 5,
			period / 2, period, 3 * period}).Draw(t, "by")
		to = m.clock.Now().Add(by.Truncate(time.Microsecond))
	case "back":
		to = m.clock.Now().Add(-rig.Micros(rapid.SampledFrom([]int64{1, 1 << 10, 1 << 20, 1 << 25, 1 << 32}).Draw(t, "by")))
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
	m.clock.Set(to.Add(-rig.Micros(rapid.Int64Range(0, 1).Draw(t, "less"))))
}

// script does several things in one transaction, in part within savepoints, and reports whether to
// keep them.
func (m *machine) script(t *rapid.T, at place, depth int) (keep bool) {
	before, settled, kept := maps.Clone(m.book), maps.Clone(m.settled), slices.Clone(m.kept)
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		switch n := rapid.IntRange(0, 9).Draw(t, "step"); {
		case n < 2 && depth < 3:
			m.n["savepoint"]++
			if err := at.savepoint(t.Context(), func(inner place) bool {
				return m.script(t, inner, depth+1)
			}); err != nil {
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
	level := rapid.SampledFrom(rig.Levels).Draw(t, "level")
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
