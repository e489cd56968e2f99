// Package inhand has the arithmetic of tokens that a process holds in memory: how many of a block it
// may still hand out, and how many it may give back. It is pure.
//
// A lease takes blocks of tokens from the row of a limit and key, and hands them out from memory once
// the take of the block is committed. So all processes together never hand out more than the row has
// granted.
//
// That is not enough. Tokens that a lease holds are missing in the row, which refills as if they
// had been used. Ten leases with full blocks, and a full row, would be twice the capacity or more,
// all available at once. So tokens that a lease holds expire when they would have overflowed in the
// row. A take at t0 that has left v tokens in the row lets its lease hold at time t at most
//
//	capacity - refilled(v, t0, t)
//
// which is what it took, until the row would be full without it. With this rule
//
//	(balance of the row) + (all that leases hold) <= capacity, at each instant,
//
// as if all of it were still in the row. In any interval of length t at most capacity + rate*t
// tokens are handed out, by any number of processes.
//
// The argument: let takes leave v1 at t1, v2 at t2, ..., vk at tk in the row, and let h1, ..., hk
// be what is still held of each at time t. Write ri = refilled(vi, ti, t). The balance is rk, and
// by the rule hk + rk <= capacity. Also hi + ri <= r(i-1): take i has left what it did not take of
// r(i-1), so ri + hi is at most r(i-1) until it reaches the capacity. From then on the rule keeps
// it at the capacity, which r(i-1) has reached by then, too. So rk + hk + h(k-1) + ... + h2 <= r1,
// and r1 + h1 <= capacity. A take that is not a lease's is one of which nothing is held. A take
// from several shards is one take from each.
//
// Giving tokens back breaks this chain, because later takes do not know of it and let their tokens
// expire too late. So nothing is held for longer than a moment ([Kept]), and only those tokens are
// given back that would not have expired before everything that was taken earlier is used or
// expired (see [Block.Back]). If nothing flows in, that is all of them.
//
// The time since a take is counted from before it was sent, on the process's own monotonic clock.
// So it is never less than the time that has passed for the row, as long as both clocks run at the
// same speed. A machine that was suspended, and whose clock has not counted that time, must not go
// on with the tokens that it held before.
package inhand

import (
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

const (
	// Kept is how long tokens stay in memory, counted from before the take was sent. Then they are
	// given back.
	Kept = time.Second

	// Late is how much longer giving back may take. Tokens that were not given back by then are
	// lost. So nothing of a take comes back to the row after Kept + Late.
	Late = 500 * time.Millisecond
)

// Block is what a process holds of a take from one row.
type Block struct {
	Value float64 // the balance that the take left in the row
	At    int64   // the row's time then, in microseconds
	Sent  int64   // the lease's clock before the take was sent, in nanoseconds
	Left  float64 // still held; some may have expired

	rule algebra.Rule
	// At most room - slope*(now-Sent) may be held at now, until another window begins or the block
	// is given back.
	room, slope float64
	until       int64
}

// New returns the block of a take of count tokens by rule.
func New(rule *algebra.Rule, count, value float64, at, sent int64) Block {
	b := Block{Value: value, At: at, Sent: sent, Left: count, rule: *rule}
	b.renew(sent)
	return b
}

// Over reports whether the block was held for long enough, and has to be given back.
func (b *Block) Over(now int64) bool { return now >= b.Sent+int64(Kept) }

// Time is the row's time at now, in microseconds.
func (b *Block) Time(now int64) int64 { return b.At + (now-b.Sent)/1000 }

// latest returns the latest time that the database's clock may show at now, in microseconds.
func (b *Block) latest(now int64) int64 { return b.At + (now-b.Sent+999)/1000 }

// Bound returns how much may be held at now.
func (b *Block) Bound(now int64) float64 {
	return b.rule.Capacity - b.rule.Refilled(b.Value, b.At, b.latest(now))
}

// renew computes room, slope and until.
func (b *Block) renew(now int64) {
	b.until = b.Sent + int64(Kept)
	if !b.rule.Windowed {
		const rounding = 1 + 1.0/(1<<40)
		b.room, b.slope = b.rule.Capacity-b.Value, b.rule.Rate/float64(b.rule.Period)/1000*rounding
		return
	}
	b.room = b.Bound(now)
	at := b.latest(now)
	if next := b.rule.Origin + (b.rule.Window(at)+1)*b.rule.Period; next-b.At < Kept.Microseconds() {
		b.until = min(b.until, b.Sent+(next-b.At-1)*1000+1) // when latest shows it
	}
}

// Spoil drops the tokens that would have overflowed in the row by now. It counts them as used,
// because the next block has to replace them.
func (b *Block) Spoil(now int64, used *float64) {
	if now >= b.until && !b.Over(now) {
		b.renew(now)
	}
	if most := b.room - b.slope*float64(now-b.Sent); b.Left > most {
		*used += b.Left - max(0, most)
		b.Left = max(0, most)
	}
}

// Draw takes n from the block, if it has as much.
func (b *Block) Draw(n float64, now int64, used *float64) bool {
	if now >= b.until {
		return false
	}
	if most := b.room - b.slope*float64(now-b.Sent); b.Left > most {
		b.Spoil(now, used)
	}
	if n > b.Left {
		return false
	}
	b.Left -= n
	*used += n
	return true
}

// Back returns how much of the block may be given back by a statement that is sent now.
//
// The statement takes effect at most Late after now. By the time when all that was taken before it
// has left every process's memory, what is given back must not have expired: the proof above
// then still holds. For windows without rollover only the window matters, and the statement checks
// that.
func (b *Block) Back(now int64) float64 {
	most := b.Bound(now)
	if !b.rule.Windowed || b.rule.Capacity > b.rule.Rate {
		most = b.Bound(now + int64(Late+Kept+Late))
	}
	return max(0, min(b.Left, most))
}
