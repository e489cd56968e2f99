package riverjob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/wake"
	"github.com/weir-go/weir/internal/pgerr"
)

const (
	// RoundEvery is how often the jobs that wait are looked at.
	RoundEvery = time.Second

	// Patience is how long the database may take.
	Patience = 10 * time.Second

	mostWakes = 5000 // that are remembered; River's poll finds the others
)

// Horizon is how far ahead a job that waits may be available already. River's fetch compares
// scheduled_at with the database's clock, so no client starts it early; and no leader has to
// promote it, which after the loss of a leader takes 14 s. Each fetch walks all rows that are
// available and not due, so their number is bounded, too.
const Horizon = 25 * time.Second

// MostAvailable is how many reservations a process makes available ahead of time as it inserts
// them, and among how many jobs, of those due next, a round does. BenchmarkWaitingJobs tells what
// so many cost River's fetch.
const MostAvailable = 600

// Client is what the rooms of one River client share.
type Client struct {
	Store
	Pool   *pgxpool.Pool
	Holder string      // of its turns and lines: a UUID
	Waker  *wake.Waker // of jobs that this process knows will be due
	logger *slog.Logger
	beyond chan struct{} // is full while a connection is open outside of the pool
}

// NewClient returns the Client of a River client with this pool and logger.
func NewClient(s Store, pool *pgxpool.Pool, logger *slog.Logger) *Client {
	c := &Client{Store: s, Pool: pool, Holder: uuid.NewString(), logger: logger,
		beyond: make(chan struct{}, 1)}
	c.Waker = wake.New(c.wake, mostWakes)
	return c
}

// Warn logs what went wrong in the background. After the pool was closed nothing is left to do
// there.
func (c *Client) Warn(err error, what string, args ...any) {
	if err != nil && !PoolClosed(err) {
		c.logger.Warn("scheduler: "+what, append(args, "error", err)...)
	}
}

// PoolClosed reports whether an error says that the pool was closed.
func PoolClosed(err error) bool { return strings.Contains(err.Error(), "closed pool") }

// InTx runs fn in a transaction at READ COMMITTED, on a connection of the pool. It may take tokens
// and write jobs: see Whole. Postgres ends the transaction if the client hangs in it: see HangsSQL.
func (c *Client) InTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.Pool, readCommitted, func(tx pgx.Tx) error {
		return fn(Whole(tx))
	})
}

// ConnectedInTx is InTx on a connection of Connected, and without Whole.
func (c *Client) ConnectedInTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return c.Connected(ctx, func(own *pgxpool.Conn) error {
		return pgx.BeginTxFunc(ctx, own, readCommitted, fn)
	})
}

// Briefly has each statement of the transaction wait for d at most if somebody holds a lock: then
// it fails, and IsBlocked reports so.
func (s Store) Briefly(ctx context.Context, tx pgx.Tx, d time.Duration) error {
	b := &pgx.Batch{}
	BrieflyFrom(b, d)
	return tx.SendBatch(ctx, b).Close()
}

// BrieflyFrom is Briefly for the statements of the transaction after those in the batch. Citus
// sends a SET LOCAL to its workers, which hold the locks, only if the first setting says so. It
// does not send what set_config sets. Postgres itself does not know that setting, and accepts it.
func BrieflyFrom(b *pgx.Batch, d time.Duration) {
	b.Queue(`SET LOCAL citus.propagate_set_commands = 'local'`)
	b.Queue(fmt.Sprintf(`SET LOCAL lock_timeout = %d`, d.Milliseconds()))
}

// IsBlocked reports whether err concerns only the balances that were asked for, so that jobs of
// others can go on: somebody held a lock for too long (lock_not_available), or IsDown.
func IsBlocked(err error) bool { return pgerr.State(err) == "55P03" || IsDown(err) }

// IsDown reports whether err says that Citus could not reach a worker: connection_failure, told by
// a coordinator that can be reached itself.
func IsDown(err error) bool { return pgerr.State(err) == "08006" }

// HangsSQL has Postgres end the transaction of a client that hangs in it. Then what it has locked
// is free.
const HangsSQL = `SET LOCAL idle_in_transaction_session_timeout = 5000`

var readCommitted = pgx.TxOptions{BeginQuery: `BEGIN ISOLATION LEVEL READ COMMITTED; ` + HangsSQL}

// Connected runs fn on a connection of the pool. If workers hold all of them, in a middleware of
// their own that keeps a transaction open, they wait for this look before they go on: then fn gets
// a connection of its own. There is one at a time, however many workers there are. A connection
// that is being opened is waited for.
func (c *Client) Connected(ctx context.Context, fn func(c *pgxpool.Conn) error) error {
	for {
		brief, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		own, err := c.Pool.Acquire(brief)
		cancel()
		stat := c.Pool.Stat()
		switch {
		case err == nil:
			defer own.Release()
			return fn(own)
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		case stat.AcquiredConns() == stat.MaxConns():
			return c.onItsOwn(ctx, fn)
		}
	}
}

// onItsOwn runs fn on a connection outside of the pool.
func (c *Client) onItsOwn(ctx context.Context, fn func(c *pgxpool.Conn) error) error {
	select {
	case c.beyond <- struct{}{}:
		defer func() { <-c.beyond }()
	case <-ctx.Done():
		return ctx.Err()
	}
	cfg := c.Pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	own, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer own.Close()
	return own.AcquireFunc(ctx, fn)
}

// Clock is a reading of the database's clock, and when it came.
type Clock struct{ At, Answered time.Time }

// Now is what it reads now.
func (c Clock) Now() time.Time { return c.At.Add(time.Since(c.Answered)) }

// Until is how long it takes until t.
func (c Clock) Until(t time.Time) time.Duration { return t.Sub(c.Now()) }

// Pace has what is done in the background follow each other: one at a time.
type Pace struct {
	under sync.Mutex // way
	began time.Time
}

// Begin runs do in the background, with a context that ends after the limit, unless it is under way
// or began less than gap ago.
func (r *Pace) Begin(gap, limit time.Duration, do func(ctx context.Context)) {
	if !r.under.TryLock() {
		return
	}
	if time.Since(r.began) < gap {
		r.under.Unlock()
		return
	}
	r.began = time.Now()
	go func() {
		defer r.under.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		do(ctx)
	}()
}

// The turns.
const (
	TurnOfRounds = 0 // to look at the jobs that wait
	TurnOfHands  = 1 // to give free slots

	// TurnLasts is for how long one of these turns is taken.
	TurnLasts = 3 * time.Second
)

// turnSQL takes the turn, or keeps it: no row if it is another client's.
//
// $1 River's schema $2 holder $3 for how long, from now on until the time that it answers
// $4 which of the turns $5 what is added to the key
const turnSQL = `INSERT INTO {ours}weir_slot AS s (name, key, slot, holder, until)
VALUES ('weir scheduler', coalesce(nullif($1::text, ''), current_schema()) || $5::text, $4::integer, $2::uuid, now() + $3::interval)
ON CONFLICT (name, key, slot) DO UPDATE SET holder = excluded.holder, until = excluded.until
	WHERE s.holder = excluded.holder
		OR date_part('epoch', excluded.until - s.until) >= date_part('epoch', $3::interval)
RETURNING s.until`

// mostTurnKeys is enough for one of the keys to be on another node of Citus than the first.
const mostTurnKeys = 16

// TakeTurn takes one of the turns, or keeps it. It returns until when: zero if it is another
// client's. In the same round trip it sends what before adds, which may be nil: before it, so that
// the turn's row is not locked while a large answer is sent to a client that may be frozen. While
// the worker of Citus is down that has the turn's row, it takes another row, and calls before anew.
// When the worker is back, two clients may have the turn for as long as it lasts, which does no
// harm.
func (c *Client) TakeTurn(
	ctx context.Context, turn int, before func(b *pgx.Batch),
) (until time.Time, err error) {
	for n := range mostTurnKeys {
		args := []any{c.Schema, c.Holder, TurnLasts, turn, strings.Repeat(" ", n)}
		b := &pgx.Batch{}
		if before != nil {
			before(b)
		}
		until = time.Time{}
		c.Queue(b, turnSQL, args, func() {}, &until)
		if err = c.Pool.SendBatch(ctx, b).Close(); !IsDown(err) {
			break
		}
	}
	return until, err
}

// Insertion travels in the context of an insert of reserved jobs, to the hook of the client.
type Insertion struct {
	clock     Clock
	client    *Client // the hook's
	available int     // jobs that it has made available
}

type insertionKey struct{}

// Inserting returns a context in which reserved jobs are inserted. now is a reading of the
// database's clock.
func Inserting(ctx context.Context, now time.Time) (context.Context, *Insertion) {
	in := &Insertion{clock: Clock{now, time.Now()}}
	return context.WithValue(ctx, insertionKey{}, in), in
}

// FailSQL fails, so that its transaction can only roll back.
const FailSQL = `DO $$ BEGIN RAISE 'the context ended while a job was inserted: this transaction can only roll back'; END $$`

// InsertBegin makes a reserved job that is due soon available at once.
func (c *Client) InsertBegin(ctx context.Context, params *rivertype.JobInsertParams) {
	in, ok := ctx.Value(insertionKey{}).(*Insertion)
	if !ok {
		return
	}
	in.client = c
	if params.State == rivertype.JobStateScheduled && params.ScheduledAt != nil &&
		in.clock.Until(*params.ScheduledAt) < Horizon &&
		c.Waker.Len()+in.available < MostAvailable {
		params.State = rivertype.JobStateAvailable
		in.available++
	}
}

// Inserted has a job woken when it is due.
func (in *Insertion) Inserted(job *rivertype.JobRow) {
	d := in.clock.Until(job.ScheduledAt)
	if d > 0 && in.client != nil && job.State == rivertype.JobStateAvailable {
		in.client.Waker.Add(job.ID, time.Now().Add(d), false)
	} // else the round finds it when its time is near
}

// wakeSQL notifies River of the queues in which jobs are due, as River's inserts do, and says how
// the jobs stand: River fetches when it is notified, and else once a second. Its commit is not
// waited for: a notification that is lost in a crash costs a second.
//
// $1 ids $2 River's schema, ” for the current
const wakeSQL = `WITH job AS (
	SELECT id, queue, state::text AS state,
		round(extract(epoch FROM scheduled_at - now()) * 1e9)::bigint AS wait
	FROM {river}river_job WHERE id = ANY ($1::bigint[])
)
SELECT id, state, wait, (SELECT set_config('synchronous_commit', 'off', true)),
	(SELECT pg_catalog.count(pg_notify(pg_catalog.concat(coalesce(nullif($2::text, ''), current_schema()), '.river_insert'),
		pg_catalog.json_build_object('queue', q.queue)::text))
	FROM (SELECT DISTINCT queue FROM job WHERE state = 'available' AND wait <= 0) q)
FROM job`

func (c *Client) wake(ids []int64) (map[int64]wake.Seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wake.For)
	defer cancel()
	rows := make(map[int64]wake.Seen, len(ids))
	var id int64
	var row wake.Seen
	err := c.Query(ctx, c.Pool, wakeSQL, []any{ids, c.Schema}, func() {
		rows[id] = row
	}, &id, &row.State, &row.Wait, nil, nil)
	c.Warn(err, "reserved jobs start up to a second late: River could not be woken", "jobs",
		len(ids))
	return rows, err
}
