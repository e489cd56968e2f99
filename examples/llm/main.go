// Llm shows an application that calls a language model on a budget. Some hundreds of messages of
// several tenants come in at once; each is saved together with the tokens that its answer may need,
// taken or reserved ahead, and with the River job that will ask for the answer when they exist.
// Most answers need less: the worker settles what was used, in the transaction that saves the
// answer, and those who wait in line come earlier by the rest. So the budget is used up, though
// more is reserved than used, and never exceeded.
//
//	go run ./examples/llm
//
// The API is a stand-in within the program, which keeps an exact log of its own and answers 429
// beyond its limits. Set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, and the flags -tpm, -rpm
// and -minute to what it allows, to use a real one. Postgres is found or downloaded: see
// internal/test/pgserver.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/examples/llm/standin"
	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func main() {
	var o options
	flag.IntVar(&o.requests, "requests", 500, "how many messages come in")
	flag.IntVar(&o.budget.tokens, "tpm", 20_000, "tokens that the API allows in a minute")
	flag.IntVar(&o.budget.requests, "rpm", 400, "requests that the API allows in a minute")
	flag.DurationVar(&o.budget.minute, "minute", 5*time.Second, "how long the API's minute is")
	flag.DurationVar(&o.within, "within", 90*time.Second, "give up after this time")
	flag.IntVar(&o.shards, "shards", 1, "how many rows the limit of the tokens is spread over")
	flag.IntVar(&o.greedy, "greedy", 120,
		"how many messages a greedy tenant then queues beside a modest one, on a fair line; 0: none")
	flag.BoolVar(&o.plain, "plain", false,
		"let River alone start the reserved calls, to see the difference")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, newProgress(os.Stdout), o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "llm:", err)
		os.Exit(1)
	}
}

type options struct {
	requests int
	budget   budget
	within   time.Duration
	shards   int
	greedy   int
	plain    bool
}

// lined tells whether a fair line is shown: not with shards, and not if River alone starts jobs, as
// it starts none that waits for its turn.
func (o options) lined() bool { return o.greedy > 0 && o.shards == 1 && !o.plain }

func run(ctx context.Context, p *progress, o options) (err error) {
	if o.requests < 1 || o.budget.minute < time.Second || o.shards < 1 ||
		o.budget.tokens < 2*largest*o.shards || o.budget.requests < 10 {
		return fmt.Errorf("want -requests and -shards above 0, -minute of 1s or more, -tpm of %d or more for each shard, -rpm of 10 or more",
			2*largest)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.within,
		fmt.Errorf("not done within %v (-within)", o.within))
	defer cancel()
	_, _ = fmt.Fprintf(p.out, shows+"\n", o.requests)

	server, err := pgserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	s, err := open(ctx, server.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	base := os.Getenv("OPENAI_BASE_URL")
	load := func() float64 { return -1 }
	var log *standin.Log
	if base == "" {
		log = standin.NewLog(o.budget.minute, o.budget.tokens, o.budget.requests)
		api, err := standin.Start(log, rand.Uint64())
		if err != nil {
			return err
		}
		defer func() { _ = api.Stop() }()
		base = api.BaseURL()
		load = func() float64 { return log.Load(time.Now()) }
	}
	_, _ = fmt.Fprintf(p.out,
		"%d messages of %d tenants for an API that allows %d tokens and %d requests in %v\n",
		o.requests, len(tenants), o.budget.tokens, o.budget.requests, o.budget.minute)
	if err := serve(ctx, p, o, s, base, load, log); err != nil {
		return err
	}
	last := tryNext
	if o.plain {
		last = tryNextPlain
	}
	_, _ = fmt.Fprintf(p.out, "\n%s\n", last)
	return nil
}

// The first line of the demo, and its last.
const (
	shows = "You will see %d calls to a language model on a budget: each reserves tokens with its River job, " +
		"starts when they exist, and settles what it used."
	tryNext = "Try next: go run ./examples/llm -plain (River alone starts the jobs, seconds late), " +
		"make demo/playground (limits in the browser), docs/llm.md (how it is written)."
	tryNextPlain = "Try next: make demo (the same on clients that Weir has configured), docs/llm.md (how it is written)."
)

// serve is the application: a limiter, a River client that works jobs, and the messages that come
// in.
func serve(ctx context.Context, p *progress, o options, s *store, base string, load func() float64,
	log *standin.Log) error {
	limits, err := define(o.budget, o.shards)
	if err != nil {
		return err
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	httpClient := &http.Client{Timeout: time.Minute,
		Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	defer httpClient.CloseIdleConnections()
	cfg := scheduler.Config{Jitter: -1} // tokens that come one by one need none
	if o.lined() {
		cfg.Lines = []scheduler.Line{{Limit: limits.chatTokens}}
	}
	sched := scheduler.New(limiter, cfg)
	worker := &replyWorker{store: s, limiter: limiter, sched: sched, limits: limits, broken: cancel,
		client: &client{
			base: base, key: os.Getenv("OPENAI_API_KEY"),
			model: cmp.Or(os.Getenv("OPENAI_MODEL"), "gpt-4o-mini"), http: httpClient,
		}}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	config := &river.Config{
		Logger:  quiet(),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 50}},
		Schema:  s.schema,
		Workers: workers,
	}
	if !o.plain {
		config = sched.Configure(s.pool, config)
	}
	riverClient, err := river.NewClient(riverpgxv5.New(s.pool), config)
	if err != nil {
		return err
	}
	if err := riverClient.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer stopRiver(riverClient)

	messages := &submitter{store: s, limiter: limiter, jobs: sched.Jobs(riverClient),
		limits: limits}
	answer := func(total int, submit func() error) error { // until all are answered
		submitted := make(chan error, 1)
		go func() {
			err := submit()
			if err != nil {
				cancel(err) // nothing to wait for
			}
			submitted <- err
		}()
		err := watch(ctx, p, s, total, worker.refused.Load, load,
			func(ctx context.Context) (string, error) {
				return next(ctx, limiter, s, messages)
			})
		if err != nil {
			cancel(err)
			<-submitted
			return err
		}
		return <-submitted
	}
	if err := answer(o.requests, func() error {
		return messages.submit(ctx, o.requests)
	}); err != nil {
		return err
	}
	sum, err := summarize(ctx, s, o.budget, limits, messages.denied.Load(), log)
	if err != nil {
		return err
	}
	if o.lined() {
		_, _ = fmt.Fprintf(p.out,
			"now a fair line: a greedy tenant queues %d messages, a modest one comes behind\n",
			o.greedy)
		err := answer(o.requests+o.greedy+modestMessages, func() error {
			return messages.inLine(ctx, o.greedy)
		})
		if err != nil {
			return err
		}
	}
	if err := sum.end(ctx, s, worker.refused.Load()); err != nil {
		return err
	}
	sum.print(p)
	return nil
}

func stopRiver(c *river.Client[pgx.Tx]) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = c.StopAndCancel(ctx) // what is left of the work goes with the schema
}
