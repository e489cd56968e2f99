// Package shardsim plays callers of one limit with shards against each other, in a time of its own and without a database: to
// learn how many shards a limit needs, from [shard.Choose] as it is and from thousands of crowds in seconds.
//
// A caller takes, works for a while in the same transaction, commits, and begins anew. It chooses by what its process knows:
// how the shards stood when that last heard of them, and which of its connections took from them. The shards themselves are as
// in the database: one transaction holds one at a time, the others pass over it or wait, and who looks at all of them sees what
// is committed. Not played are the conflicts of SERIALIZABLE, where a caller that has waited fails and runs again; what is
// remembered of denials; and that who gathers from several shards may hold some while it waits for others. The same crowd
// always does the same.
package shardsim

import (
	"math/rand/v2"
	"slices"

	"github.com/weir-go/weir/shard"
)

// Crowd is who takes from what.
type Crowd struct {
	Shards    int
	Callers   int // each with a connection, all the time in a transaction or between two
	Processes int // that the callers are divided among; default 1

	// Capacity of the limit. Each take is of 1 to [MaxCount] tokens.
	Capacity float64

	// Load is what the callers ask for as a share of the limit's rate, as long as none has to wait.
	Load float64

	Takes int // to play
	Seed  uint64
}

// Each count from 1 to MaxCount is as frequent as the others.
const (
	MaxCount  = 5
	MeanCount = (1 + MaxCount) / 2.
)

const (
	work = 0.002  // seconds of a transaction after its take, in the mean
	trip = 0.0003 // seconds of a round trip

	lately = 1.0 // as in package ratelimit: seconds for which a shard is left to the connection that took from it last
	rounds = 3   // as there: of looking and taking, before a transaction that holds something runs again
)

// Report is what became of the takes.
type Report struct {
	Takes  int
	Denied int
	Looked int // takes that had to look at all shards, as the choice had found none or a wrong one
	Gather int // takes that were gathered from several shards
	Met    int // takes that came to a shard that another transaction held, and had to wait for it
	Blind  int // takes that a caller who does not look would have denied, though the shards together had the tokens

	Taken, Most float64 // tokens that were granted, and those that there were in that time
}

// Share is n by the number of takes.
func (r Report) Share(n int) float64 { return float64(n) / float64(r.Takes) }

// Play plays a crowd. Its first takes, while nothing is known yet, do not count.
func Play(c Crowd) Report {
	s := &sim{Crowd: c, random: rand.New(rand.NewPCG(c.Seed, 1))}
	s.capacity = c.Capacity / float64(c.Shards)
	s.rate = float64(c.Callers) * MeanCount / (work + 2*trip) / c.Load / float64(c.Shards)
	s.shards = make([]row, c.Shards)
	for i := range s.shards {
		s.shards[i].value = s.capacity
	}
	books := make([][]page, max(1, c.Processes))
	for i := range books {
		books[i] = make([]page, c.Shards)
	}
	for i := range c.Callers {
		k := &caller{sim: s, book: books[i%len(books)]}
		s.after(s.random.Float64()*work, k.begin)
	}
	early := c.Takes / 5
	for s.report.Takes < early {
		s.next()
	}
	s.report = Report{}
	began, there := s.now, s.truly()
	for s.report.Takes < c.Takes {
		s.next()
	}
	s.report.Most = there + (s.now-began)*s.rate*float64(c.Shards)
	return s.report
}

type sim struct {
	Crowd
	queue
	random         *rand.Rand
	capacity, rate float64 // of each shard
	shards         []row
	report         Report
}

// row is a shard in the database.
type row struct {
	balance         // as committed
	holder  *caller // whose transaction has locked it
	left    balance // by the holder, when it commits
	waiting []func()
}

type balance struct{ value, ts float64 }

// page is what a process knows of a shard.
type page struct {
	balance
	taker *caller // who took from it last, of this process
	taken float64
}

// at is a balance by the time now.
func (s *sim) at(b balance, now float64) balance {
	return balance{min(s.capacity, b.value+s.rate*max(0, now-b.ts)), max(b.ts, now)}
}

// truly is what all shards have, when those who hold some of them have committed.
func (s *sim) truly() (sum float64) {
	for i := range s.shards {
		b := s.shards[i].balance
		if s.shards[i].holder != nil {
			b = s.shards[i].left
		}
		sum += s.at(b, s.now).value
	}
	return sum
}

type caller struct {
	*sim
	book []page

	count float64
	held  []int // the shards that its transaction has locked
	took  []int // those of them that it took from
	round int
	was   struct{ looked, met bool } // of this take: each counts once
}

// begin begins a take.
func (k *caller) begin() {
	k.count = float64(1 + k.random.IntN(MaxCount))
	k.was.looked, k.was.met = false, false
	k.run()
}

// run runs the transaction.
func (k *caller) run() {
	k.round = 0
	if from := k.choose(); len(from) > 0 {
		k.after(trip/2, func() { k.try(from) })
		return
	}
	k.blind()
	k.look()
}

func (k *caller) choose() []int {
	own := -1
	for i := range k.book {
		if p := &k.book[i]; p.taker == k && (own < 0 || p.taken > k.book[own].taken) {
			own = i
		}
	}
	chosen, _ := shard.Choose(k.Shards, own, k.count, 0, func(i int) shard.View {
		p := &k.book[i]
		return shard.View{Tokens: k.at(p.balance, k.now).value, Busy: i != own && p.taken > 0 && k.now-p.taken < lately}
	}, k.random.IntN)
	return chosen
}

// try takes from the first of the candidates that nobody holds.
func (k *caller) try(from []int) {
	for _, i := range from {
		if h := k.shards[i].holder; h == nil || h == k {
			k.take(i)
			return
		}
	}
	switch {
	case len(k.held) > 0 && k.round >= rounds:
		k.again()
	case len(k.held) > 0:
		k.look()
	case len(from) == 1 && k.round == 0: // it was thought to be its own
		k.book[from[0]].taker, k.book[from[0]].taken = nil, k.now
		k.look()
	default:
		k.wait(from[0], func() { k.try(from[:1]) })
	}
}

func (k *caller) take(i int) {
	b := k.at(k.shards[i].balance, k.now)
	k.hold(i)
	if b.value < k.count {
		if k.book[i].taker == k {
			k.book[i].taker, k.book[i].taken = nil, k.now
		}
		k.blind()
		k.look()
		return
	}
	k.takeFrom(i, k.count)
	k.granted()
}

func (k *caller) hold(i int) {
	if r := &k.shards[i]; r.holder == nil {
		r.holder, r.left = k, r.balance
		k.held = append(k.held, i)
	}
}

func (k *caller) takeFrom(i int, count float64) {
	r := &k.shards[i]
	r.left = k.at(r.left, k.now)
	r.left.value -= count
	k.report.Taken += count
	k.took = append(k.took, i)
}

// look reads all shards and takes from those that have enough.
func (k *caller) look() {
	if !k.was.looked {
		k.was.looked = true
		k.report.Looked++
	}
	k.round++
	k.after(trip, func() { // from the one answer to the other, and half of that in the database
		sum, most := 0.0, 0.0
		for i := range k.shards {
			// What it knows of a take of its own that is not committed stands.
			if p := &k.book[i]; p.ts <= k.shards[i].ts || k.now-p.taken >= lately {
				p.balance = k.shards[i].balance
			}
			v := k.at(k.shards[i].balance, k.now).value
			sum, most = sum+v, max(most, v)
		}
		switch from := k.choose(); {
		case sum < k.count:
			k.report.Denied++
			k.end(false)
		case most >= k.count && len(from) > 0:
			k.after(trip/2, func() { k.try(from) })
		default:
			k.after(trip/2, k.gather)
		}
	})
}

// gather takes from the fullest shards, once nobody else holds them.
func (k *caller) gather() {
	order := make([]int, k.Shards)
	for i := range order {
		order[i] = i
	}
	has := func(i int) float64 { return k.at(k.shards[i].balance, k.now).value }
	slices.SortStableFunc(order, func(a, b int) int {
		if has(a) > has(b) {
			return -1
		} else if has(a) < has(b) {
			return 1
		}
		return 0
	})
	rest := k.count
	for n, i := range order {
		if r := &k.shards[i]; r.holder != nil && r.holder != k {
			if len(k.held) > 0 {
				if k.round >= rounds {
					k.again()
				} else {
					k.look()
				}
				return
			}
			k.wait(i, k.gather)
			return
		}
		if rest -= has(i); rest <= 0 {
			order = order[:n+1]
			break
		}
	}
	if rest > 0 { // somebody was faster
		k.look()
		return
	}
	rest = k.count
	for _, i := range order {
		n := min(rest, has(i))
		k.hold(i)
		k.takeFrom(i, n)
		rest -= n
	}
	k.report.Gather++
	k.granted()
}

// wait goes on when the shard's holder has ended.
func (k *caller) wait(i int, do func()) {
	k.meet()
	k.shards[i].waiting = append(k.shards[i].waiting, do)
}

func (k *caller) meet() {
	if !k.was.met {
		k.was.met = true
		k.report.Met++
	}
}

// again runs the transaction again, which holds a shard and must not wait for another.
func (k *caller) again() {
	k.meet()
	k.release(false)
	k.after(trip, k.run)
}

// blind counts a take that stands or falls with the shard that was chosen.
func (k *caller) blind() {
	if !k.was.looked && k.truly() >= k.count {
		k.report.Blind++
	}
}

func (k *caller) granted() {
	k.after(trip/2, func() {
		for _, i := range k.took {
			k.book[i] = page{k.shards[i].left, k, k.now}
		}
		k.end(true)
	})
}

// end works, if there is something to work for, and commits. Who was denied asks again after as long.
func (k *caller) end(commit bool) {
	if !commit {
		k.release(false)
	}
	k.after(work*k.random.ExpFloat64()+trip, func() {
		k.release(commit)
		k.report.Takes++
		k.begin()
	})
}

func (k *caller) release(commit bool) {
	for _, i := range k.held {
		r := &k.shards[i]
		if commit {
			r.balance = r.left
		}
		r.holder = nil
		for _, do := range r.waiting {
			k.after(0, do)
		}
		r.waiting = nil
	}
	k.held, k.took = k.held[:0], k.took[:0]
}
