package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// upstreamEnv makes this test binary a worker of jobs that call an upstream, and says where that
// is.
const upstreamEnv = "WEIR_FAULTS_UPSTREAM"

const (
	settling kind = "settling" // as the documentation would have it
	apart    kind = "apart"    // settles in a transaction of its own, before that which completes the job
	belated  kind = "belated"  // settles in a transaction of its own, after that
	generous kind = "generous" // gives back twice what was not used
	unpaying kind = "unpaying" // works without the plugin that has each attempt pay
)

const atATime = 10 // jobs of a worker

type callArgs struct {
	ID       string  `json:"id"`
	Key      string  `json:"key"`
	Flowing  bool    `json:"flowing"` // of the limits that flow
	Once     bool    `json:"once"`    // paid for as a job
	Estimate float64 `json:"estimate"`
}

func (callArgs) Kind() string { return "call" }

func (a callArgs) Pays() scheduler.Pays {
	if a.Once {
		return scheduler.PerJob
	}
	return scheduler.PerAttempt
}

// requests are what the job takes: of calls, for its key, and of tokens, for all keys together.
func (a callArgs) requests(tokens float64) (call, used ratelimit.Request) {
	if a.Flowing {
		return flowCalls.Global(), flowTokens.Global().Count(tokens)
	}
	return budgetCalls.For(a.Key), budgetTokens.Global().Count(tokens)
}

// takes are those of its estimate.
func (a callArgs) takes() []take {
	if a.Flowing {
		return []take{{account{"flowCalls", ""}, 1}, {account{"flowTokens", ""}, a.Estimate}}
	}
	return []take{{account{"budgetCalls", a.Key}, 1}, {account{"budgetTokens", ""}, a.Estimate}}
}

// settle works jobs until the process is killed, or whoever started it has ended.
func settle(url, name string, k kind) error {
	ctx := context.Background()
	v := &visitor{url: os.Getenv(upstreamEnv)}
	connect := func(configure func(*pgxpool.Config)) (*pgxpool.Pool, error) {
		cfg, err := pgxpool.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		cfg.MaxConns = 8
		configure(cfg)
		return pgxpool.NewWithConfig(ctx, cfg)
	}
	pool, err := connect(func(*pgxpool.Config) {})
	if err != nil {
		return err
	}
	defer pool.Close()
	own, err := connect(func(cfg *pgxpool.Config) { watchRenewals(cfg, v, name) }) // of the plugin
	if err != nil {
		return err
	}
	defer own.Close()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return err
	}
	w := &settler{pool: pool, limiter: limiter, upstream: v, name: name, kind: k}
	config := &river.Config{
		ID: name, Schema: pool.Config().ConnConfig.RuntimeParams["search_path"], Logger: slog.New(slog.DiscardHandler),
		JobTimeout: 5 * time.Second, RescueStuckJobsAfter: 30 * time.Second, RetryPolicy: atOnce{},
		Queues: map[string]river.QueueConfig{river.QueueDefault: {
			MaxWorkers: atATime, FetchCooldown: 20 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		}},
		Workers: river.NewWorkers(),
	}
	river.AddWorker(config.Workers, w)
	if k != unpaying {
		config = scheduler.New(limiter, scheduler.Config{}).Configure(own, config)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(utterance{Ready: true}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return client.StopAndCancel(ctx)
}

// settler calls the upstream, and then writes down what it was told, settles by that, and completes
// the job: at once.
type settler struct {
	river.WorkerDefaults[callArgs]
	pool     *pgxpool.Pool
	limiter  *ratelimit.Limiter
	upstream *visitor
	name     string
	kind     kind
}

var errUpstream = errors.New("the upstream is out of order")

func (w *settler) Work(ctx context.Context, job *river.Job[callArgs]) error {
	r, ok := scheduler.ReservationOf(job.JobRow)
	if !ok {
		return errors.New("nothing was reserved")
	}
	c := call{Worker: w.name, Job: job.ID, Attempt: job.Attempt, Reservation: r.ID.String(),
		Estimate: job.Args.Estimate}
	if _, err := w.pool.Exec(ctx, `INSERT INTO intent VALUES ($1, $2, $3, $4::text::jsonb)`, c.Job,
		c.Attempt, c.Reservation, string(job.Metadata)); err != nil {
		return fmt.Errorf("insert intent: %w", err)
	}
	body, err := w.upstream.post("/call", c)
	if err != nil {
		return err
	}
	if body == nil {
		return errUpstream
	}
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return err
	}
	w.upstream.reach(answered, c)

	one, tokens := job.Args.requests(a.Used)
	pay := func(tx pgx.Tx, r ratelimit.Reservation) error {
		settled, err := w.limiter.Settle(ctx, tx, r, one, tokens)
		if err == nil && !settled && w.kind == settling {
			err = errors.New("it was settled before")
		}
		return err
	}
	write := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO report VALUES (pg_current_xact_id()::text::bigint, $1, $2, $3, $4)`,
			c.Job, c.Attempt, c.Reservation, a.Used)
		return err
	}
	complete := func(tx pgx.Tx) error {
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	}
	reach := func(p point) func(pgx.Tx) error {
		return func(pgx.Tx) error {
			w.upstream.reach(p, c)
			return nil
		}
	}
	once := func(tx pgx.Tx) error { return pay(tx, r) }

	work := [][]func(pgx.Tx) error{{write, once, reach(settled), complete, reach(completed)}}
	switch w.kind {
	case settling:
		if rand.N(2) == 0 { // the limit's row is locked as shortly as can be
			work[0] = []func(pgx.Tx) error{write, complete, once, reach(settled), reach(completed)}
		}
	case apart:
		work = [][]func(pgx.Tx) error{{once, reach(settled)}, {write, complete, reach(completed)}}
	case belated:
		work = [][]func(pgx.Tx) error{{write, complete, reach(completed)}, {once, reach(settled)}}
	case generous:
		twice := func(tx pgx.Tx) error { return pay(tx, r.Again()) }
		work[0] = []func(pgx.Tx) error{write, once, twice, reach(settled), complete, reach(completed)}
	}
	for i, steps := range work {
		if i > 0 {
			w.upstream.reach(between, c)
		}
		if err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			for _, step := range steps {
				if err := step(tx); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	w.upstream.reach(committed, c)
	return nil
}

// watchRenewals has the plugin's connections tell of each transaction in which a job has paid
// again, when its COMMIT is answered: before the plugin sees the answer, or never.
func watchRenewals(cfg *pgxpool.Config, v *visitor, name string) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &renewals{Conn: conn, commit: func() string { return v.reach(renewed, call{Worker: name}) }}, nil
	}
	cfg.ConnConfig.Tracer = renewalTracer{}
}

type renewalTracer struct{}

// charges is in the statement with which a job at work pays again.
const charges = "coalesce(b.moved, 0) - (greatest(0, $7"

// arm has a connection tell of the next COMMIT, if the statement charges.
func arm(conn *pgx.Conn, sql string) {
	if c, ok := conn.PgConn().Conn().(*renewals); ok && strings.Contains(sql, charges) {
		c.armed = true
	}
}

func (renewalTracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	arm(conn, q.SQL)
	return ctx
}

func (renewalTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (renewalTracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		arm(conn, q.SQL)
	}
	return ctx
}

func (renewalTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (renewalTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// renewals is a connection that, once armed, tells of the next COMMIT that was answered. Cut then,
// it ends before the answer.
type renewals struct {
	net.Conn
	commit func() string
	armed  bool
	ready  bytes.Buffer // read from the server, not by the client
	over   bool
}

func (c *renewals) Read(b []byte) (int, error) {
	if c.ready.Len() == 0 {
		switch {
		case c.over:
			return 0, io.EOF
		case !c.armed:
			return c.Conn.Read(b)
		}
		if err := c.message(); err != nil {
			return 0, err
		}
	}
	return c.ready.Read(b)
}

// message reads one message of the server: see finale.
func (c *renewals) message() error {
	head := make([]byte, 5)
	if _, err := io.ReadFull(c.Conn, head); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	if _, err := io.ReadFull(c.Conn, body); err != nil {
		return err
	}
	if head[0] == 'C' && bytes.Equal(body, []byte("COMMIT\x00")) {
		c.armed = false
		if c.commit() == cut {
			c.over = true
			return io.EOF
		}
	}
	c.ready.Write(head)
	c.ready.Write(body)
	return nil
}
