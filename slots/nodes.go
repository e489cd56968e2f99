package slots

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/hand"
)

// On Citus the rows of different keys may be on different nodes. A statement about one key that
// has the key as a parameter runs on the node of that key. Any other statement runs on all nodes,
// and fails if one of them is down.

const (
	// spreadSQL asks whether Citus has distributed the table. If so, schema.Migrate has also made
	// the table that this asks for.
	spreadSQL = `SELECT pg_catalog.to_regclass($1::text) IS NOT NULL`

	mostKeys  = 8                      // at most so many keys have statements under way, on Citus
	leastTime = 250 * time.Millisecond // the shortest timeout of the statement for a key
)

// byKeys is a statement in two forms: one for the rows of several keys, and one for the rows of a
// single key, which is its last argument.
type byKeys struct{ several, one string }

// of returns the form for these keys, and its arguments.
func (k byKeys) of(keys []string, args ...any) (string, []any) {
	other := func(key string) bool { return key != keys[0] }
	if len(keys) == 0 || slices.ContainsFunc(keys, other) {
		return k.several, args
	}
	return k.one, append(args, keys[0])
}

// isSpread reports whether Citus has distributed the table. It asks the database once.
func (s *Slots) isSpread(ctx context.Context, q hand.Querier) (bool, error) {
	if known := s.spread.Load(); known != nil {
		return *known, nil
	}
	var spread bool
	if err := q.QueryRow(ctx, spreadSQL, s.sql.twoPhase).Scan(&spread); err != nil {
		return false, fmt.Errorf("slots: find out whether the tables are distributed: %w", err)
	}
	s.spread.Store(&spread)
	return spread, nil
}

// eachKey calls do once, with all. On Citus it calls do once for each key, so a node that is down
// fails only the calls for its own keys. It calls do for several keys at the same time, in the
// order in which the keys come. A node that does not answer holds up at most half of the pool's
// connections, each for a quarter of the time within, or for leastTime if that is longer. eachKey
// returns the first error.
func eachKey[T any](
	ctx context.Context, s *Slots, within time.Duration, all []T, keyOf func(T) string,
	do func(ctx context.Context, some []T) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var keys []string
	of := map[string][]T{}
	for _, t := range all {
		key := keyOf(t)
		if of[key] == nil {
			keys = append(keys, key)
		}
		of[key] = append(of[key], t)
	}
	spread := false
	if len(keys) > 1 {
		var err error
		if spread, err = s.isSpread(ctx, s.pool); err != nil {
			return err
		}
	}
	if !spread {
		return do(ctx, all)
	}
	room := make(chan struct{}, max(1, min(mostKeys, s.pool.Stat().MaxConns()/2)))
	errs := make(chan error, len(keys))
	var calls sync.WaitGroup
	for _, key := range keys {
		room <- struct{}{}
		if ctx.Err() != nil {
			errs <- ctx.Err()
			break
		}
		calls.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, max(within/4, leastTime))
			defer cancel()
			errs <- do(ctx, of[key])
		})
	}
	calls.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
