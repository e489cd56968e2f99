package ratelimit

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// look reads limits, before the transaction begins if it can, and adds shards to those that should
// have more.
//
// takes were denied just before, or have failed in a conflict. look gives back what they have
// taken. Or with first, if nothing else was sent in the transaction, it rolls that back and reports
// it, so that the caller's code need not run again. It does so if a limit of the call is known to
// have shards by now, or if a row turns out to be closed: its limit has shards. Otherwise the rows
// stay locked, so the next take decides.
func (l *Limiter) look(
	ctx context.Context, x executor, calls []call, takes []*statement, first bool, failed error,
) (seen []*spread.Whole, restarted bool, err error) {
	gives, looks := l.gives(takes), l.looksAt(calls)
	trip := looks
	if len(gives) > 0 {
		trip = slices.Concat(gives, looks)
		var cancel context.CancelFunc
		// otherwise the transaction could go on with only a part of the call taken
		ctx, cancel = grace.After(ctx)
		defer cancel()
	}
	exact := !slices.ContainsFunc(looks, (*statement).ofShards)
	// others of the process may have forgotten the shards since the takes, or learnt of some
	anew := first && len(takes) > 0 && (!exact || slices.ContainsFunc(takes, (*statement).ofShards))
	for {
		if anew {
			restarted, err = x.restart(ctx, looks)
		}
		if failed != nil && !restarted {
			return nil, false, explain(ctx, failed, "take", calls)
		}
		if err == nil && (!anew || !restarted) {
			err = x.aside(ctx, trip, exact)
		}
		if err != nil {
			return nil, false, explain(ctx, err, "look at", calls)
		}
		if !slices.ContainsFunc(looks, (*statement).closed) {
			break
		}
		looks = l.looksAtShards(calls)
		trip, exact, anew = looks, false, first && !restarted
	}
	seen, err = l.grown(ctx, x, looks, calls, len(takes) > 0 && !restarted)
	return seen, restarted, err
}

// grown returns what looks have read, after adding the shards that limits lack. A transaction that
// has locked rows leaves that to the next call if the limit has fewer than it should: a change of
// shards begins with rows that others have locked before those.
func (l *Limiter) grown(
	ctx context.Context, x executor, looks []*statement, calls []call, locked bool,
) ([]*spread.Whole, error) {
	for range rounds {
		seen, err := l.seen(ctx, x, looks, calls)
		if err != nil {
			return nil, err
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
func (l *Limiter) seen(
	ctx context.Context, x executor, looks []*statement, calls []call,
) ([]*spread.Whole, error) {
	seen := make([]*spread.Whole, len(calls))
	for i, s := range looks {
		c := &calls[i]
		w, valid := s.saw()
		if !valid {
			l.books.Forget(c.Place)
			return nil, explain(ctx, errHead(s.look.number), "look at", calls)
		}
		switch seen[i] = w; {
		case s.look == nil: // the books do not have a limit without shards
		case w.Layout == shard.Single:
			l.books.Forget(c.Place)
		default:
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

// looksAt returns statements that read the limits of calls. For a limit that is not known to have
// shards, that is its one row.
func (l *Limiter) looksAt(calls []call) []*statement {
	return forEach(calls, func(c *call) *statement {
		if l.mayHaveShards(c) {
			return l.lookShardsOf(c)
		}
		return l.lookOf(c)
	})
}

func (l *Limiter) looksAtShards(calls []call) []*statement {
	return forEach(calls, l.lookShardsOf)
}

func (l *Limiter) lookShardsOf(c *call) *statement {
	s := &statement{c: c, sql: l.sql.LookShards, args: []any{c.Name, c.Key, l.now()},
		look: new(look), here: l.here()}
	if l.cfg.Citus && c.Key == "" {
		s.sql, s.args = l.sql.LookSpread, append(s.args, l.homes(c.Key))
	}
	return s
}

// see reads limits with all their shards, and changes nothing.
func (l *Limiter) see(ctx context.Context, x executor, calls []call) ([]*spread.Whole, error) {
	looks := l.looksAtShards(calls)
	if err := x.run(ctx, looks); err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	return l.seen(ctx, x, looks, calls)
}

// peek is see, but reads only the row of a limit that is not known to have shards.
func (l *Limiter) peek(ctx context.Context, x executor, calls []call) ([]*spread.Whole, error) {
	looks := l.looksAt(calls)
	if err := x.run(ctx, looks); err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	if slices.ContainsFunc(looks, (*statement).closed) {
		return l.see(ctx, x, calls)
	}
	return l.seen(ctx, x, looks, calls)
}
