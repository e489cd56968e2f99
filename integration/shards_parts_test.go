package integration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// parted is a limit whose shards owe tokens, as a process knows: the first four less than the
// others. The usual count is 5.
type parted struct {
	pool  *pgxpool.Pool
	l     *ratelimit.Limiter
	seen  watcher
	limit ratelimit.Request
}

const partedShards = 16

func newParted(t *testing.T) *parted {
	t.Helper()
	p := &parted{pool: pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.RuntimeParams["lock_timeout"] = 10, "5s"
	}), limit: ratelimit.MustDefine("parted", ratelimit.TokenBucket{
		Rate: 40 * partedShards, Period: rig.Never}, ratelimit.Shards(partedShards)).Global().OrReserve()}
	p.l = rig.Limiter(t, ratelimit.Config{Observer: &p.seen})
	for range 2 { // the first makes the shards
		rig.Take(t, p.l.Autocommit(p.pool), p.limit.Count(5))
	}
	p.owe(t, 9, 0, 4)
	p.owe(t, 10, 4, partedShards)
	if _, err := p.l.Autocommit(p.pool).CheckRateLimit(t.Context(), p.limit); err != nil {
		t.Fatal(err)
	}
	p.seen.decided = nil
	return p
}

// owe has shards from one to another owe so many tokens.
func (p *parted) owe(t *testing.T, tokens float64, from, to int) {
	t.Helper()
	rig.Exec(t, p.pool, fmt.Sprintf(`
		WITH open AS (
			SELECT shard, row_number() OVER (ORDER BY shard) - 1 AS i FROM weir_balance
			WHERE name = 'parted' AND shard > 0 AND value > '-Infinity'
		)
		UPDATE weir_balance AS b SET value = %v FROM open
		WHERE b.name = 'parted' AND b.shard = open.shard AND open.i >= %d AND open.i < %d`, -tokens, from, to))
}

// owed is what each shard owes.
func (p *parted) owed(t *testing.T) (each []float64) {
	t.Helper()
	rows, err := p.pool.Query(t.Context(), `SELECT -value FROM weir_balance
		WHERE name = 'parted' AND shard > 0 AND value > '-Infinity' ORDER BY shard`)
	if err == nil {
		each, err = pgx.CollectRows(rows, pgx.RowTo[float64])
	}
	if err != nil {
		t.Fatal(err)
	}
	return each
}

func (p *parted) take(t *testing.T, count float64, then func(pgx.Tx, []ratelimit.Take) error) error {
	t.Helper()
	return p.l.InTx(t.Context(), p.pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := p.l.RateLimit(ctx, tx, p.limit.Count(count))
		if err = rig.Granted(res, err); err == nil && then != nil {
			err = then(tx, res.Reservation().Takes)
		}
		return err
	})
}

// taken is what each shard owes more than it did, the shards of which that is nothing left out.
func (p *parted) taken(t *testing.T, before []float64) (taken []float64) {
	t.Helper()
	for i, owes := range p.owed(t) {
		if more := math.Round(1e3*(owes-before[i])) / 1e3; more != 0 {
			taken = append(taken, more)
		}
	}
	return taken
}

// A count of more than a call should wait for in one shard is taken in equal parts from shards that
// nobody holds, in one round trip. It holds an advisory lock of each of these.
func TestALargeCountTakesPartsThatNobodyHolds(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	for name, c := range map[string]struct {
		tokens   float64 // in each shard; 0: they owe some
		reserves bool
	}{"Reserved": {reserves: true}, "ReservedWithTokensAtHand": {30, true}, "Taken": {30, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParted(t)
			if c.tokens > 0 {
				p.owe(t, -c.tokens, 0, partedShards)
			}
			if !c.reserves {
				p.limit = p.limit.Limit().Global()
			}
			if _, err := p.l.Autocommit(p.pool).CheckRateLimit(t.Context(), p.limit); err != nil {
				t.Fatal(err)
			}
			takesFreeParts(t, p)
		})
	}
}

func takesFreeParts(t *testing.T, p *parted) {
	t.Helper()
	before := p.owed(t)
	other := rig.Limiter(t, ratelimit.Config{})
	var held []pgx.Tx
	for range partedShards / 4 { // by another process
		tx := rig.Begin(t, p.pool, pgx.ReadCommitted)
		takeOK(t, first(other.RateLimit(t.Context(), tx, p.limit)))
		held = append(held, tx)
	}
	if err := p.take(t, 60, func(tx pgx.Tx, parts []ratelimit.Take) error {
		var locks int
		err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`).Scan(&locks)
		if locks != len(parts) {
			t.Errorf("%d advisory locks for %d parts", locks, len(parts))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if e := p.seen.last(t); e.Trips != 1 {
		t.Errorf("%d trips, want 1", e.Trips)
	}
	for _, tx := range held {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if taken := p.taken(t, before); !slices.Equal(taken, []float64{15, 15, 15, 15}) {
		t.Errorf("took %v of the shards, want 15 of four", taken)
	}
}

// If the shards have the tokens, as far as is known, no part is taken from a shard that has less by
// now, although the call could wait for it.
func TestPartsOfWhatIsAtHandDoNotWait(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "on a cluster parts are taken as they are planned")
	p := newParted(t)
	p.owe(t, -30, 0, partedShards)
	if _, err := p.l.Autocommit(p.pool).CheckRateLimit(t.Context(), p.limit); err != nil {
		t.Fatal(err)
	}
	p.owe(t, -5, 0, 4) // another process has taken from those that come first
	var res ratelimit.Result
	if err := p.l.InTx(t.Context(), p.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		res, err = p.l.RateLimit(ctx, tx, p.limit.Count(60))
		return err
	}); err != nil || !res.OK || !res.RunAt.IsZero() {
		t.Errorf("%+v, %v", res, err)
	}
}

// A shard may have become so much worse that it does not give its part. Then the call takes nothing
// from the others either, and takes its parts elsewhere.
func TestALargeReservationTakesAllPartsOrNone(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "on a cluster parts are taken as they are planned")
	for name, take := range map[string]func(p *parted) error{
		"InTx": func(p *parted) error { return p.take(t, 60, nil) },
		"a transaction of the caller's own": func(p *parted) error {
			return pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
				return rig.Granted(p.l.RateLimit(t.Context(), tx, p.limit.Count(60)))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParted(t)
			p.owe(t, 1000, 2, 3) // another process has reserved from one of the fullest
			before := p.owed(t)
			if err := take(p); err != nil {
				t.Fatal(err)
			}
			if e := p.seen.last(t); e.Trips == 1 {
				t.Error("it has not met the shard that is worse")
			}
			if taken := p.taken(t, before); !slices.Equal(taken, []float64{15, 15, 15, 15}) || p.owed(t)[2] != before[2] {
				t.Errorf("took %v of the shards, want 15 of four others", taken)
			}
		})
	}
}
