package ratelimit

import (
	"context"
	"errors"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// look reads limits with all their shards, before the transaction begins if it can. It adds shards
// to limits that should have more.
func (l *Limiter) look(ctx context.Context, x executor, calls []call) ([]*spread.Whole, error) {
	looks := l.looksAtShards(calls)
	did, err := x.aside(ctx, looks, false)
	if err == nil && !did {
		err = x.run(ctx, looks)
	}
	if err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	return l.grown(ctx, x, looks, calls, false)
}

// lookAgain reads limits after a take was denied, or failed in a conflict. It gives back what the
// transaction has taken; or if nothing else was sent in the transaction, it rolls it back, so that
// the caller's code need not run again.
func (l *Limiter) lookAgain(
	ctx context.Context, x executor, takes []*statement, calls []call, first bool, failed error,
) (seen []*spread.Whole, restarted bool, err error) {
	looks := l.looksAtShards(calls)
	gives := l.gives(takes)
	if len(gives) > 0 {
		var cancel context.CancelFunc
		// otherwise the transaction could go on with only a part of the call taken
		ctx, cancel = grace.After(ctx)
		defer cancel()
	}
	if first {
		restarted, err = x.restart(ctx, looks)
	}
	switch {
	case !restarted && failed != nil:
		return nil, false, explain(ctx, failed, "take", calls)
	case !restarted && err == nil:
		err = x.run(ctx, append(gives, looks...))
	}
	if err != nil {
		return nil, false, explain(ctx, err, "look at", calls)
	}
	for i := range calls {
		calls[i].forget()
	}
	seen, err = l.grown(ctx, x, looks, calls, !restarted)
	return seen, restarted, err
}

// grown returns what looks have read, after adding the shards that limits lack. A transaction that
// has locked rows leaves that to the next call if the limit has fewer than it should: a change of
// shards begins with rows that others have locked before those.
func (l *Limiter) grown(
	ctx context.Context, x executor, looks []*statement, calls []call, locked bool,
) ([]*spread.Whole, error) {
	for range rounds {
		seen, err := l.seen(x, looks, calls)
		if err != nil {
			return nil, explain(ctx, err, "look at", calls)
		}
		again := false
		for i := range calls {
			lacks := seen[i].Lacks()
			if !lacks && (locked || seen[i].Shards >= calls[i].shards) {
				continue
			}
			if x.single {
				return nil, errUndecided
			}
			if lacks {
				if err := l.mend(ctx, x, &calls[i], seen[i].Layout); err != nil {
					return nil, explain(ctx, err, "mend the shards of", calls[i:])
				}
			}
			if err := l.reshard(ctx, x, &calls[i], calls[i].shards, false); err != nil {
				return nil, explain(ctx, err, "give shards to", calls[i:])
			}
			again = true
		}
		if !again {
			return seen, nil
		}
		looks = l.looksAtShards(calls)
		if err := x.run(ctx, looks); err != nil {
			return nil, explain(ctx, err, "look at", calls)
		}
	}
	return nil, explain(ctx, errMoving, "look at", calls)
}

var errMoving = errors.New("its shards keep changing")

// seen returns what looks have read, and remembers it in the books.
func (l *Limiter) seen(x executor, looks []*statement, calls []call) ([]*spread.Whole, error) {
	seen := make([]*spread.Whole, len(calls))
	for i, s := range looks {
		c := &calls[i]
		w, valid := s.look.whole()
		if !valid {
			l.books.Forget(c.Place)
			return nil, errHead(s.look.number)
		}
		if seen[i] = w; w.Layout == shard.Single {
			l.books.Forget(c.Place)
		} else {
			l.remembered(c, w, x)
		}
	}
	return seen, nil
}

// remembered remembers how a limit was seen, unless the transaction has changed its layout itself.
func (l *Limiter) remembered(c *call, w *spread.Whole, x executor) {
	if a := x.attempt; a == nil || !a.made[c.Place] {
		l.books.Look(c.Place, w, x.transaction())
	}
}

// making records that a transaction changes the layout of a limit, which may roll back. An attempt
// remembers it by itself.
func (l *Limiter) making(c *call, x executor) {
	if a := x.attempt; a != nil {
		if a.made == nil {
			a.made = make(map[where.Place]bool)
		}
		a.made[c.Place] = true
	}
	l.books.Making(c.Place, x.transaction())
}

func (l *Limiter) looksAtShards(calls []call) []*statement {
	looks := make([]*statement, len(calls))
	for i := range calls {
		c := &calls[i]
		looks[i] = &statement{c: c, sql: l.sql.LookShards, args: []any{c.Name, c.Key, l.now()},
			look: new(look), here: l.here()}
		if l.cfg.Citus && c.Key == "" {
			looks[i].sql, looks[i].args = l.sql.LookSpread, append(looks[i].args, l.homes(c.Key))
		}
	}
	return looks
}

// see reads limits with all their shards, and changes nothing.
func (l *Limiter) see(ctx context.Context, x executor, calls []call) ([]*spread.Whole, error) {
	looks := l.looksAtShards(calls)
	err := x.run(ctx, looks)
	var seen []*spread.Whole
	if err == nil {
		seen, err = l.seen(x, looks, calls)
	}
	if err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	return seen, nil
}
