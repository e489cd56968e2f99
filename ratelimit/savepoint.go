package ratelimit

import (
	"context"
	"reflect"
	"sync"
)

// savepoints knows what transactions that callers have begun hold of limits with shards. Each take of those would have a
// savepoint of its own, with a transaction id and a lock until the end of the transaction. But a shard that the
// transaction has taken from is locked already: another take from it locks nothing that would have to be let go of.
type savepoints struct {
	mu   sync.Mutex
	held map[ownRow]struct{}
	open map[any]int // in each transaction
}

// ownRow is a row that a transaction has taken from.
type ownRow struct {
	transaction any
	row
}

const (
	mostHeld = 10_000 // of all transactions; without them there are more savepoints
	mostOpen = 32     // in a transaction; each take that opens another costs a trip, which releases it
)

// holds reports whether the transaction has taken from all rows of statements that are to be taken from.
func (p *savepoints) holds(transaction any, takes []*statement) bool {
	if transaction == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range takes {
		rows := s.shards
		if rows == nil {
			rows = []int32{s.c.shard}
		}
		for _, shard := range rows {
			if _, ok := p.held[ownRow{transaction, row{s.c.name, s.c.key, shard}}]; !ok {
				return false
			}
		}
	}
	return true
}

// took notes what a transaction has taken from, with a savepoint. It reports whether too many are open.
func (p *savepoints) took(transaction any, takes []*statement) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil || len(p.held)+len(takes) > mostHeld {
		p.held, p.open = make(map[ownRow]struct{}), make(map[any]int)
	}
	for _, s := range takes {
		p.held[ownRow{transaction, row{s.c.name, s.c.key, s.c.shard}}] = struct{}{}
	}
	p.open[transaction]++
	return p.open[transaction] > mostOpen
}

// letStand notes that takes with a savepoint stand, and releases it if there are too many.
func (l *Limiter) letStand(ctx context.Context, x executor, takes []*statement) error {
	own := x.own()
	if own == nil || !l.savepoints.took(own, takes) {
		return nil
	}
	return x.run(ctx, []*statement{{sql: releaseSQL}})
}

// comparableTx returns a transaction if it can be told from others.
func comparableTx(transaction any) any {
	if transaction == nil || !reflect.TypeOf(transaction).Comparable() {
		return nil
	}
	return transaction
}
