package fairline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

const (
	grantEvery = 500 * time.Millisecond // by the holder, while jobs wait
	grantSoon  = 200 * time.Millisecond // while workers are what is scarce, so that they never wait
	lineLasts  = 3 * time.Second
	heardFor   = 5 * time.Second  // a client that fetches no jobs for so long grants none
	restAfter  = 10 * time.Second // a line in which nobody waits is forgotten
	mostLines  = 200              // in one round; the next one goes on behind them
	mostGrants = 50               // transactions of a round and line, one after the other
)

// Granter grants turns in one client.
type Granter struct {
	*riverjob.Client
	all Lines

	pace   riverjob.Pace
	heard  atomic.Int64         // when the client fetched last, in nanoseconds
	held   map[ticket.Row]*held // this and what follows are for the round under way only
	behind map[string]string    // by limit, the key of the last line of the round before
	since  time.Time            // when a round began with the first line
	scarce bool                 // are workers: more could have been granted in the last round
}

// NewGranter returns a Granter of these lines.
func NewGranter(c *riverjob.Client, all Lines) *Granter { return &Granter{Client: c, all: all} }

// Fetched says that the client has fetched jobs: a working client does, several times a second.
func (r *Granter) Fetched() {
	r.heard.Store(time.Now().UnixNano())
	r.begin(grantEvery)
}

// held is a line that this client holds.
type held struct {
	tenants int               // that waited in the last grant
	waiting map[int64]granted // jobs that may still wait for a worker
	pruned  time.Time
	active  time.Time      // when jobs waited in it last
	tried   time.Time      // its place in a round: when it was tried last, or later if that failed
	warned  map[int64]bool // jobs that cannot be granted
	passed  map[int64]bool // those of them that are not read until the next pruning
	blocks
}

// granted is a job that was granted.
type granted struct {
	queue string
	cost  float64
	due   time.Time
}

// begin begins a round of grants, if the last one was long enough ago.
func (r *Granter) begin(gap time.Duration) {
	if len(r.all) == 0 {
		return
	}
	r.pace.Begin(gap, riverjob.Patience, func(ctx context.Context) {
		held, err := r.Round(ctx)
		r.Warn(err, "turns could not be granted")
		gap := grantEvery
		if r.scarce {
			gap = grantSoon
		}
		if held && time.Since(time.Unix(0, r.heard.Load())) < heardFor {
			time.AfterFunc(gap, func() { r.begin(gap / 2) })
		}
	})
}

// linesSQL finds the lines in which jobs wait, except those that another client holds: of each
// limit in the order of keys, as it finds them one by one.
//
// $1 names $2 holder $3 most $4 the first key of each name
const linesSQL = `WITH RECURSIVE line AS (
	SELECT n.name, (SELECT w.key FROM {ours}weir_turn w WHERE w.name = n.name AND w.key >= n.first ORDER BY w.key LIMIT 1) AS key
	FROM unnest($1::text[], $4::text[]) AS n (name, first)
	UNION ALL
	SELECT l.name, (SELECT w.key FROM {ours}weir_turn w WHERE w.name = l.name AND w.key > l.key ORDER BY w.key LIMIT 1)
	FROM line l WHERE l.key IS NOT NULL
)
SELECT l.name, l.key FROM line l LEFT JOIN LATERAL (
		SELECT holder, until FROM {ours}weir_line WHERE name = l.name AND key = l.key OFFSET 0
	) s ON true
WHERE l.key IS NOT NULL AND (s.holder IS NULL OR s.holder = $2::uuid OR s.until <= now())
LIMIT $3::integer`

// Round is one round. It reports whether this client holds a line in which jobs wait.
func (r *Granter) Round(ctx context.Context) (holds bool, err error) {
	if len(r.behind) == 0 {
		r.behind, r.since = map[string]string{}, time.Now()
	}
	names := slices.Collect(maps.Keys(r.all))
	first := make([]string, len(names))
	for i, name := range names {
		first[i] = r.behind[name]
	}
	most := mostLines + len(names) // the last line of each is found once more
	var found []ticket.Row
	var of ticket.Row
	err = r.Query(ctx, r.Pool, linesSQL, []any{names, r.Holder, most, first},
		func() { found = append(found, of) }, &of[0], &of[1])
	if err != nil {
		return false, err
	}
	for _, of := range found {
		r.behind[of[0]] = of[1]
	}
	idle := r.held
	r.scarce = false
	r.held = map[ticket.Row]*held{}
	var failed []error
	all := map[ticket.Row]*held{}
	for _, of := range found {
		h := idle[of]
		if h == nil {
			h = &held{waiting: map[int64]granted{}, warned: map[int64]bool{}, passed: map[int64]bool{}}
		}
		delete(idle, of)
		all[of] = h
	}
	slices.SortStableFunc(found, func(a, b ticket.Row) int {
		return all[a].tried.Compare(all[b].tried)
	})
	for _, of := range found {
		h, inTime := all[of], ctx.Err() == nil
		mine, more := false, true
		for n := 0; more && n < mostGrants; n++ {
			mine, more, err = r.grant(ctx, of, h)
			failed = append(failed, err)
		}
		if inTime { // else it comes before these in the next round
			h.tried = time.Now()
			if err != nil { // and this behind those that are granted
				h.tried = h.tried.Add(riverjob.Patience)
			}
		}
		if mine || err != nil {
			r.held[of], h.active, holds = h, time.Now(), true
		}
	}
	last := len(found) < most
	for of, h := range idle {
		// A line is idle only if no round since the first line has found it.
		if !last || h.active.After(r.since) || time.Since(h.active) < restAfter {
			r.held[of] = h
		} else { // nobody waits in it any more
			args := []any{of[0], of[1], r.Holder}
			failed = append(failed, r.Query(ctx, r.Pool, restSQL, args, nil))
		}
	}
	if last {
		clear(r.behind)
	}
	return holds, errors.Join(failed...)
}
