package ratelimit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/weir-go/weir/internal/jsontext"
	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// Reservation is what a granted call took, to be settled when you know what was used: see
// [Limiter.Settle]. It is a small value that goes through JSON, so it can travel with the work, in
// the metadata of a job, a message or a table.
//
// A reservation that is never settled keeps its estimate.
type Reservation struct {
	ID    uuid.UUID `json:"id"` // of version 7, by the database's clock
	Takes []Take    `json:"takes"`
}

// Take is the part of a [Reservation] of one limit and key: Count tokens. For a limit with [Shards]
// it is the part of one shard, and there may be several.
type Take struct {
	Limit, Key string
	Count      float64

	rule   algebra.Rule // the rule of the take; for a shard, its share
	row    int32        // the shard
	left   algebra.Left // the row after the take
	credit bool         // taken on credit: later callers wait for the debt, not this take
	// with a rule of the request's own, so that redefining the limit changes nothing
	ruled  bool
	settle int64 // how many microseconds after it may run it can be settled; 0: settleWithin
}

// Reservation returns what the call took from enforced limits, each time with the same id. A Result
// that took nothing, because it is a denial, a check or the zero Result, has the zero Reservation,
// which [Limiter.Settle] refuses.
func (r Result) Reservation() Reservation {
	rows, err := r.taken()
	if rows = enforced(rows); err != nil || len(rows) == 0 {
		return Reservation{}
	}
	res := Reservation{ID: r.id, Takes: make([]Take, len(rows))}
	for i := range rows {
		res.Takes[i] = rows[i].takeOf()
	}
	return res
}

// takeOf returns the Take of a row.
func (r *receipt) takeOf() Take {
	rule := r.Rule
	rule.Phased, rule.Debt = false, 0 // settling needs neither, and JSON keeps neither
	return Take{r.Name, r.Key, r.Count, rule, r.Shard, r.Left, r.Credit, r.ruled, r.settle}
}

// Again returns a reservation with the same takes and a new id, for another attempt at the same
// work. It has taken nothing until [Limiter.Renew] charges it.
func (r Reservation) Again() Reservation {
	again := Reservation{Takes: slices.Clone(r.Takes)}
	for _, t := range r.Takes {
		again.ID = withHome(newID(t.left.Since), int(r.ID[len(r.ID)-1]))
	}
	return again
}

// receipt returns what the take was made from.
func (t *Take) receipt() receipt {
	return receipt{Left: t.left, call: call{
		Ask: algebra.Ask{Rule: t.rule, Count: t.Count, Ahead: algebra.Ahead{Credit: t.credit}},
		Row: where.Of(t.Limit, t.Key, t.row), ruled: t.ruled, settle: t.settle,
	}}
}

// RunAt returns when reserved work may run, given the current state of its balance, which
// [Limiter.Lines] returns. [Limiter.Value] returns it, too, if the limit has no shards; of a limit
// with shards it returns their sum, which is wrong here. RunAt is [Outcome.RunAt] and PacedAt,
// moved by what has happened since: pauses, and settlements of earlier reservations. In a pause it
// is not before the pause ends. Both are in the past for work whose tokens were there at once. The
// zero State means that nothing has happened.
func (t Take) RunAt(s State) (runAt, pacedAt time.Time) {
	owed, put := t.line(), int64(0)
	run, paced := t.left.Since, t.left.Since
	switch {
	case s.TS.IsZero():
	case !t.Ahead(): // it waits in no line, nor for a pause that was ended early
		run = min(run, s.TS.UnixMicro())
		paced = run
	default:
		owed -= s.Moved - t.left.Moved
		put = s.Delay.Microseconds() - t.left.Delay
	}
	if owed > 0 {
		run = t.rule.Earliest(-owed, t.left.Since, t.left.Since, 0, 0)
		paced = t.rule.Paced(owed, t.Count-t.credited(), t.left.Since, run)
	}
	return later(s.PausedUntil, fromMicro(min(run+put, algebra.EndOfTime))),
		later(s.PausedUntil, fromMicro(min(paced+put, algebra.EndOfTime)))
}

func later(a, b time.Time) time.Time {
	if b.Before(a) {
		return a
	}
	return b
}

// Ahead says that the take was granted for later, and its work had to wait.
func (t Take) Ahead() bool { return t.line() > 0 }

// line returns how many tokens had to be repaid before the work could run.
func (t *Take) line() float64 { return t.left.Owed - t.credited() }

// credited returns how much of its count the work need not wait for.
func (t *Take) credited() float64 {
	if t.credit {
		return t.Count
	}
	return 0
}

// MoveUp returns the take after n tokens that were owed before it are released, because earlier
// work will not be done. See [Limiter.Release].
func (t Take) MoveUp(n float64) Take {
	t.left.Owed -= n
	return t
}

// settleWithin is how long after its work may run a reservation can be settled, unless the limit
// has its own SettleWithin.
const (
	settleWithin = 30 * 24 * time.Hour
	mostSettle   = 3652 * 24 * time.Hour
)

// until returns the instant from which the reservation can no longer be settled.
func (r *Reservation) until() time.Time {
	last := int64(math.MinInt64)
	for _, t := range r.Takes {
		run, _ := t.RunAt(State{})
		last = max(last, run.UnixMicro()+cmp.Or(t.settle, settleWithin.Microseconds()))
	}
	return fromMicro(min(last, algebra.EndOfTime))
}

// home returns the key under which the settlement is recorded: the least of the keys that the
// reservation took from, so that it stays the same after a Renew.
func (r *Reservation) home() string {
	return slices.MinFunc(r.Takes, func(a, b Take) int { return cmp.Compare(a.Key, b.Key) }).Key
}

// settledAt returns the key under which a reservation is settled. On Citus the rows of a limit
// without keys have homes, and the last byte of the id says at which one: see idOf.
func (l *Limiter) settledAt(r *Reservation) string {
	key := r.home()
	if l.cfg.Citus && key == "" {
		return shard.Home(int(r.ID[len(r.ID)-1]))
	}
	return key
}

func (r *Reservation) check() error {
	if r.ID == uuid.Nil || len(r.Takes) == 0 {
		return &InvalidError{Field: "Reservation", Value: plain("the zero one"),
			Want: "the Reservation of a Result that was granted, or one read back from its JSON"}
	}
	return nil
}

// MarshalJSON writes an object of the id and the takes.
func (r Reservation) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 60+160*len(r.Takes))
	b = append(b, `{"id":"`...)
	b = append(b, r.ID.String()...)
	b = append(b, `","takes":[`...)
	for i := range r.Takes {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.Takes[i].appendJSON(b)
	}
	return append(b, "]}"...), nil
}

// MarshalJSON writes a short array: limit, key, count, and what settling needs. A take on credit
// adds true at the end, one by a rule of its own adds "rule", and a limit with [SettleWithin] adds
// an array of microseconds.
func (t Take) MarshalJSON() ([]byte, error) { return t.appendJSON(nil), nil }

func (t *Take) appendJSON(b []byte) []byte {
	integer := func(n int64) { b = strconv.AppendInt(append(b, ','), n, 10) }
	float := func(f float64) { b = jsontext.Float(append(b, ','), f) }
	b = jsontext.String(append(b, '['), t.Limit)
	b = jsontext.String(append(b, ','), t.Key)
	float(t.Count)
	integer(int64(t.row))
	integer(t.left.Since)
	float(t.left.Owed)
	float(t.left.Moved)
	integer(t.left.Delay)
	float(t.rule.Rate)
	integer(t.rule.Period)
	float(t.rule.Capacity)
	if t.rule.Windowed {
		integer(t.rule.Origin)
	}
	if t.credit {
		b = append(b, ",true"...)
	}
	if t.ruled {
		b = append(b, `,"rule"`...)
	}
	if t.settle != 0 {
		b = append(strconv.AppendInt(append(b, ",["...), t.settle, 10), ']')
	}
	return append(b, ']')
}

// UnmarshalJSON reads it back. An impossible take is refused with an error that matches
// [ErrInvalid].
func (t *Take) UnmarshalJSON(b []byte) error {
	var u Take
	a := []any{&u.Limit, &u.Key, &u.Count, &u.row, &u.left.Since, &u.left.Owed, &u.left.Moved,
		&u.left.Delay, &u.rule.Rate, &u.rule.Period, &u.rule.Capacity}
	bucket := len(a)
	a = append(a, &u.rule.Origin)
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	if n := len(raw) - 1; n >= bucket && raw[n][0] == '[' {
		var settle [1]int64
		if err := json.Unmarshal(raw[n], &settle); err != nil {
			return err
		}
		if u.settle, raw = settle[0], raw[:n]; u.settle < time.Second.Microseconds() ||
			u.settle > mostSettle.Microseconds() {
			return badTake(fmt.Sprintf("to be settled within %d µs", u.settle),
				"a second to ten years")
		}
	}
	if n := len(raw) - 1; n >= bucket && string(raw[n]) == `"rule"` {
		u.ruled, raw = true, raw[:n]
	}
	if n := len(raw) - 1; n >= bucket && string(raw[n]) == "true" {
		u.credit, raw = true, raw[:n]
	}
	if len(raw) != bucket && len(raw) != len(a) {
		return badTake(fmt.Sprintf("an array of %d", len(raw)), fmt.Sprintf(
			"an array of %d, or of %d for a window, and true on credit", bucket, len(a),
		))
	}
	u.rule.Windowed = len(raw) == len(a)
	for i := range raw {
		if err := json.Unmarshal(raw[i], a[i]); err != nil {
			return err
		}
	}
	switch {
	case u.Limit == "" || where.Unfit(u.Limit, MaxNameBytes) != "",
		where.Unfit(u.Key, MaxKeyBytes) != "":
		return badTake(where.Short(u.Limit+" "+u.Key), "a limit and a key")
	case !(u.Count >= 0 && u.Count <= 2*maxTokens):
		return badTake(fmt.Sprintf("of %v tokens", u.Count), "a number that can have been granted")
	case !(u.rule.Rate > 0 && u.rule.Rate <= maxTokens && u.rule.Capacity >= 0 &&
		u.rule.Capacity <= maxTokens && u.rule.Period > 0 && u.rule.Period <= math.MaxInt64/1000):
		return badTake(fmt.Sprintf("by a rule of %v in %d µs up to %v", u.rule.Rate, u.rule.Period,
			u.rule.Capacity), "one that can have been defined")
	case !(math.Abs(u.left.Owed) <= math.MaxFloat64/4 && math.Abs(u.left.Moved) <= math.MaxFloat64/4):
		return badTake(fmt.Sprintf("owing %v, after %v", u.left.Owed, u.left.Moved), "numbers of tokens")
	case u.left.Delay < -algebra.EndOfTime || u.left.Delay > algebra.EndOfTime:
		return badTake(fmt.Sprintf("put off by %d µs", u.left.Delay), "less than ten thousand years")
	case !shard.IsRow(u.row):
		return badTake(fmt.Sprintf("from row %d", u.row), "a shard that there can be")
	case u.left.Since < -algebra.EndOfTime || u.left.Since > algebra.EndOfTime ||
		u.rule.Origin < -algebra.EndOfTime || u.rule.Origin > algebra.EndOfTime:
		return badTake("at another time", "microseconds since the Unix epoch")
	}
	*t = u
	return nil
}

func badTake(value, want string) error {
	return &InvalidError{Field: "Take", Value: plain(value), Want: want}
}
