package faults

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// never is a period in which nothing flows in while a test runs.
const never = 100_000 * time.Hour

var (
	bucket = ratelimit.MustDefine("bucket",
		ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(60)})
	window   = ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 50, Period: never, Start: time.Unix(0, 0)})
	reserved = ratelimit.MustDefine("reserved", ratelimit.TokenBucket{Rate: 1, Period: never,
		Capacity: ratelimit.Tokens(10), MaxReserved: ratelimit.Tokens(30)})
	auto  = ratelimit.MustDefine("auto", ratelimit.FixedWindow{Rate: 3, Period: never, Start: time.Unix(0, 0)})
	auto2 = ratelimit.MustDefine("auto2", ratelimit.FixedWindow{Rate: 3, Period: never, Start: time.Unix(0, 0)})

	limits = map[string]ratelimit.Limit{"bucket": bucket, "window": window, "reserved": reserved,
		"auto": auto, "auto2": auto2}

	allTerms = map[string]terms{
		"bucket":   {capacity: 60},
		"window":   {capacity: 50},
		"reserved": {capacity: 10, debt: 30},
		"auto":     {capacity: 3, private: true},
		"auto2":    {capacity: 3, private: true},
	}
)

func (t take) request() ratelimit.Request {
	return limits[t.Account.Limit].For(t.Account.Key).Count(t.Tokens)
}

func requests(takes []take) []ratelimit.Request {
	rs := make([]ratelimit.Request, len(takes))
	for i, t := range takes {
		rs[i] = t.request()
	}
	return rs
}

// sharded are the same limits, defined with as many shards.
func sharded(shards int) map[string]ratelimit.Limit {
	s := map[string]ratelimit.Limit{}
	for name, rule := range map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(60)},
		"window": ratelimit.FixedWindow{Rate: 50, Period: never, Start: time.Unix(0, 0)},
		"reserved": ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(10),
			MaxReserved: ratelimit.Tokens(30)},
		"auto":  ratelimit.FixedWindow{Rate: 3, Period: never, Start: time.Unix(0, 0)},
		"auto2": ratelimit.FixedWindow{Rate: 3, Period: never, Start: time.Unix(0, 0)},
	} {
		s[name] = ratelimit.MustDefine(name, rule, ratelimit.Shards(shards))
	}
	return s
}

// requests are those of the op's release, which may have given the limits shards.
func (o *op) requests(takes []take) []ratelimit.Request {
	rs := requests(takes)
	if o.Shards > 1 {
		of := sharded(o.Shards)
		for i, t := range takes {
			rs[i] = of[t.Account.Limit].For(t.Account.Key).Count(t.Tokens)
		}
	}
	return rs
}

// application does the work of an op.
type application interface {
	do(ctx context.Context, o *op) error
}

// app is the application as the documentation would have it.
type app struct {
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	jobs    *scheduler.Jobs
	done    *done
}

// done counts what an application and its operator have done.
type done struct {
	again               atomic.Int64 // transactions that were run once more
	settled             atomic.Int64
	pauses, reshardings atomic.Int64
}

func newApp(pool *pgxpool.Pool, cfg ratelimit.Config) (*app, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Schema: pool.Config().ConnConfig.RuntimeParams["search_path"],
	})
	if err != nil {
		return nil, err
	}
	limiter, err := ratelimit.New(cfg)
	if err != nil {
		return nil, err
	}
	return &app{limiter, pool, client, scheduler.New(limiter, scheduler.Config{}).Jobs(client),
		new(done)}, nil
}

// over is the same application, with the same limiter, on another pool.
func (a *app) over(pool *pgxpool.Pool) *app {
	b := *a
	b.pool = pool
	return &b
}

type jobArgs struct {
	ID string `json:"id"`
}

func (jobArgs) Kind() string { return "reserved_work" }

func (a *app) do(ctx context.Context, o *op) error {
	if len(o.Auto) > 0 {
		res, err := a.limiter.Autocommit(a.pool).RateLimit(ctx, o.requests(o.Auto)...)
		if err != nil {
			return err
		}
		return res.Err()
	}
	runs := 0
	var took []ratelimit.Reservation
	err := a.limiter.InTxOptions(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(o.Level)},
		func(ctx context.Context, tx pgx.Tx) (err error) {
			if runs++; runs > 1 {
				a.done.again.Add(1)
			}
			took, err = a.work(ctx, tx, o)
			return err
		})
	if err == nil && o.Settles && a.settle(ctx, o, took) == nil {
		a.done.settled.Add(1)
	}
	return err
}

// settle settles what an op took for what it has used.
func (a *app) settle(ctx context.Context, o *op, took []ratelimit.Reservation) error {
	return a.limiter.InTx(ctx, a.pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, r := range took {
			var used []ratelimit.Request
			for _, t := range r.Takes {
				used = append(used, limits[t.Limit].For(t.Key).Count(t.Count*o.Used))
			}
			settle := func() (bool, error) { return a.limiter.Settle(ctx, tx, r, used...) }
			if o.Used == 0 {
				settle = func() (bool, error) { return a.limiter.Release(ctx, tx, r) }
			}
			if settled, err := settle(); err != nil || !settled {
				return fmt.Errorf("settled: %v: %w", settled, err)
			}
		}
		for _, table := range []string{"work", "reservation"} {
			if _, err := tx.Exec(ctx, `UPDATE `+table+` SET tokens = tokens * $2 WHERE id = $1`, o.ID, o.Used); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) work(ctx context.Context, tx pgx.Tx, o *op) (took []ratelimit.Reservation, err error) {
	if len(o.Works) > 0 {
		res, err := a.limiter.RateLimit(ctx, tx, o.requests(o.Works)...)
		if err != nil {
			return nil, err
		}
		if !res.OK {
			return nil, res.Err()
		}
		took = append(took, res.Reservation())
		for _, w := range o.Works {
			if err := insertWork(ctx, tx, o.ID, w); err != nil {
				return nil, err
			}
		}
	}
	if o.Reserve != nil {
		in, err := a.jobs.InsertTx(ctx, tx, jobArgs{o.ID}, nil, o.requests([]take{*o.Reserve})[0].OrReserve())
		if err != nil {
			return nil, err
		}
		if !in.OK {
			return nil, in.Err()
		}
		return append(took, in.Reservation()), insertReservation(ctx, tx, o, in.RunAt, in.Job.Job.ID)
	}
	return took, nil
}

const tables = `
CREATE TABLE work (id text NOT NULL, limit_name text NOT NULL, key text NOT NULL, tokens float8 NOT NULL);
CREATE TABLE reservation (id text NOT NULL, limit_name text NOT NULL, key text NOT NULL, tokens float8 NOT NULL,
	run_at timestamptz, job bigint NOT NULL);
CREATE TABLE let_go (limit_name text NOT NULL, key text NOT NULL, tokens float8 NOT NULL)` // without constraints: to find what is wrong is the audit's part

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func insertWork(ctx context.Context, x execer, id string, t take) error {
	_, err := x.Exec(ctx, `INSERT INTO work VALUES ($1, $2, $3, $4)`, id, t.Account.Limit, t.Account.Key, t.Tokens)
	if err != nil {
		return fmt.Errorf("insert work: %w", err)
	}
	return nil
}

func insertReservation(ctx context.Context, x execer, o *op, runAt time.Time, job int64) error {
	var at *time.Time
	if !runAt.IsZero() {
		at = &runAt
	}
	t := o.Reserve
	_, err := x.Exec(ctx, `INSERT INTO reservation VALUES ($1, $2, $3, $4, $5, $6)`, o.ID,
		t.Account.Limit, t.Account.Key, t.Tokens, at, job)
	if err != nil {
		return fmt.Errorf("insert reservation: %w", err)
	}
	return nil
}

// desk thinks of what to ask for. It moves to a new key when one is used up, and now and then asks
// an old one again.
type desk struct {
	name   string // of the keys, shared by several processes
	prefix string // of the ids, its own
	hot    bool   // one key at a time, and every op takes from it
	ids    atomic.Int64
	page   [3]atomic.Int64 // of bucket, window, reserved

	operated atomic.Int64 // the page of reserved whose shards were changed last, and one
}

var pages = [3]string{"bucket", "window", "reserved"}

func (d *desk) next() op {
	o := op{ID: fmt.Sprintf("%s-%d", d.prefix, d.ids.Add(1))}
	if !d.hot {
		o.Level = []string{"", "", "", string(pgx.ReadCommitted), string(pgx.RepeatableRead)}[rand.N(5)]
	}
	switch kind := rand.N(7); {
	case kind == 0 && !d.hot:
		o.Level = ""
		o.Auto = []take{{account{"auto", o.ID}, d.count()}}
		if rand.N(2) == 0 {
			o.Auto = append(o.Auto, take{account{"auto2", o.ID}, d.count()})
		}
	case kind <= 1:
		o.Works = []take{d.take(0)}
	case kind == 2:
		o.Works = []take{d.take(1)}
	case kind == 3:
		o.Works = []take{d.take(1), d.take(0)}
	case kind == 4:
		o.Works = []take{d.take(0)}
		t := d.take(2)
		o.Reserve = &t
	default:
		t := d.take(2)
		o.Reserve = &t
	}
	return o
}

func (d *desk) count() float64 { return float64(1+rand.N(6)) / 2 }

func (d *desk) take(i int) take {
	page := d.page[i].Load()
	if !d.hot && page > 0 && rand.N(10) == 0 {
		page = rand.N(page)
	}
	return take{account{pages[i], fmt.Sprintf("%s-%d", d.name, page)}, d.count()}
}

// turn moves on from a key that is used up.
func (d *desk) turn(used account) {
	i := slices.Index(pages[:], used.Limit)
	if i < 0 {
		return
	}
	page := d.page[i].Load()
	if used.Key == fmt.Sprintf("%s-%d", d.name, page) {
		d.page[i].CompareAndSwap(page, page+1)
	}
}
