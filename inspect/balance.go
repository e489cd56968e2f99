package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
)

// Balance is the state of one key of a limit. As JSON, times are RFC 3339 and the Period is in
// seconds.
type Balance struct {
	Limit string `json:"limit"` // ends in " (shadow)" where it never denies: see [ratelimit.Shadow]
	Key   string `json:"key"`   // "" for a limit without keys

	// Value is the number of tokens left at At, in all shards together: what
	// [ratelimit.Limiter.Value] returns for the rule below. Negative: owed.
	Value float64 `json:"value"`

	// Owed is the sum of what shards owe at At to work that waits. Each shard has its own debt, so
	// some may owe while others have tokens. Without shards it is -Value, or 0.
	Owed float64 `json:"owed,omitzero"`

	// The rule of the last write: Rate tokens come in each Period, up to Capacity, all at once if
	// it is Windowed.
	Capacity float64       `json:"capacity"`
	Rate     float64       `json:"rate"`
	Period   time.Duration `json:"period"`
	Windowed bool          `json:"windowed"`

	// WindowEnds is when the present window ends. Zero for a token bucket.
	WindowEnds time.Time `json:"window_ends,omitzero"`

	// FullAt is when Value will be Capacity if nobody takes. Zero if it is already.
	FullAt time.Time `json:"full_at,omitzero"`

	// PausedUntil is when the pause ends. Zero: it is not paused.
	PausedUntil time.Time `json:"paused_until,omitzero"`

	Shards int `json:"shards"` // over which it is spread: see [ratelimit.Shards]
	// when it was written last; later than At if the clock was set back since
	WrittenAt time.Time `json:"written_at"`
	At        time.Time `json:"at"` // the database's clock when this was read

	// Problem says, if it is not "", why the rows make no valid balance: somebody has edited them
	// by hand. Then only the names, Shards, WrittenAt and At are valid. If the rule is not valid,
	// [ratelimit.Limiter.ResetRateLimit] repairs it. Otherwise delete all rows of the limit and key,
	// which is full then.
	Problem string `json:"problem,omitempty"`

	origin time.Time
}

// MarshalJSON writes the Period in seconds.
func (b Balance) MarshalJSON() ([]byte, error) {
	type plain Balance
	return json.Marshal(struct {
		plain
		Period float64 `json:"period"`
	}{plain(b), b.Period.Seconds()})
}

// Rule is the rule of the last write, for calls about a limit that this program does not define.
// Its MaxReserved is not in the row.
func (b Balance) Rule() ratelimit.Rule {
	return rule{b.Capacity, b.Rate, b.Period, b.origin}.whole()
}

// row is a shard as it is stored.
type row struct {
	shard  int32
	value  float64
	ts     time.Time
	rule   rule
	paused time.Time // zero if it is not paused
}

// rule is a rule as it is stored.
type rule struct {
	capacity, rate float64
	period         time.Duration
	origin         time.Time // zero for a token bucket
}

func (r rule) whole() ratelimit.Rule {
	if r.origin.IsZero() {
		return ratelimit.TokenBucket{Rate: r.rate, Period: r.period, Capacity: &r.capacity}
	}
	return ratelimit.FixedWindow{Rate: r.rate, Period: r.period, Capacity: &r.capacity,
		Start: r.origin}
}

// share returns the rule of shard i of n.
func (r rule) share(n, i int) rule {
	shares := (&algebra.Rule{Capacity: r.capacity, Rate: r.rate}).Shares(n)
	r.capacity, r.rate = shares.Of(i).Capacity, shares.Of(i).Rate
	return r
}

// unshare returns the rule of the whole limit if r is that of shard i of n. With shard 0 and any
// other shard the result is exact. Otherwise it is a guess: see unsplit.
func (r rule) unshare(n, i int, first, other *row) rule {
	if first != nil && other != nil {
		x := r
		x.capacity = first.rule.capacity + other.rule.capacity*float64(n-1)
		x.rate = first.rule.rate + other.rule.rate*float64(n-1)
		if x.share(n, 0) == first.rule && x.share(n, 1) == other.rule && x.share(n, i) == r {
			return x
		}
	}
	r.capacity, r.rate = unsplit(r.capacity, n, i), unsplit(r.rate, n, i)
	return r
}

// unsplit returns the whole of which part is the share of shard i of n. Several numbers fit. It
// returns the one with the fewest digits, as people choose round numbers.
func unsplit(part float64, n, i int) float64 {
	about := part * float64(n)
	for digits := 1; digits <= 17; digits++ {
		x, err := strconv.ParseFloat(strconv.FormatFloat(about, 'g', digits, 64), 64)
		if err != nil {
			break
		}
		first, each := shard.Split(x, n)
		if i == 0 && first == part || i > 0 && each == part {
			return x
		}
	}
	return about
}

// looked is the limit of every decision here; the requests bring their own rules. No program may
// use its name, because defining a name again replaces the earlier definition.
var looked = ratelimit.MustDefine("weir: inspect",
	ratelimit.TokenBucket{Rate: 1, Period: time.Second})

// decide returns the outcome of a call for n tokens.
func (r rule) decide(n float64, s ratelimit.State, at time.Time) (ratelimit.Decision, error) {
	return ratelimit.Decide(looked.Global().Count(n).Rule(r.whole()), s, at)
}

// fill returns the state of a shard at a time, and when the shard will be full: at, if it is
// already.
func (s row) fill(by rule, at time.Time) (now ratelimit.State, full time.Time, err error) {
	if !(s.value < math.Inf(1)) {
		s.value = by.capacity // NaN and infinity count as full
	}
	state := ratelimit.State{Value: s.value, TS: s.ts, PausedUntil: s.paused}
	d, err := by.decide(0, state, at)
	if err != nil || d.State.Value >= by.capacity {
		return d.State, at, err
	}
	then, err := by.decide(by.capacity, state, at)
	return d.State, then.RetryAt, err
}

// sum makes a balance from the rows of one key. number is the value of its head row, or 1 without
// one: it says which layout the rows are of.
func (b Balance) sum(number float64, rows []row) Balance {
	layout, valid := shard.Numbered(number)
	if !valid {
		return b.bad("the head row has the value %v, which is no valid layout", number)
	}
	n := layout.Shards
	b.Shards = n
	var last, other *row // the row that was written last, and that of any shard except shard 0
	shards := make([]*row, n)
	for i := range rows {
		r := &rows[i]
		if r.ts.After(b.WrittenAt) {
			b.WrittenAt = r.ts
		}
		_, nr := shard.Address(r.shard)
		if math.IsInf(r.value, -1) {
			return b.bad("shard %d of %d is closed, and should not be", nr, n)
		}
		shards[nr] = r
		if nr > 0 {
			other = r
		}
		if last == nil || r.ts.After(last.ts) {
			last = r
		}
	}
	by := rule{}
	switch {
	case last != nil:
		_, i := shard.Address(last.shard)
		by = last.rule.unshare(n, i, shards[0], other)
	default:
		return b.bad("it has a head row, but no row of a shard")
	}
	b.Capacity, b.Rate, b.Period, b.origin, b.Windowed = by.capacity, by.rate, by.period, by.origin,
		!by.origin.IsZero()
	start, err := by.decide(0, ratelimit.State{}, b.At)
	if err != nil {
		return b.bad("the rule in its row is not valid: %v", err)
	}
	if b.Windowed {
		b.WindowEnds = start.State.TS.Add(b.Period)
	}
	for i, r := range shards {
		share := by.share(n, i)
		if r == nil {
			b.Value += share.capacity
			continue
		}
		s, full, err := r.fill(share, b.At)
		if err != nil {
			return b.bad("shard %d of %d: %v", i, n, err)
		}
		b.Value += s.Value
		b.Owed += max(0, -s.Value)
		b.PausedUntil = later(b.PausedUntil, s.PausedUntil)
		if full.After(b.At) {
			b.FullAt = later(b.FullAt, full)
		}
	}
	if b.Value >= b.Capacity { // then all shards are full, except for rounding
		b.FullAt = time.Time{}
	}
	return b
}

func (b Balance) bad(format string, args ...any) Balance {
	return Balance{Limit: b.Limit, Key: b.Key, Shards: b.Shards, WrittenAt: b.WrittenAt, At: b.At,
		Problem: fmt.Sprintf(format, args...)}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// keysSQL reads keys of a limit in order, and the rows of their present layouts. It finds each key
// by one descent of the index, and reads the clock once.
//
// Locks: none. Predicate reads: at READ COMMITTED none.
//
// $1 name $2 the first key $3 the prefix of the keys $4 number of keys $5 clock
const keysSQL = `WITH RECURSIVE keys (key, nr) AS (
	(SELECT key, 1 FROM {table} WHERE name = $1::text AND key >= $2::text ORDER BY key LIMIT 1)
	UNION ALL
	SELECT (SELECT b.key FROM {table} b WHERE b.name = $1::text AND b.key > k.key ORDER BY b.key LIMIT 1), k.nr + 1
	FROM keys k WHERE k.nr < $4::integer AND starts_with(k.key, $3::text)
), clock AS MATERIALIZED (
	SELECT coalesce($5::timestamptz, clock_timestamp()) AS clock
)
SELECT k.key, c.clock, h.number, b.shard, b.value, b.ts, b.capacity, b.rate, b.period, b.origin, b.paused_until
FROM keys k CROSS JOIN clock c
CROSS JOIN LATERAL (SELECT l.number, l.nr & 2047 AS n, (l.nr >> 11 << 20) + (l.nr & 2047) * ((l.nr & 2047) - 1) / 2 AS first
	FROM (SELECT coalesce(max(value), 1::float8) AS number,
			coalesce(max(CASE WHEN value BETWEEN 1::float8 AND 4194303::float8 THEN value::integer ELSE 0 END), 1) AS nr
		FROM {table} WHERE name = $1::text AND key = k.key AND shard = -1) l) h
LEFT JOIN LATERAL (
	SELECT * FROM {table} WHERE name = $1::text AND key = k.key AND shard BETWEEN h.first AND h.first + h.n - 1
) b ON true
WHERE k.key IS NOT NULL AND starts_with(k.key, $3::text)
ORDER BY k.nr, b.shard`

// keys reads the balances of keys that begin with prefix, in order from the key from on. It reads
// at most as many keys as most says.
func (r *Reader) keys(
	ctx context.Context, tx pgx.Tx, name, from, prefix string, most int,
) ([]Balance, error) {
	from = max(from, prefix)
	var found pgx.Rows
	var err error
	if r.portable.Load() {
		found, err = r.rowsOfKeys(ctx, tx, name, from, prefix, most)
	} else {
		found, err = tx.Query(ctx, r.sql(keysSQL), name, from, prefix, most, r.now())
	}
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var all []Balance
	var one Balance
	var rows []row
	var number float64
	of := 0
	end := func() {
		if of > 0 {
			all = append(all, one.sum(number, rows))
		}
	}
	for found.Next() {
		var key string
		var at time.Time
		var layout float64
		var nr pgtype.Int4
		var value, capacity, rate pgtype.Float8
		var period pgtype.Int8
		var ts, origin, paused pgtype.Timestamptz
		if err := found.Scan(&key, &at, &layout, &nr, &value, &ts, &capacity, &rate, &period,
			&origin, &paused); err != nil {
			return nil, err
		}
		if of == 0 || key != one.Key {
			end()
			one, rows, number, of = Balance{Limit: name, Key: key, At: at.UTC()}, nil, layout, of+1
		}
		if nr.Valid && isOf(nr.Int32, layout) {
			if period.Int64 > math.MaxInt64/1000 {
				period.Int64 = 0 // it does not fit a Duration; 0 is invalid, too
			}
			rows = append(rows,
				row{nr.Int32, value.Float64, instant(ts), rule{capacity.Float64, rate.Float64,
					time.Duration(period.Int64) * time.Microsecond, instant(origin)},
					instant(paused)})
		}
	}
	end()
	return all, found.Err()
}

// isOf reports whether a row is one of the layout with that number.
func isOf(row int32, number float64) bool {
	layout, ok := shard.Numbered(number)
	if !ok || !shard.IsRow(row) {
		return false
	}
	of, _ := shard.Address(row)
	return of == layout
}

// lastInstant is the last time that RFC 3339, and so JSON, can write.
var lastInstant = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// instant returns the zero time for null and -infinity, and lastInstant for infinity and for times
// that are later.
func instant(t pgtype.Timestamptz) time.Time {
	switch {
	case !t.Valid || t.InfinityModifier == pgtype.NegativeInfinity:
		return time.Time{}
	case t.InfinityModifier == pgtype.Infinity || t.Time.After(lastInstant):
		return lastInstant
	}
	return t.Time.UTC()
}

// Balance reads the state of one key; "" is the key of a limit without keys. Without a row the
// error matches [ErrNoBalance].
func (r *Reader) Balance(ctx context.Context, name, key string) (b Balance, err error) {
	err = r.read(ctx, func(tx pgx.Tx) error {
		found, err := r.keys(ctx, tx, name, key, key, 1)
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].Key != key {
			return fmt.Errorf("%w: it was never used, or it is full and was pruned", ErrNoBalance)
		}
		b = found[0]
		return nil
	})
	if err != nil {
		return Balance{}, explain(err, fmt.Sprintf("limit %q, key %q", name, key))
	}
	return b, nil
}
