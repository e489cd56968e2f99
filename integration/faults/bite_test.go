package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// broken is an application with a mistake.
type broken struct {
	*app
	mistake func(a *app, ctx context.Context, o *op) error
}

func (b broken) do(ctx context.Context, o *op) error { return b.mistake(b.app, ctx, o) }

// The audit finds every mistake that it is there for, under the same load and the same faults.
func TestTheAuditFindsBrokenApplications(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 25 }) // the mistakes take a second connection
	p := newProxy(t, f)
	far := f.app.over(f.connect(t, p.through, verbatim))
	cut := func(m mode) func(t *testing.T) {
		return func(t *testing.T) {
			p.mode.Store(m)
			f.callers.await(t, granted, 30)
			p.mode.Store(calm)
		}
	}
	pelt := func(t *testing.T) { f.pelt(t, 80, cancelOne) }

	for _, c := range []struct {
		name    string
		app     *app
		mistake func(a *app, ctx context.Context, o *op) error
		inject  func(t *testing.T)
		want    string // of one of the violations
	}{
		{"TakesBySelectThenUpdateOutsideOfTheTransaction", f.app, selectThenUpdate, func(t *testing.T) { f.callers.await(t, granted, 200) },
			"work was admitted for"},
		{"TakesOutsideOfTheTransaction", f.app, takeOutside, pelt, "work was admitted for"},
		{"InsertsTheJobOutsideOfTheTransaction", f.app, jobOutside, pelt, "1 jobs for 0 reservations"},
		{"InsertsTheWorkOutsideOfTheTransaction", f.app, workOutside, pelt, "neither whole nor absent"},
		{"TakesUnknownForDone", far, unknownIsDone, cut(beforeCommit), "its caller got nil, and there is nothing of it"},
		{"TakesUnknownForNotDone", far, unknownIsFailed, cut(afterCommit), "its caller got an error"},
		{"RunsAgainIfUnknown", far, unknownIsAgain, cut(afterCommit), "neither whole nor absent"},
		{"TakesAnErrorForADenial", f.app, errorIsDenied, pelt, "denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, rounds := 0, 0
			var violations []string
			for ; found == 0 && rounds < 20; rounds++ { // a fault hits callers at random
				f.callers = newCallers()
				prefix := fmt.Sprint(c.name, rounds)
				f.load = &load{app: broken{c.app, c.mistake},
					desk: &desk{name: prefix, prefix: prefix}, witness: f.callers}
				stop := f.load.start(t.Context())
				t.Cleanup(stop)
				f.callers.await(t, granted, 20)
				c.inject(t)
				stop()
				violations = f.audit(t, c.app.pool)
				for _, v := range violations {
					if strings.Contains(v, c.want) {
						found++
					}
				}
				f.startAfresh(t)
			}
			if found == 0 {
				t.Errorf("in %d rounds no violation says %q; the last had %d: %q", rounds, c.want,
					len(violations), violations)
			} else {
				fmt.Printf("faults: the audit bites: %s: %d violations, %d of them %q, in round %d\n",
					c.name, len(violations), found, c.want, rounds)
			}
		})
	}

	f.callers = newCallers()
	f.load = &load{app: f.app, desk: &desk{name: "sound", prefix: "sound"}, witness: f.callers}
	f.run(t, fault{rounds: 1, hits: []class{canceled}, allowed: []class{stale}, inject: func(t *testing.T, _ *fixture) {
		pelt(t)
	}})
}

// inTx is the sound frame of a mistake.
func (a *app) inTx(ctx context.Context, o *op, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if len(o.Works) == 0 && o.Reserve == nil {
		return a.do(ctx, o)
	}
	return a.limiter.InTx(ctx, a.pool, fn)
}

func selectThenUpdate(a *app, ctx context.Context, o *op) error {
	if len(o.Works) == 0 || o.Reserve != nil {
		return a.do(ctx, o)
	}
	for _, w := range o.Works {
		of := w.Account
		if _, err := a.pool.Exec(ctx, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
			VALUES ($1, $2, $3, now(), $3, 1, 1) ON CONFLICT DO NOTHING`, of.Limit, of.Key,
			allTerms[of.Limit].capacity); err != nil {
			return err
		}
		var value float64
		if err := a.pool.QueryRow(ctx, `SELECT value FROM weir_balance WHERE name = $1 AND key = $2`,
			of.Limit, of.Key).Scan(&value); err != nil {
			return err
		}
		if value < w.Tokens {
			return &ratelimit.DeniedError{Limit: of.Limit, Key: of.Key}
		}
		if _, err := a.pool.Exec(ctx, `UPDATE weir_balance SET value = $3 WHERE name = $1 AND key = $2`,
			of.Limit, of.Key, value-w.Tokens); err != nil {
			return err
		}
	}
	return a.limiter.InTx(ctx, a.pool, func(ctx context.Context, tx pgx.Tx) error {
		return insertWorks(ctx, tx, o)
	})
}

func insertWorks(ctx context.Context, x execer, o *op) error {
	for _, w := range o.Works {
		if err := insertWork(ctx, x, o.ID, w); err != nil {
			return err
		}
	}
	return nil
}

func takeOutside(a *app, ctx context.Context, o *op) error {
	if len(o.Works) == 0 || o.Reserve != nil {
		return a.do(ctx, o)
	}
	if err := granting(a.limiter.Autocommit(a.pool).RateLimit(ctx, requests(o.Works)...)); err != nil {
		return err
	}
	return a.limiter.InTx(ctx, a.pool, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insertWorks(ctx, tx, o), dawdle(ctx, tx))
	})
}

func granting(res ratelimit.Result, err error) error {
	if err != nil {
		return err
	}
	return res.Err()
}

// dawdle gives a fault time to hit the transaction.
func dawdle(ctx context.Context, x execer) error {
	_, err := x.Exec(ctx, `SELECT pg_sleep(0.03)`)
	return err
}

func jobOutside(a *app, ctx context.Context, o *op) error {
	if o.Reserve == nil || len(o.Works) > 0 {
		return a.do(ctx, o)
	}
	return a.inTx(ctx, o, func(ctx context.Context, tx pgx.Tx) error {
		if err := granting(a.limiter.RateLimit(ctx, tx, o.Reserve.request().OrReserve())); err != nil {
			return err
		}
		in, err := a.client.Insert(ctx, jobArgs{o.ID}, nil)
		if err != nil {
			return err
		}
		return errors.Join(insertReservation(ctx, tx, o, time.Time{}, in.Job.ID), dawdle(ctx, tx))
	})
}

func workOutside(a *app, ctx context.Context, o *op) error {
	return a.inTx(ctx, o, func(ctx context.Context, tx pgx.Tx) error {
		if err := insertWorks(ctx, a.pool, o); err != nil {
			return err
		}
		taken := *o
		taken.Works = nil
		if len(o.Works) > 0 {
			if err := granting(a.limiter.RateLimit(ctx, tx, requests(o.Works)...)); err != nil {
				return err
			}
		}
		_, err := a.work(ctx, tx, &taken)
		return err
	})
}

func unknownIsDone(a *app, ctx context.Context, o *op) error {
	err := a.do(ctx, o)
	if errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		return nil
	}
	return err
}

func unknownIsFailed(a *app, ctx context.Context, o *op) error {
	err := a.do(ctx, o)
	if errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		return errors.New("conn closed")
	}
	return err
}

func unknownIsAgain(a *app, ctx context.Context, o *op) error {
	err := a.do(ctx, o)
	for errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		err = a.do(ctx, o)
	}
	return err
}

func errorIsDenied(a *app, ctx context.Context, o *op) error {
	err := a.do(ctx, o)
	if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
		of := o.takes()[0].Account
		return &ratelimit.DeniedError{Limit: of.Limit, Key: of.Key}
	}
	return err
}

// sound is a small set of books that agree, with a record of each kind.
func sound() (*books, map[string]*record) {
	of := func(limit, key string) account { return account{limit, key} }
	soon := time.Unix(1000, 0)
	w1, w2 := take{of("bucket", "k"), 2}, take{of("window", "k"), 50}
	r := take{of("reserved", "k"), 30}
	a := take{of("auto", "a"), 3}
	b := &books{
		balances:     map[account]float64{w1.Account: 58, w2.Account: 0, r.Account: -20, a.Account: 0},
		works:        []entry{{"w", w1}, {"w", w2}},
		reservations: []reservation{{entry: entry{"r", r}, job: 7, runAt: &soon}},
		jobs:         []job{{7, "r", soon.Add(time.Second)}},
	}
	records := map[string]*record{
		"w":       {op: op{ID: "w", Works: []take{w1, w2}}, class: granted},
		"r":       {op: op{ID: "r", Reserve: &r}, class: unknown},
		"a":       {op: op{ID: "a", Auto: []take{a}}, class: open},
		"away":    {op: op{ID: "away", Works: []take{w1}}, class: away},
		"denied":  {op: op{ID: "denied", Works: []take{w2}}, class: denied, bound: w2.Account},
		"unknown": {op: op{ID: "unknown", Reserve: &r}, class: unknown},
	}
	return b, records
}

func TestTheAuditFindsBrokenBooks(t *testing.T) {
	t.Parallel()
	if v, _ := audit(allTerms, first(sound()), second(sound())); len(v) > 0 {
		t.Fatalf("books that agree: %q", v)
	}
	k := account{"bucket", "k"}
	for name, c := range map[string]struct {
		spoil func(b *books, r map[string]*record)
		want  string
	}{
		"TokensGoneForNothing": {func(b *books, _ map[string]*record) {
			b.balances[k] -= 1e-3
		}, "tokens are gone, and work was admitted for 2"},
		"TokensMinted": {func(b *books, _ map[string]*record) {
			b.balances[k] += 1e-3
		}, "tokens are gone, and work was admitted for 2"},
		"AboveCapacity": {func(b *books, _ map[string]*record) { b.balances[account{"bucket", "m"}] = 61 }, "a balance of 61"},
		"BelowTheDebt":  {func(b *books, _ map[string]*record) { b.balances[account{"reserved", "m"}] = -31 }, "a balance of -31"},
		"BalanceLost":   {func(b *books, _ map[string]*record) { delete(b.balances, k) }, "there is no balance"},
		"UnknownLimit":  {func(b *books, _ map[string]*record) { b.balances[account{"other", "k"}] = 0 }, "no such limit"},
		"MoreThanTheCapacity": {func(b *books, _ map[string]*record) {
			b.works[0].Tokens = 61
		}, "work for 61 tokens was admitted, of 60"},
		"WorkTwice": {func(b *books, _ map[string]*record) {
			b.works = append(b.works, b.works[0])
		}, "w: neither whole nor absent"},
		"HalfTheWork": {func(b *books, _ map[string]*record) { b.works = b.works[:1] }, "w: neither whole nor absent"},
		"AllTheWorkLost": {func(b *books, _ map[string]*record) {
			b.works = nil
		}, "w: its caller got nil, and there is nothing of it"},
		"NobodyAsked":       {func(_ *books, r map[string]*record) { delete(r, "w") }, "w: nobody asked for it"},
		"ErrorAndCommitted": {func(_ *books, r map[string]*record) { r["w"].class = away }, "w: its caller got an error"},
		"DeniedAndCommitted": {func(_ *books, r map[string]*record) {
			r["w"].class, r["w"].bound = denied, k
		}, "w: its caller got an error"},
		"ReservationWithoutJob": {func(b *books, _ map[string]*record) { b.jobs = nil }, "r: 0 jobs for 1 reservations"},
		"JobWithoutReservation": {func(b *books, _ map[string]*record) { b.reservations = nil }, "r: 1 jobs for 0 reservations"},
		"JobTwice": {func(b *books, _ map[string]*record) {
			b.jobs = append(b.jobs, job{8, "r", b.jobs[0].due})
		}, "r: 2 jobs for 1 reservations"},
		"JobOfAnother": {func(b *books, _ map[string]*record) { b.jobs[0].id = "w" }, "r: its job 7 is that of w"},
		"JobTooEarly":  {func(b *books, _ map[string]*record) { b.jobs[0].due = time.Unix(999, 0) }, "before its tokens exist"},
		"DeniedWithTokensThere": {func(_ *books, r map[string]*record) {
			r["denied"].op.Works[0], r["denied"].bound = take{k, 58}, k
		}, "denied 58 tokens"},
		"DeniedForAMoment": {func(_ *books, r map[string]*record) { // by a limit without shards
			r["denied"].op.Works[0], r["denied"].bound, r["denied"].again = take{k, 58}, k, true
		}, "denied 58 tokens"},
		"DeniedARoomyShard": {func(_ *books, r map[string]*record) {
			r["denied"].op = op{ID: "denied", Reserve: &take{account{"reserved", "k"}, 1.5}, Shards: 5}
			r["denied"].bound = r["denied"].op.Reserve.Account
		}, "denied 1.5 tokens"},
		"DeniedByAnother": {func(_ *books, r map[string]*record) { r["denied"].bound = k }, "which it did not ask"},
		"AutocommitOfADifferent": {func(b *books, _ map[string]*record) {
			b.balances[account{"auto", "a"}] = 1
		}, "a: neither whole nor absent"},
		"AutocommitLost": {func(b *books, r map[string]*record) {
			delete(b.balances, account{"auto", "a"})
			r["a"].class = granted
		}, "a: its caller got nil"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, r := sound()
			c.spoil(b, r)
			if v, _ := audit(allTerms, b, r); !strings.Contains(strings.Join(v, "\n"), c.want) {
				t.Errorf("found %q, want %q", v, c.want)
			}
		})
	}
}

// A reservation larger than a shard's share is made in parts, and each needs room in its line: also
// if a change of shards has made the share so small.
func TestTheAuditAllowsThatPartsFindNoRoom(t *testing.T) {
	t.Parallel()
	b, r := sound()
	o := op{ID: "denied", Reserve: &take{account{"reserved", "k"}, 1.5}, Shards: 5}
	r["denied"].op, r["denied"].bound = o, o.Reserve.Account
	b.shards = map[account]int{o.Reserve.Account: 8}
	if v, _ := audit(allTerms, b, r); len(v) > 0 {
		t.Errorf("found %q", v)
	}
}

func first(b *books, _ map[string]*record) *books              { return b }
func second(_ *books, r map[string]*record) map[string]*record { return r }

func TestErrorsThatDoNotFitAreFound(t *testing.T) {
	t.Parallel()
	x := fault{hits: []class{away}, allowed: []class{unknown}}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"Fits":        {errors.New("conn closed"), ""},
		"SomethingIs": {errors.New("nil pointer"), `class "unexpected"`},
		"Invalid":     {&ratelimit.InvalidError{}, `class "unexpected"`},
		"Both":        {errors.Join(ratelimit.ErrOutcomeUnknown, ratelimit.ErrDenied), `class "unexpected"`},
		"Conflict":    {&ratelimit.ConflictError{}, `class "conflict"`},
		"Never":       {nil, `no caller met an error of class "away"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := newCallers()
			calls.begin(op{ID: "1"})
			calls.end(resultOf("1", c.err))
			v := strings.Join(calls.senseless(x), "\n")
			if !strings.Contains(v, c.want) || c.want == "" && v != "" {
				t.Errorf("found %q, want %q", v, c.want)
			}
		})
	}
}
