// Package pace says when a client does what is done in the background: one thing at a time in a
// process, and of the clients the one whose turn it is by a row of weir_slot. It does not know what
// is done. A Pace may be used concurrently.
package pace

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/jobs/riverjob"
)

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
	Rounds = 0 // to look at the jobs that wait
	Hands  = 1 // to give free slots
)

// TurnLasts is for how long a turn is taken.
const TurnLasts = 3 * time.Second

// turnSQL takes the turn, or keeps it: no row if it is another client's.
//
// $1 River's schema $2 holder $3 for how long, from now on until the time that it answers
// $4 which of the turns
const turnSQL = `INSERT INTO {ours}weir_slot AS s (name, key, slot, holder, until)
VALUES ('weir scheduler', coalesce(nullif($1::text, ''), current_schema()), $4::integer, $2::uuid, now() + $3::interval)
ON CONFLICT (name, key, slot) DO UPDATE SET holder = excluded.holder, until = excluded.until
	WHERE s.holder = excluded.holder
		OR date_part('epoch', excluded.until - s.until) >= date_part('epoch', $3::interval)
RETURNING s.until`

// TakeTurn takes one of the turns, or keeps it. It returns until when: zero if it is another
// client's.
func TakeTurn(
	ctx context.Context, c *riverjob.Client, turn int,
) (until time.Time, err error) {
	args := []any{c.Schema, c.Holder, TurnLasts, turn}
	err = c.Query(ctx, c.Pool, turnSQL, args, func() {}, &until)
	return until, err
}
