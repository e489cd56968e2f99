package ratelimit

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/statements"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// statement is one statement, with room for the row that it answers with, if any.
type statement struct {
	sql    string
	args   []any
	c      *call // the call whose row it is about; nil for a statement without an answer
	writes bool  // it locks that row, and InTx may queue for it

	answer columnsOf
	found  bool
	looks  bool  // it also answers with the clock
	many   *many // it is about many rows
	once   *bool // the only column, of Settle
	line   bool  // of ClosedLine: it answers with the end of a pause, the clock and the row's time

	whole  *call   // for a shard c: the call for the whole limit
	shards []int32 // of TakeShard: the candidates' rows
	row    int32   // the one of them that was taken from
	lone   bool    // there is only one candidate
	parts  int     // of TakeParts: from how many of them it takes
	rows   []part  // of TakeParts: its answer
	look   *look   // the columns of LookShards

	here *time.Time // on Citus, of a look: the clock that counts; see citus.go
}

// columnsOf is an answer by its columns; at is the clock, for statements that answer with it.
type columnsOf struct {
	value  pgtype.Float8
	ts     pgtype.Timestamptz
	paused pgtype.Timestamptz
	delay  pgtype.Int8
	moved  pgtype.Float8
	at     time.Time
}

// part is one row of the answer of TakeParts.
type part struct {
	columnsOf
	row int32
}

// claims goes over the rows from which a take of shards will take, if nobody else holds them.
func (s *statement) claims(yield func(where.Row) bool) {
	r := s.c.Row
	for k := 1; yield(r) && k < s.parts; k++ {
		r.Shard = s.shards[k]
	}
}

// apart returns a statement for each shard from which s, of TakeParts, has taken, as if each had
// been sent by itself. If these are too few, s follows, which has then taken nothing.
func (s *statement) apart() []*statement {
	all := make([]*statement, 0, s.parts)
	for _, p := range s.rows {
		layout, i := shard.Address(p.row)
		one, c := *s, s.whole.take(layout, i, s.c.Count)
		one.c, one.answer, one.row = &c, p.columnsOf, p.row
		all = append(all, &one)
	}
	if s.found = false; len(all) < s.parts {
		all = append(all, s)
	}
	return all
}

// dest returns where Scan puts the columns of the answer.
func (s *statement) dest() []any {
	switch a := &s.answer; {
	case s.once != nil:
		return []any{s.once}
	case s.line:
		return []any{&a.paused, &a.at, &a.ts}
	case s.look != nil:
		return s.look.dest()
	case s.shards != nil:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved, &s.row}
	case s.looks:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved, &a.at}
	case s.here != nil:
		return []any{s.here}
	default:
		return []any{&a.value, &a.ts, &a.paused, &a.delay, &a.moved}
	}
}

// balance returns the row that the statement answered with.
func (s *statement) balance() algebra.Balance {
	a := &s.answer
	if !s.found || !a.value.Valid || !a.ts.Valid {
		return algebra.Balance{}
	}
	b := algebra.Balance{Exists: true, Value: number(a.value.Float64), TS: a.ts.Time.UnixMicro(),
		PausedUntil: algebra.Open, Delay: a.delay.Int64, Moved: a.moved.Float64}
	if a.paused.Valid {
		b.PausedUntil = min(a.paused.Time.UnixMicro(), algebra.EndOfTime)
	}
	return b
}

// saw returns what a look has read. It is not valid if the head says what is no layout.
func (s *statement) saw() (w *spread.Whole, valid bool) {
	if s.look != nil {
		return s.look.whole()
	}
	var one struct { // one allocation
		spread.Whole
		row [1]algebra.Balance
	}
	one.row[0] = s.balance()
	one.Whole = spread.Whole{Layout: shard.Single, Rows: one.row[:], At: s.answer.at.UnixMicro()}
	return &one.Whole, true
}

// number returns a stored value as arithmetic needs it: NaN and infinity count as full, as in SQL's
// least.
func number(value float64) float64 {
	if value < math.Inf(1) {
		return value
	}
	return algebra.Full
}

func (c *call) originTime() any {
	if !c.Windowed {
		return nil
	}
	return fromMicro(c.Origin)
}

// The places of some parameters of package statements among the arguments.
const (
	argCapacity = 3
	argClock    = 7
	argLeast    = 9  // of takes: the least balance to leave
	argAhead    = 10 // of takes: whether they may be granted for later; Within in microseconds
	argParts    = 12 // of TakeParts
)

// write returns a statement that writes the row of c, with the parameters of package statements.
func (l *Limiter) write(c *call, sql string, tokens float64, more ...any) *statement {
	a := c.args
	if a == nil {
		a = argsOf(c.Name, &c.Rule)
	}
	args := make([]any, 0, 16)
	args = append(args, a.name, l.home(c), c.Shard, a.capacity, a.rate, a.period, tokens, l.now(),
		c.originTime())
	return &statement{c: c, writes: true, sql: sql, args: append(args, more...)}
}

// put overwrites the row of c.
func (l *Limiter) put(c *call, b algebra.Balance) *statement {
	var paused any
	if b.PausedUntil != algebra.Open {
		paused = fromMicro(b.PausedUntil)
	}
	s := l.write(c, l.sql.Put, b.Value, paused, b.Delay, b.Moved)
	if b.TS != 0 {
		s.args[argClock] = fromMicro(b.TS)
	}
	return s
}

// takeOrFailOf is takeOf with a statement that fails its transaction on a denial.
func (l *Limiter) takeOrFailOf(c *call) *statement {
	s := l.takeOf(c)
	if s.sql = l.sql.For(c.Windowed).TakeOrFail; c.Within > 0 {
		s.sql = l.sql.For(c.Windowed).TakeWithinOrFail
	}
	return s
}

func (l *Limiter) takeOf(c *call) *statement {
	if c.Within > 0 {
		return l.write(c, l.sql.For(c.Windowed).TakeWithin, c.Count, c.Least(), float64(c.Within),
			c.Credited())
	}
	return l.write(c, l.sql.For(c.Windowed).Take, c.Count, c.Least(), c.Pausable())
}

// giveOf gives back what c took, except what was used of it. If that goes to other rows, it only
// moves the line, or is nil.
func (l *Limiter) giveOf(c *change, used float64, move bool) *statement {
	switch {
	case c.line > 0 && move:
		return l.write(&c.call, l.sql.Charge, -c.line)
	case c.line > 0:
		return nil
	}
	sql := l.sql.For(c.Windowed)
	s := l.write(&c.call, sql.Give, c.Count, float64(algebra.Full), used, move)
	if c.Windowed {
		s.args = append(s.args, fromMicro(c.Since), c.Owed, c.Delay, c.Moved)
	}
	if c.Shard != alone && !l.cfg.Portable {
		s.sql, s.args = sql.GiveShard, append(s.args, c.Busy(c.Shard))
	}
	return s
}

// undoOf gives back all that c took. It moves the line only if c did not wait in it: the tokens of
// such a take were taken ahead of all work that waits, so that work may have them.
func (l *Limiter) undoOf(c *change) *statement { return l.giveOf(c, 0, c.atOnce()) }

func (l *Limiter) chargeOf(c *call, tokens float64) *statement {
	if c.Shard != alone && !l.cfg.Portable {
		return l.write(c, l.sql.ChargeShard, tokens, c.Busy(c.Shard))
	}
	return l.write(c, l.sql.Charge, tokens)
}

// lockOf locks the row of c, which it inserts if there is none. It takes no advisory lock: callers
// wait for a transaction that locks all shards, and are not denied.
func (l *Limiter) lockOf(c *call) *statement { return l.write(c, l.sql.Charge, 0) }

func (l *Limiter) settleOf(r *Reservation) *statement {
	return &statement{sql: l.sql.Settle,
		args: []any{r.ID.String(), r.until(), l.now(), l.settledAt(r)}, once: new(bool)}
}

func (l *Limiter) resetOf(c *call) *statement { return l.write(c, l.sql.Reset, algebra.Full) }

func (l *Limiter) pauseOf(c *call, d int64, at *pausing) *statement {
	sql := l.sql.For(c.Windowed).Pause
	if at == nil {
		return l.write(c, sql, algebra.Full, d, nil)
	}
	s := l.write(c, sql, algebra.Full, d, at.until)
	s.args[argClock] = at.now
	return s
}

func (l *Limiter) resumeOf(c *call, at *pausing) *statement {
	sql := l.sql.For(c.Windowed).Resume
	if at == nil {
		return l.write(c, sql, algebra.Full, nil, nil)
	}
	s := l.write(c, sql, algebra.Full, at.until, at.since)
	s.args[argClock] = at.now
	return s
}

// closedOf is pauseOf or resumeOf for the closed rows of former layouts.
func (l *Limiter) closedOf(c *call, sql string, at *pausing, more ...any) (all []*statement) {
	for _, key := range l.homes(c.Key) {
		all = append(all, &statement{c: c, sql: sql,
			args: append([]any{c.Name, key, at.now, at.until}, more...), once: new(bool)})
	}
	return all
}

func (l *Limiter) lookOf(c *call) *statement {
	var name any // see ruleArgs
	if c.args != nil {
		name = c.args.name
	} else {
		name = c.Name
	}
	return &statement{c: c, sql: l.sql.Look, args: []any{name, l.home(c), c.Shard, l.now()},
		looks: true, here: l.here()}
}

// now is the time of Config.Clock, or nil for the database's clock.
func (l *Limiter) now() any {
	if l.cfg.Clock == nil {
		return nil
	}
	return l.cfg.Clock()
}

// queueFor returns the statements with which a transaction queues for the rows of advisory locks.
func queueFor(sql *statements.Statements, locks []int64) []*statement {
	args := make([]any, len(locks))
	for i, n := range locks {
		args[i] = n
	}
	lock, next, keep := sql.Queue(len(locks))
	return []*statement{{sql: lock, args: args}, {sql: next}, {sql: keep, args: args}}
}
