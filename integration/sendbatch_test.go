package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// written is a schema with a table of the caller's own.
func written(t testing.TB, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t, options...)
	if _, err := pool.Exec(t.Context(),
		`CREATE TABLE message (id bigint PRIMARY KEY, text text, at timestamptz DEFAULT now())`); err != nil {
		t.Fatal(err)
	}
	return pool
}

func messages(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM message`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// write queues the insert of a message.
func write(id int) func(*pgx.Batch) error {
	return func(b *pgx.Batch) error {
		b.Queue(`INSERT INTO message (id, text) VALUES ($1, 'hello')`, id)
		return nil
	}
}

// In each of the driver's modes the caller's results come as pgx gives them.
func TestSendBatchAnswersLikePgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := written(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			l := rig.Limiter(t, ratelimit.Config{})
			limit := ratelimit.MustDefine("batch", ratelimit.TokenBucket{Rate: 3, Period: rig.Never})
			type message struct {
				ID   int64
				Text *string
			}
			var tag pgconn.CommandTag
			var one message
			var all []message
			var values []any
			var order []string
			var none error
			send := func() (ratelimit.Result, error) {
				return l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
					b.Queue(`INSERT INTO message (id, text) VALUES (1, 'a'), (2, NULL)`).
						Exec(func(ct pgconn.CommandTag) error {
							tag = ct
							order = append(order, "exec")
							if n := messages(t, pool); n != 2 {
								t.Errorf("%d messages are seen by others when the callbacks are called", n)
							}
							return nil
						})
					b.Queue(`SELECT id, text FROM message WHERE text IS NOT NULL`).QueryRow(func(row pgx.Row) error {
						order = append(order, "row")
						return row.Scan(&one.ID, &one.Text)
					})
					b.Queue(`SELECT id, text FROM message ORDER BY id`).Query(func(rows pgx.Rows) (err error) {
						order = append(order, "rows")
						all, err = pgx.CollectRows(rows, pgx.RowToStructByName[message])
						return err
					})
					b.Queue(`SELECT id, text, 1.5::float8 FROM message ORDER BY id LIMIT 1`).
						Query(func(rows pgx.Rows) (err error) {
							for rows.Next() {
								values, err = rows.Values()
							}
							return err
						})
					b.Queue(`SELECT 1 WHERE false`).QueryRow(func(row pgx.Row) error {
						var n int
						none = row.Scan(&n)
						return nil
					})
					b.Queue(`SELECT 1`) // whose answer nobody wants
					return nil
				}, limit.Global())
			}
			res, err := send()
			if err != nil || !res.OK || res.Outcomes[0].Value != 2 {
				t.Fatalf("%+v, %v", res, err)
			}
			if tag.RowsAffected() != 2 || !slices.Equal(order, []string{"exec", "row", "rows"}) ||
				!errors.Is(none, pgx.ErrNoRows) {
				t.Errorf("tag %v, order %v, no row: %v", tag, order, none)
			}
			if one.ID != 1 || *one.Text != "a" || len(all) != 2 || all[1].ID != 2 || all[1].Text != nil {
				t.Errorf("got %+v and %+v", one, all)
			}
			if !slices.Equal(values, []any{int64(1), "a", 1.5}) {
				t.Errorf("values: %#v", values)
			}

			_, err = send() // which breaks the primary key
			var failed *pgconn.PgError
			if !errors.As(err, &failed) || failed.Code != "23505" || messages(t, pool) != 2 {
				t.Errorf("a second time: %v", err)
			}
			if s, err := l.Autocommit(pool).Value(t.Context(), limit.Global()); err != nil ||
				s.Value < 2 || s.Value > 2.01 {
				t.Errorf("what a failed batch took is kept: %+v, %v", s, err)
			}
			if stat := pool.Stat(); stat.NewConnsCount() > 3 {
				t.Errorf("%d connections were made", stat.NewConnsCount())
			}
		})
	}
}

// A denial runs none of the statements: neither where it was not expected, nor where it was.
func TestSendBatchWritesNothingWhenDenied(t *testing.T) {
	t.Parallel()
	var c trips
	pool := written(t, c.through)
	l := rig.Limiter(t, ratelimit.Config{})
	small := ratelimit.MustDefine("small", ratelimit.TokenBucket{Rate: 2, Period: rig.Never})
	large := ratelimit.MustDefine("large", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	requests := []ratelimit.Request{large.Global(), small.Global().Count(1.5)}
	send := func(id int) (res ratelimit.Result, trips int64) {
		trips = c.of(func() {
			var err error
			if res, err = l.SendBatch(t.Context(), pool, write(id), requests...); err != nil {
				t.Fatal(err)
			}
		})
		return res, trips
	}
	for id, want := range []struct {
		ok    bool
		trips int64 // at the most; the driver prepares what is new to it
	}{{true, 3}, {false, 6}, {false, 1}, {false, 1}} {
		res, trips := send(id)
		if res.OK != want.ok || trips > want.trips || res.OK == !res.RetryAt.IsZero() {
			t.Errorf("call %d: %+v after %d trips", id, res, trips)
		}
	}
	if n := messages(t, pool); n != 1 {
		t.Errorf("%d messages", n)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), large.Global()); err != nil || s.Value < 9 || s.Value > 9.01 {
		t.Errorf("the other limit: %+v, %v", s, err)
	}
	if err := l.Autocommit(pool).ResetRateLimit(t.Context(), small.Global()); err != nil {
		t.Fatal(err)
	}
	if res, trips := send(9); !res.OK || trips > 2 {
		t.Errorf("after a reset: %+v after %d trips", res, trips)
	}
	if res, trips := send(10); res.OK || trips > 6 {
		t.Errorf("denied again: %+v after %d trips", res, trips)
	}
}

// Transactions that fight for a row run again until each has its answer, and each message has its
// token.
func TestSendBatchRunsAgainOnAConflict(t *testing.T) {
	t.Parallel()
	pool := written(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
	l := rig.Limiter(t, ratelimit.Config{})
	for _, limit := range []ratelimit.Limit{
		ratelimit.MustDefine("fought", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}),
		ratelimit.MustDefine("foughtSharded", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}, ratelimit.Shards(4)),
	} {
		before := messages(t, pool)
		var wg sync.WaitGroup
		var mu sync.Mutex
		calls, ok, called := 0, 0, 0
		for w := range 16 {
			wg.Go(func() {
				for i, tries := 0, 0; i < 10 && tries < 300; tries++ {
					res, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
						mu.Lock()
						calls++
						mu.Unlock()
						b.Queue(`INSERT INTO message (id) VALUES ($1)`, before*1000+1000+w*10+i).
							Exec(func(pgconn.CommandTag) error {
								mu.Lock()
								called++
								mu.Unlock()
								return nil
							})
						return nil
					}, limit.Global())
					if err != nil {
						t.Error(err)
						return
					}
					if !res.OK && res.RetryAfter() <= 100*time.Millisecond { // others were taking
						time.Sleep(res.RetryAfter())
						continue
					}
					i++
					if res.OK {
						mu.Lock()
						ok++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if n := messages(t, pool) - before; ok != 100 || n != 100 || called != 100 {
			t.Errorf("%s: granted %d, written %d, called back %d, want 100 each; filled %d times",
				limit.Name(), ok, n, called, calls)
		}
	}
}

// Portable callers queue for no row, so a conflict does not make the next batches queue for it.
func TestSendBatchAfterAConflictOnOtherEngines(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	sent := &tripCounter{}
	pool := written(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = sent })
	l := rig.Limiter(t, ratelimit.Config{Portable: true})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	holder := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), holder, k)))
	ended := make(chan answer, 1)
	go func() {
		res, err := l.SendBatch(t.Context(), pool, write(1), k)
		ended <- answer{res, err}
	}()
	waitsForALock(t, pool)
	rig.Commit(t, holder)
	if got := <-ended; got.err != nil || !got.res.OK {
		t.Fatal(got.res.OK, got.err)
	}
	before := sent.n.Load()
	takeOK(t, first(l.SendBatch(t.Context(), pool, write(2), k)))
	if n := sent.n.Load() - before; n != 1 {
		t.Errorf("%d trips, want 1", n)
	}
}

// tripCounter counts what is sent.
type tripCounter struct {
	afterBatch
	n atomic.Int64
}

func (c *tripCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *tripCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}

// A callback that fails leaves what was committed.
func TestSendBatchTellsOfACallbackThatFails(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("callback", ratelimit.TokenBucket{Rate: 2, Period: rig.Never})
	oops := errors.New("oops")
	after := false
	res, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
		b.Queue(`INSERT INTO message (id) VALUES (1)`).Exec(func(pgconn.CommandTag) error { return oops })
		b.Queue(`SELECT 1`).Exec(func(pgconn.CommandTag) error { after = true; return nil })
		return nil
	}, limit.Global())
	if !errors.Is(err, oops) || !res.OK || after || messages(t, pool) != 1 {
		t.Errorf("%+v, %v; later ones called: %v", res, err, after)
	}
	res, err = l.SendBatch(t.Context(), pool, func(*pgx.Batch) error { return oops }, limit.Global())
	if !errors.Is(err, oops) || res.OK {
		t.Errorf("a batch that was not filled: %+v, %v", res, err)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.Global()); err != nil || s.Value < 1 || s.Value > 1.01 {
		t.Errorf("left: %+v, %v", s, err)
	}
}

// A call whose context has ended sends nothing.
func TestSendBatchAfterItsContextHasEnded(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("ended", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := l.SendBatch(ctx, pool, write(1), limit.Global())
	if errors.Is(err, ratelimit.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) || res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if n := messages(t, pool); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// A connection of the caller's own is out of the transaction, also if the context ends as soon as the
// call was denied.
func TestSendBatchLeavesNoFailedTransaction(t *testing.T) {
	t.Parallel()
	var tracer afterBatch
	pool := written(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &tracer })
	limit := ratelimit.MustDefine("left", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).RateLimit(t.Context(), limit.Global().Count(5))))
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ctx, cancel := context.WithCancel(t.Context())
	tracer.do = cancel
	res, err := rig.Limiter(t, ratelimit.Config{}).SendBatch(ctx, conn, write(1), limit.Global())
	if !errors.Is(err, context.Canceled) || errors.Is(err, ratelimit.ErrOutcomeUnknown) || res.OK {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Errorf("the next statement: %v", err)
	}
}

// Shadows count, and decide nothing.
func TestSendBatchWithShadows(t *testing.T) {
	t.Parallel()
	pool := written(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("shown", ratelimit.TokenBucket{Rate: 5, Period: rig.Never})
	shadow := ratelimit.MustDefine("shaded", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}, ratelimit.Shadow())
	for i, requests := range [][]ratelimit.Request{{limit.Global(), shadow.Global()}, {shadow.Global()}} {
		res, err := l.SendBatch(t.Context(), pool, write(i), requests...)
		last := res.Outcomes[len(res.Outcomes)-1]
		if err != nil || !res.OK || last.OK != (i == 0) || messages(t, pool) != i+1 {
			t.Errorf("call %d: %+v, %v", i, res, err)
		}
	}
}
