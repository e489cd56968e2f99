package ratelimit

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

// Querier is a pool, a connection or a transaction of pgx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Lines reads the states of the balances for which takes wait, for [Take.RunAt], and the database's
// clock. The States have no Value. A State is zero if nothing has happened to the balance since it
// was last full.
//
// A Take with only a Limit and a Key stands for the limit as a whole: then only PausedUntil is
// valid.
func (l *Limiter) Lines(
	ctx context.Context, db Querier, takes ...Take,
) ([]State, time.Time, error) {
	type line struct {
		where.Place
		first, last int32
	}
	of := make([]int, len(takes)) // the line of each
	known := map[line]int{}
	var names, keys []string
	var first, last []int32
	var at []int // the line of each of these
	for i, t := range takes {
		n := line{where.Place{Name: t.Limit, Key: t.Key}, t.row, t.row}
		if t.left.Since == 0 {
			n.first, n.last = 0, math.MaxInt32
		}
		nr, ok := known[n]
		if !ok {
			nr, known[n] = len(known), len(known)
			homes := []string{l.home(&call{Row: where.Of(t.Limit, t.Key, t.row)})}
			if t.left.Since == 0 {
				homes = l.homes(t.Key)
			}
			for _, key := range homes {
				names, keys = append(names, t.Limit), append(keys, key)
				first, last = append(first, n.first), append(last, n.last)
				at = append(at, nr)
			}
		}
		of[i] = nr
	}
	lines := make([]State, len(known))
	now, err := l.hereNow(ctx, db)
	if err != nil {
		return nil, now, fmt.Errorf("ratelimit: read the clock: %w", hint(ended(ctx, err)))
	}
	var nr int64
	var ts, paused pgtype.Timestamptz
	var delay pgtype.Int8
	var moved pgtype.Float8
	rows, _ := db.Query(ctx, l.sql.Lines, names, keys, first, last) // rows has the error, too
	_, err = pgx.ForEachRow(rows, []any{&nr, &ts, &paused, &delay, &moved}, func() error {
		if nr == 0 {
			if now.IsZero() {
				now = ts.Time
			}
			return nil
		}
		s := &lines[at[nr-1]]
		s.TS = fromMicro(ts.Time.UnixMicro())
		s.Delay = time.Duration(min(delay.Int64, math.MaxInt64/1000)) * time.Microsecond
		s.Moved = moved.Float64
		if paused.Valid { // a limit with several homes has several: the latest counts
			s.PausedUntil = later(s.PausedUntil,
				fromMicro(min(paused.Time.UnixMicro(), algebra.EndOfTime)))
		}
		return nil
	})
	if err != nil {
		return nil, now, fmt.Errorf("ratelimit: read the lines: %w", hint(ended(ctx, err)))
	}
	states := make([]State, len(takes))
	for i, at := range of {
		states[i] = lines[at]
		// After a clock was set back, TS may be in the future. Tokens that were there at TS are
		// there by now.
		if s := &states[i]; s.TS.After(now) {
			s.TS = fromMicro(now.UnixMicro())
		}
	}
	return states, now, nil
}
