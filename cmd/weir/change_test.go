package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	if got := weir(t, pool, "migrate").ok(t).out; !strings.Contains(got, "is at version 1 now; it was at 0.") {
		t.Error(got)
	}
	if got := weir(t, pool, "migrate").ok(t).out; !strings.Contains(got, "nothing to do") {
		t.Error(got)
	}
	exec(t, pool, `DROP SCHEMA IF EXISTS "Weir's" CASCADE`)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS "Weir's" CASCADE`); err != nil {
			t.Error(err)
		}
	})
	var did struct {
		Schema   string
		From, To int
	}
	weir(t, pool, "migrate", "--schema", "Weir's", "--json").ok(t).json(t, &did)
	if did.Schema != "Weir's" || did.From != 0 || did.To != 1 {
		t.Errorf("%+v", did)
	}
	weir(t, pool, "limits", "--schema", "Weir's").ok(t)
}

// A balance is changed by the rule that its row has: what a program finds then is what it would
// have done.
func TestChangesOfABalance(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.TokenBucket{Rate: 100, Period: never, Capacity: ratelimit.Tokens(200)}
	window := ratelimit.FixedWindow{Rate: 10, Period: never}
	for name, r := range map[string]ratelimit.Request{
		"a bucket": ratelimit.MustDefine("l", bucket).For("k"),
		"a window": ratelimit.MustDefine("l", window).For("k"),
		"no key":   ratelimit.MustDefine("l", bucket).Global(),
		"shards":   ratelimit.MustDefine("l", bucket, ratelimit.Shards(4)).For("k"),
		"odd parts": ratelimit.MustDefine("l",
			ratelimit.TokenBucket{Rate: 100.0 / 3, Period: never}, ratelimit.Shards(7)).For("k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			key := "k"
			if name == "no key" {
				key = ""
			}
			full := left(t, pool, r).Value
			take(t, pool, r.Count(full).OrReserve())
			take(t, pool, r.Count(5).OrReserve())
			take(t, pool, ratelimit.MustDefine("l", bucket).For("other").Count(3))

			var before, b map[string]any
			weir(t, pool, "show", "l", key, "--json").ok(t).json(t, &before)
			weir(t, pool, "pause", "l", key, "1h30m", "--json").ok(t).json(t, &b)
			if s := left(t, pool, r); time.Until(s.PausedUntil) < 80*time.Minute || s.Value > -4.9 {
				t.Errorf("paused: %+v", s)
			}
			weir(t, pool, "resume", "l", key).ok(t)
			if s := left(t, pool, r); !s.PausedUntil.IsZero() || s.Value > -4.9 {
				t.Errorf("resumed: %+v", s)
			}
			weir(t, pool, "reset", "l", key).ok(t)
			if s := left(t, pool, r); s.Value != full {
				t.Errorf("reset: %+v", s)
			}
			b = nil
			weir(t, pool, "show", "l", key, "--json").ok(t).json(t, &b)
			for _, name := range []string{"capacity", "rate", "period", "windowed", "shards"} {
				if b[name] != before[name] {
					t.Errorf("%s was %v and is %v", name, before[name], b[name])
				}
			}
			if s := left(t, pool, ratelimit.MustDefine("l", bucket).For("other")); s.Value > 197.1 {
				t.Errorf("another key: %+v", s)
			}
		})
	}
}

// Where the tables are distributed, the shards of a limit without keys are elsewhere.
func TestALimitOfACluster(t *testing.T) {
	cluster(t)
	t.Parallel()
	pool := pgtest.Pool(t)
	l, err := ratelimit.New(ratelimit.Config{Citus: true})
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 100, Period: never}, ratelimit.Shards(4))
	auto := l.Autocommit(pool)
	if err := auto.Consume(t.Context(), limit.Global().Count(90)); err != nil {
		t.Fatal(err)
	}
	rows := count(t, pool)
	weir(t, pool, "reset", "hot", "").ok(t)
	if s, err := auto.Value(t.Context(), limit.Global()); err != nil || s.Value != 100 || count(t, pool) != rows {
		t.Errorf("%+v, %v, %d rows, there were %d", s, err, count(t, pool), rows)
	}
	if err := auto.Consume(t.Context(), limit.Global().Count(90)); err != nil {
		t.Fatal(err)
	}
	weir(t, pool, "reset", "--key", "none").fails(t, exitFailed, `no limit has a balance of key "none"`)
	weir(t, pool, "prune").ok(t)
}

func count(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAShadowIsChanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	shadow := ratelimit.MustDefine("l", ratelimit.TokenBucket{Rate: 10, Period: never}, ratelimit.Shadow())
	take(t, pool, shadow.For("k").Count(8))
	weir(t, pool, "reset", "l (shadow)", "k").ok(t)
	if s := left(t, pool, shadow.For("k")); s.Value != 10 {
		t.Errorf("%+v", s)
	}
}

func TestAKeyIsResetInAllLimits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a := ratelimit.MustDefine("a", ratelimit.TokenBucket{Rate: 10, Period: never})
	b := ratelimit.MustDefine("b", ratelimit.FixedWindow{Rate: 10, Period: never}, ratelimit.Shards(3))
	take(t, pool, a.For("k").Count(9), b.For("k").Count(9), a.For("kk").Count(9))
	var all []map[string]any
	weir(t, pool, "reset", "--key", "k", "--json").ok(t).json(t, &all)
	if len(all) != 2 || all[0]["value"] != 10.0 || all[1]["value"] != 10.0 {
		t.Error(all)
	}
	if left(t, pool, a.For("k")).Value != 10 || left(t, pool, b.For("k")).Value != 10 ||
		left(t, pool, a.For("kk")).Value > 2 {
		t.Error("not what was to be reset")
	}
	weir(t, pool, "reset", "--key", "none").fails(t, exitFailed, `no limit has a balance of key "none"`)
}

func TestWhatIsNotThereIsNotChanged(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	weir(t, pool, "reset", "l", "k").fails(t, exitFailed, `no limit "l" has a balance`, "there are none")
	window := ratelimit.MustDefine("l", ratelimit.FixedWindow{Rate: 10, Period: never})
	take(t, pool, window.For("k"))
	weir(t, pool, "reset", "l", "kk").fails(t, exitFailed, "never used")
	weir(t, pool, "resume", "l", "kk").fails(t, exitFailed, "never used")
	weir(t, pool, "pause", "m", "k", "1h").fails(t, exitFailed, "there are l")
	for _, d := range []string{"-1s", "0s", "10000h"} {
		weir(t, pool, "pause", "l", "k", "--", d).fails(t, exitUsage, "duration of the pause")
	}
	// But a key may be closed before it is used.
	weir(t, pool, "pause", "l", "kk", "1h").ok(t)
	if s := left(t, pool, window.For("kk")); time.Until(s.PausedUntil) < 50*time.Minute || s.Value != 10 {
		t.Errorf("%+v", s)
	}
	var shown map[string]any
	weir(t, pool, "show", "l", "kk", "--json").ok(t).json(t, &shown)
	if shown["windowed"] != true || shown["rate"] != 10.0 {
		t.Errorf("the rule is not that of the others: %v", shown)
	}
	exec(t, pool, `UPDATE weir_balance SET rate = 0`)
	weir(t, pool, "reset", "l", "k").fails(t, exitFailed, "make no balance", "ResetRateLimit")
}

func TestPrune(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool,
		`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 5, now() - interval '1 hour', 10, 10, CASE WHEN i > 40 THEN 1000 ELSE 1e15 END
		FROM generate_series(1, 2345) AS i`)
	exec(t, pool, `INSERT INTO weir_settled VALUES (gen_random_uuid(), now() - interval '1 hour', 'k'), (gen_random_uuid(), now() + interval '1 hour', 'k')`)
	exec(t, pool,
		`INSERT INTO weir_slot (until, holder, slot, name, key) SELECT now() + (i - 2) * interval '1 hour', gen_random_uuid(), i, 's', ''
		FROM generate_series(0, 3) AS i`)
	var did struct {
		Looked, Deleted, Slots, Settled int64
		Complete                        bool
	}
	r := weirAs(t, pool, terminal, "prune", "--json", "--batch", "100", "--share", "1")
	r.json(t, &did)
	if r.code != 0 || did.Looked != 2345 || did.Deleted != 2305 || did.Slots != 3 ||
		did.Settled != 1 || !did.Complete || !strings.Contains(r.err,
		"looked at 100") {
		t.Errorf("%+v, %+v", did, r)
	}
	is(t, weir(t, pool, "prune").ok(t).out, "Looked at 40 balances, deleted 0 of them, 0 slots and 0 settlements.\n")
	weir(t, pool, "prune", "--share", "2").fails(t, exitUsage, "Share")
	weir(t, pool, "prune", "--batch", "-1").fails(t, exitUsage, "Batch")
}

// stopping is a context that ends when something is written.
type stopping struct {
	strings.Builder
	stop func()
}

func (s *stopping) Write(p []byte) (int, error) {
	s.stop()
	return s.Builder.Write(p)
}

// Ctrl-C ends it with what was done so far.
func TestPruneIsInterrupted(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT 'l', i, 5, now() - interval '1 hour', 10, 10, 1000 FROM generate_series(1, 300) AS i`)
	e, out, _ := newEnv(map[string]string{"DATABASE_URL": pgtest.URL(t, pool)})
	terminal(e)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	progress := &stopping{stop: stop}
	e.err = progress
	if code := run(ctx, e, []string{"prune", "--batch", "100"}); code != exitFailed {
		t.Error(code)
	}
	if !strings.Contains(progress.String(), "interrupted: ") ||
		out.String() != "Looked at 100 balances, deleted 100 of them, 0 slots "+
			"and 0 settlements.\n" {
		t.Errorf("%s\n%s", out, progress)
	}
}

type args struct{}

func (args) Kind() string { return "reply" }

func TestExplain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	weir(t, pool, "explain", "1").fails(t, exitFailed, "--river-schema")
	l, client := withRiver(t, pool)
	weir(t, pool, "explain", "1").fails(t, exitFailed, "there is no job 1")
	jobs := scheduler.New(l, scheduler.Config{Jitter: -1}).Jobs(client)
	chat := ratelimit.MustDefine("chat", ratelimit.TokenBucket{Rate: 10, Period: never})
	insert := func() {
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			in, err := jobs.InsertTx(t.Context(), tx, args{}, nil, chat.For("acme").Count(10).OrReserve())
			return errors.Join(err, in.Err())
		}); err != nil {
			t.Fatal(err)
		}
	}
	insert()
	insert()
	is(t, weir(t, pool, "explain", "1").ok(t).out, "Job 1 (reply) is available, and waits for no tokens and no slot.\n")
	got := weir(t, pool, "explain", "2").ok(t).out
	if !strings.Contains(got, "Job 2 (reply) is blocked by chat of acme until 20") ||
		!strings.Contains(got, "of 10\n") {
		t.Error(got)
	}
	var a struct {
		Job         int64
		Kind, State string
		ScheduledAt time.Time `json:"scheduled_at"`
		Waits       bool
		Paused      bool
		Limit, Key  string
		Until       time.Time
		Balance     map[string]any
	}
	weir(t, pool, "explain", "2", "--json").ok(t).json(t, &a)
	if a.Job != 2 || !a.Waits || a.Limit != "chat" || a.Key != "acme" ||
		time.Until(a.Until) < never-time.Hour || a.Balance["value"].(float64) > -9.9 {
		t.Errorf("%+v", a)
	}
	// A pause that begins now puts it off.
	was := a.Until
	weir(t, pool, "pause", "chat", "acme", "1h").ok(t)
	weir(t, pool, "explain", "2", "--json").ok(t).json(t, &a)
	if by := a.Until.Sub(was); by < time.Hour-time.Second || by > time.Hour+time.Second || !a.Paused {
		t.Errorf("it is put off by %v: %+v", by, a)
	}
	if got := weir(t, pool, "explain", "2").ok(t).out; !strings.Contains(got,
		"is held up by a pause by chat of acme until 20") {
		t.Error(got)
	}
}
