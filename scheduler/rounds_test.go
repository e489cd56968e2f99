package scheduler_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// rounder counts what a client does about rounds.
type rounder struct {
	client *river.Client[pgx.Tx]
	asked  atomic.Int64 // for the turn,
	turns  atomic.Int64 // and had it,
	lost   atomic.Int64 // or had lost it, and has looked in the same round trip
	walks  atomic.Int64 // reads of the jobs that wait
}

func (r *rounder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, walking) {
		r.walks.Add(1)
	}
	return ctx
}

func (r *rounder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

const walking = "unnest('{available,scheduled}'" // in waitingSQL

type batchKey struct{}

// batch is what was sent together.
type batch struct {
	looks bool // besides a question for the turn
	walks int64
}

func (r *rounder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceBatchStartData) context.Context {
	return context.WithValue(ctx, batchKey{}, &batch{looks: q.Batch.Len() > 1})
}

func (r *rounder) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	b := ctx.Value(batchKey{}).(*batch)
	switch {
	case strings.Contains(q.SQL, walking):
		b.walks++
	case !strings.Contains(q.SQL, "VALUES ('weir scheduler'"):
	default:
		r.asked.Add(1)
		if q.CommandTag.RowsAffected() == 1 {
			r.turns.Add(1)
		} else if b.looks {
			r.lost.Add(1)
		}
	}
}

// TraceBatchEnd counts reads when the turn is counted that was asked for in the same round trip.
func (r *rounder) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	r.walks.Add(ctx.Value(batchKey{}).(*batch).walks)
}

// rounders starts n configured clients with pools of their own.
func (j *journal) rounders(t *testing.T, sched *scheduler.Scheduler, n int) (all []*rounder) {
	t.Helper()
	for range n {
		r := &rounder{}
		cfg := j.f.pool.Config()
		cfg.ConnConfig.Tracer = r
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		r.client = j.client(t, nil, func(cfg *river.Config) { *cfg = *sched.Configure(pool, cfg) })
		all = append(all, r)
	}
	return all
}

// turnsOf are those of clients, summed up.
func turnsOf(all []*rounder) (n int64) {
	for _, r := range all {
		n += r.turns.Load()
	}
	return n
}

// Of several clients one does the rounds, and another one when it has stopped. The jobs of a line
// that moves are left alone until their new time is near, and moved once or twice then, not once
// for each client.
func TestOneClientAtATimeDoesTheRounds(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const n = 40
	limit := ratelimit.MustDefine("rounds",
		ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	jobs := sched.Jobs(f.client)
	var heads []int64
	for range 2 { // each of them for ten minutes
		heads = append(heads, f.insertBy(t, jobs, sendArgs{}, limit.For("k").Count(12_000).OrReserve()).Job.Job.ID)
	}
	f.insertTogether(t, jobs, n, limit.For("k").OrReserve())
	f.noteVersions(t)
	all := j.rounders(t, sched, 3)
	f.cancel(t, jobs, heads[0])
	passed := turnsOf(all) + 4
	eventually(t, "four rounds, of which one has found the cancelled job", func() bool { return turnsOf(all) >= passed })
	for _, r := range all {
		eventually(t, "each client has asked for the turn", func() bool { return r.asked.Load() > 0 })
	}
	if moved := f.moves(t); len(moved) != 0 {
		t.Errorf("%d jobs were moved although they are due in ten minutes", len(moved))
	}

	holder, others := all[0], all[1:]
	for i, r := range all {
		if r.turns.Load() > holder.turns.Load() {
			holder, others = r, append(append([]*rounder(nil), all[:i]...), all[i+1:]...)
		}
	}
	stop(t, holder.client) // though a round of its own may be under way, and find what has gone
	before := turnsOf(others)
	eventually(t, "another client does the rounds", func() bool { return turnsOf(others) > before })
	f.cancel(t, jobs, heads[1])
	started := j.await(t, n)
	seen := map[int64]bool{}
	for _, s := range started {
		if seen[s.id] || s.attempt != 1 {
			t.Errorf("job %d started at attempt %d, or twice", s.id, s.attempt)
		}
		seen[s.id] = true
	}
	moved, again := f.moves(t), f.paidAnew(t)
	for id, times := range moved {
		if times > 2 && len(again) == 0 {
			t.Errorf("job %d was moved %d times", id, times)
		}
	}
	if len(moved) == 0 {
		t.Error("no job was moved")
	}
	walks, lost := int64(0), int64(0)
	for _, r := range all {
		walks += r.walks.Load()
		lost += r.lost.Load()
	}
	if turns := turnsOf(all); walks == 0 || walks > turns+lost {
		t.Errorf("the jobs that wait were read %d times in %d rounds, besides %d whose turn was lost", walks, turns, lost)
	}
}

// Rounds also look at the jobs behind the thousand that are due next: a job there moves up when one
// before it in its own line is cancelled.
func TestAJobBehindAThousandOthersMovesUp(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	others := make([]river.InsertManyParams, 1100) // that wait longer than this test takes
	for i := range others {
		others[i] = river.InsertManyParams{Args: sendArgs{i},
			InsertOpts: &river.InsertOpts{ScheduledAt: time.Now().Add(30 * time.Minute)}}
	}
	if _, err := f.client.InsertMany(t.Context(), others); err != nil {
		t.Fatal(err)
	}
	k := ratelimit.MustDefine("behindAThousand",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)}).For("k")
	large, next := f.reserveOn(t, -1, nil, k.Count(3600)), f.reserveOn(t, -2, nil, k.Count(2))
	f.cancel(t, sched.Jobs(f.client), large.ID)
	j.client(t, sched)
	j.startsBefore(t, next.ID, next.ScheduledAt.Add(-time.Hour), next.ScheduledAt)
}

// paidAnew says when jobs have paid anew, as they were late: on a slow machine, and then others were
// moved for that.
func (f *fixture) paidAnew(t testing.TB) map[int64]time.Time {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `SELECT id, ((metadata->'weir'->>'more')::jsonb->>'at')::bigint
		FROM river_job WHERE metadata->'weir'->>'more' LIKE '%"late":true%'`)
	if err != nil {
		t.Fatal(err)
	}
	paid := map[int64]time.Time{}
	var id, at int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		paid[id] = time.UnixMicro(at)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return paid
}

// moves are how often jobs that waited were moved.
func (f *fixture) moves(t testing.TB) map[int64]int {
	t.Helper()
	moved := map[int64]int{}
	for id, of := range f.versions(t) {
		for _, v := range of {
			if v.moved() && !strings.Contains(v.states, "running") {
				moved[id]++
			}
		}
	}
	return moved
}
