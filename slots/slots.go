package slots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/ratelimit"
)

// Config configures [Slots]. The zero Config uses the defaults.
type Config struct {
	// TTL is how long a slot is held without a renewal: after a process has died, or while it
	// cannot reach the database. Slots are renewed three times in each TTL. Default: 30 seconds; at
	// least a second, at most a day.
	TTL time.Duration

	// Schema is the Postgres schema with Weir's tables, quoted as needed. Default: whatever the
	// connection's search_path finds.
	Schema string

	// Logger gets failed renewals and lost slots. Default: [slog.Default].
	Logger *slog.Logger

	// Clock replaces the database's clock, for tests that need to set it. Renewals, and the loss of
	// a slot in this process, still go by the process's own clock. Default: the database's.
	Clock func() time.Time
}

// Slots hands out slots, and renews those that are held in this process. It is safe for concurrent
// use, and one for each process and pool is enough: then all callers of a key wait in one queue.
//
// Calls are transactions of their own, as a slot outlives transactions. Each takes a connection of
// the pool for the time of a round trip, and so do renewals: if the work holds all connections of
// the pool for longer than TTL, the slots are lost. Never wait for a slot while holding a
// connection of the same pool.
type Slots struct {
	pool     *pgxpool.Pool
	sql      statements
	ttl      time.Duration
	now      func() time.Time
	logger   *slog.Logger
	ctx      context.Context // of renewals
	stop     context.CancelFunc
	closing  chan struct{} // closed by Close
	passes   time.Duration
	everyone sync.WaitGroup       // what Close waits for
	turns    atomic.Uint64        // numbers the calls in the order in which they came
	spread   atomic.Pointer[bool] // what isSpread has found out

	mu      sync.Mutex
	held    map[*slot]bool
	lines   map[want]*line
	timer   *time.Timer // of the next renewal
	armed   bool        // timer is set, or tick runs
	failing bool        // the last renewal failed
	closed  bool
	stopped bool
	empty   chan struct{} // closed when nothing is held any more; nil unless Close waits for it
}

// New makes Slots over a pool. It does not touch the database. Close it before the pool.
func New(pool *pgxpool.Pool, cfg Config) (*Slots, error) {
	switch {
	case pool == nil:
		return nil, &ratelimit.InvalidError{Field: "pool", Value: nil, Want: "an open pool"}
	case cfg.TTL != 0 && (cfg.TTL < time.Second || cfg.TTL > 24*time.Hour):
		return nil, &ratelimit.InvalidError{Field: "slots.Config.TTL", Value: cfg.TTL,
			Want: "a second to a day, or 0 for the default"}
	case where.Unfit(cfg.Schema, 63) != "":
		return nil, &ratelimit.InvalidError{Field: "slots.Config.Schema", Value: cfg.Schema,
			Want: "the name of a schema: at most 63 bytes of UTF-8 without NUL"}
	}
	s := &Slots{
		pool: pool, sql: newStatements(cfg.Schema), ttl: cmp.Or(cfg.TTL, 30*time.Second),
		now:    cfg.Clock,
		logger: cmp.Or(cfg.Logger, slog.Default()), closing: make(chan struct{}), passes: passes,
		held: make(map[*slot]bool), lines: make(map[want]*line),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// TryAcquire takes a slot of each request, or of none, and does not wait. If a limit is full, or
// other callers in this process wait for it, the error is a [*FullError]. It makes one round trip
// for each request, or three on Citus. If a later request is full, slots of the earlier ones are
// held for a moment. A free slot whose row another transaction has locked counts as held, after
// less than a second; on Citus the call waits for it.
//
// Other errors: one that matches [ratelimit.ErrInvalid] for a bad request, or [ErrClosed];
// otherwise the database's, or that of ctx, wrapped. After an error no slot is held. A lost
// connection may leave a slot taken that nobody holds, for TTL at most.
func (s *Slots) TryAcquire(ctx context.Context, requests ...Request) (*Hold, error) {
	return s.take(ctx, requests, false)
}

// Acquire is TryAcquire that waits until there is a slot. Within the process, callers of a key are
// served in the order in which they came. Only the first of them asks the database, every 10 to 250
// milliseconds, and it gets a slot that is released in this process without a round trip. After
// five seconds in one process a slot is released to other processes instead; between processes
// there is no order. A caller that waits holds no connection.
//
// With several requests it holds no slot at first while it waits: it waits for one of them, and
// then tries the others. After as many such tries as there are requests, it waits for one after the
// other, in the order of their names and keys, and keeps the slots that it gets. In each queue its
// place depends on when it came, so it only waits for callers that came before it.
//
// If ctx ends first the error matches that of ctx. What is acquired outlives ctx: see
// [Hold.Context].
func (s *Slots) Acquire(ctx context.Context, requests ...Request) (*Hold, error) {
	return s.take(ctx, requests, true)
}

// Do acquires, runs fn, and releases, whether fn returns or panics. fn's ctx is a [Hold.Context] of
// ctx: it ends when a slot is lost, and fn should then end too. Do returns fn's error. If a slot
// was lost while fn ran, the error also matches [ErrLost], even if fn returned nil. If a slot
// cannot be released, that is logged, as it expires by itself.
func (s *Slots) Do(ctx context.Context, fn func(ctx context.Context) error,
	requests ...Request) (err error) {
	h, err := s.Acquire(ctx, requests...)
	if err != nil {
		return err
	}
	defer func() {
		lost := h.Err()
		if failed := h.Release(ctx); failed != nil {
			s.logger.WarnContext(ctx,
				"slots: a slot could not be released, and will be free after its TTL",
				"error", failed)
		}
		switch {
		case lost == nil:
		case err == nil:
			err = lost
		case !errors.Is(err, ErrLost):
			err = fmt.Errorf("%w: %w", lost, err)
		}
	}()
	return fn(h.Context(ctx))
}

// Held returns how many slots of a limit and key are held, over all processes. It takes none.
func (s *Slots) Held(ctx context.Context, request Request) (n int, err error) {
	w, err := request.resolve()
	if err != nil {
		return 0, err
	}
	p := hand.Place{Name: w.name, Key: w.key}
	held, err := s.count(ctx, []hand.Place{p})
	if err != nil {
		return 0, explain(ctx, err, "count the slots held of", w.place)
	}
	return held[p], nil
}

// Close refuses new calls, and calls that wait, with [ErrClosed], and waits until all slots are
// released. If ctx ends before, it stops all renewals, the contexts of held slots end with
// [ErrLost] as their cause, and the error matches that of ctx. The rows stay for the rest of TTL,
// as the work may not have ended. A second Close only waits.
func (s *Slots) Close(ctx context.Context) error {
	s.mu.Lock()
	again := s.closed
	if !again {
		s.closed = true
		close(s.closing)
	}
	var empty chan struct{}
	if len(s.held) > 0 {
		if s.empty == nil {
			s.empty = make(chan struct{})
		}
		empty = s.empty
	}
	s.mu.Unlock()

	var err error
	if empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
			err = fmt.Errorf("slots: close: %w", ctx.Err())
		}
	}
	if again && err != nil {
		return err
	}
	s.mu.Lock()
	s.stopped = true
	for sl := range s.held {
		s.lose(sl)
	}
	s.mu.Unlock()
	s.stop()
	quiet := make(chan struct{})
	go func() {
		s.everyone.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-ctx.Done():
		err = fmt.Errorf("slots: close: %w", ctx.Err())
	}
	return err
}

// take acquires a slot of each request, or of none. At first it holds nothing while it waits: it
// waits for the request that was full last, and then only tries the others. If other callers wait
// for those, the tries may fail for ever. So once it has waited as often as there are requests, it
// waits for each request, one after the other, and keeps the slots that it gets. All callers do
// that in the order of wants, so no two wait for each other. Its place in every line is set by when
// the call began, so it does not wait long.
func (s *Slots) take(ctx context.Context, requests []Request, patient bool) (*Hold, error) {
	wants, err := resolveAll(requests)
	if err != nil {
		return nil, err
	}
	turn := s.turns.Add(1)
	at := 0
	for waited := 0; ; waited++ {
		keeps := patient && waited >= len(wants)
		if keeps {
			at = 0
		}
		got := make([]*slot, 0, len(wants))
		full := -1
		for k := range wants {
			i := k
			switch { // the request at the index at goes first
			case k == 0:
				i = at
			case k <= at:
				i = k - 1
			}
			var sl *slot
			sl, err = s.one(ctx, s.pool.AcquireFunc, &wants[i], turn, keeps || patient && k == 0)
			if err != nil {
				full = i
				break
			}
			got = append(got, sl)
		}
		if full < 0 {
			return s.hold(got), nil
		}
		back := s.release(ctx, got)
		if !errors.Is(err, ErrFull) || !patient {
			if back != nil {
				err = fmt.Errorf("%w; the other slots could not be released: %w", err, back)
			}
			return nil, err
		}
		at = full
	}
}
