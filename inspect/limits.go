package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// Limit summarizes a limit, from its first thousand keys, or fewer if there are more than twenty
// limits. As JSON, times are RFC 3339 and the Period is in seconds.
type Limit struct {
	Name   string `json:"name"`
	Shadow bool   `json:"shadow"` // it never denies: see [ratelimit.Shadow]

	// The rule of the balance that was written last, among those that were read; other keys may
	// have other rules. Rate tokens come in each Period, up to Capacity, all at once if it is
	// Windowed.
	Capacity  float64       `json:"capacity"`
	Rate      float64       `json:"rate"`
	Period    time.Duration `json:"period"`
	Windowed  bool          `json:"windowed"`
	Shards    int           `json:"shards"`     // the most that a key has
	WrittenAt time.Time     `json:"written_at"` // the last time by which one of them was written

	Keys int64 `json:"keys"` // that have rows
	// Keys is the planner's guess, as there are more than were looked at
	Estimated bool `json:"estimated"`

	Looked   int `json:"looked"`   // keys that were looked at, of which
	Short    int `json:"short"`    // have less than a tenth of their capacity left,
	InDebt   int `json:"in_debt"`  // owe tokens, or one of their shards does,
	Paused   int `json:"paused"`   // are paused,
	Problems int `json:"problems"` // make no balance: see [Balance.Problem]

	// Tightest is the least that one of these keys has left, as a share of its capacity: 1 if all
	// are full, negative if one is in debt.
	Tightest float64 `json:"tightest"`

	At time.Time `json:"at"` // the database's clock when this was read
}

// MarshalJSON writes the Period in seconds.
func (l Limit) MarshalJSON() ([]byte, error) {
	type plain Limit
	return json.Marshal(struct {
		plain
		Period float64 `json:"period"`
	}{plain(l), l.Period.Seconds()})
}

const (
	mostLimits   = 1000   // how many limits are listed
	mostKeys     = 1000   // how many keys of one limit are read
	leastKeys    = 50     // the same if there are many limits
	mostTogether = 20_000 // how many keys of all limits are read, but at least leastKeys of each
)

// namesSQL finds the names that are in use, each by one descent of the index.
//
// Locks: none. Predicate reads: at READ COMMITTED none.
//
// $1 number of names
const namesSQL = `WITH RECURSIVE names (name, nr) AS (
	(SELECT name, 1 FROM {table} ORDER BY name LIMIT 1)
	UNION ALL
	SELECT (SELECT b.name FROM {table} b WHERE b.name > n.name ORDER BY b.name LIMIT 1), n.nr + 1
	FROM names n WHERE n.nr < $1::integer AND n.name IS NOT NULL
)
SELECT name FROM names WHERE name IS NOT NULL ORDER BY nr`

// guessSQL asks the planner how many rows there are.
const guessSQL = `EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE name = $1::text`

// Names lists the limits that have rows, the first thousand in the order of their bytes.
func (r *Reader) Names(ctx context.Context) (names []string, err error) {
	err = r.read(ctx, func(tx pgx.Tx) error {
		if r.portable.Load() {
			names, err = r.namesOneByOne(ctx, tx)
			return err
		}
		rows, _ := tx.Query(ctx, r.sql(namesSQL), mostLimits) // CollectRows returns its error
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return nil, explain(err, "list limits")
	}
	return names, nil
}

// Limits reads each limit of [Reader.Names], in a transaction of its own. It reads an index page or
// two for each key.
func (r *Reader) Limits(ctx context.Context) ([]Limit, error) {
	names, err := r.Names(ctx)
	if err != nil {
		return nil, err
	}
	limits := make([]Limit, 0, len(names))
	for _, name := range names {
		l, err := r.limit(ctx, name, min(mostKeys, max(leastKeys, mostTogether/len(names))))
		switch {
		case err == nil:
			limits = append(limits, l)
		case !errors.Is(err, ErrNoBalance): // otherwise it was pruned meanwhile
			return nil, err
		}
	}
	return limits, nil
}

// Limit is one of [Reader.Limits]. Without any rows the error matches [ErrNoBalance].
func (r *Reader) Limit(ctx context.Context, name string) (Limit, error) {
	return r.limit(ctx, name, mostKeys)
}

func (r *Reader) limit(ctx context.Context, name string, most int) (l Limit, err error) {
	err = r.read(ctx, func(tx pgx.Tx) error {
		balances, err := r.keys(ctx, tx, name, "", "", most+1)
		if err == nil && len(balances) == 0 {
			err = fmt.Errorf("%w: it was never used, or all of its keys are full and were pruned",
				ErrNoBalance)
		}
		if err != nil {
			return err
		}
		l = summarize(name, balances[:min(most, len(balances))])
		if len(balances) <= most {
			return nil
		}
		var plan []byte
		if err := tx.QueryRow(ctx, r.sql(guessSQL), name).Scan(&plan); err != nil {
			return err
		}
		var guess [1]struct {
			Plan struct {
				Rows float64 `json:"Plan Rows"`
			}
		}
		if err := json.Unmarshal(plan, &guess); err != nil {
			return fmt.Errorf("read the plan %s: %w", plan, err)
		}
		l.Keys, l.Estimated = max(int64(guess[0].Plan.Rows)/int64(l.Shards), int64(len(balances))),
			true
		return nil
	})
	if err != nil {
		return Limit{}, explain(err, fmt.Sprintf("limit %q", name))
	}
	return l, nil
}

// summarize makes a Limit from some of its balances.
func summarize(name string, balances []Balance) Limit {
	l := Limit{Name: name, Shadow: strings.HasSuffix(name, " (shadow)"), Shards: 1,
		Keys: int64(len(balances)), Looked: len(balances),
		Tightest: 1, At: balances[0].At}
	ruled := false
	for _, b := range balances {
		l.Shards = max(l.Shards, b.Shards)
		if b.Problem != "" {
			l.Problems++
			continue
		}
		if !ruled || b.WrittenAt.After(l.WrittenAt) {
			l.Capacity, l.Rate, l.Period, l.Windowed, l.WrittenAt = b.Capacity, b.Rate, b.Period,
				b.Windowed, b.WrittenAt
			ruled = true
		}
		if b.Capacity > 0 {
			l.Tightest = min(l.Tightest, b.Value/b.Capacity)
		} else {
			l.Tightest = min(l.Tightest, b.Value)
		}
		if b.Value < b.Capacity/10 {
			l.Short++
		}
		if b.Owed > 0 {
			l.InDebt++
		}
		if !b.PausedUntil.IsZero() {
			l.Paused++
		}
	}
	return l
}

// Page says which keys of a limit to read. The zero Page is the first hundred.
type Page struct {
	From   string // the first key; the next of the page before
	Prefix string // only keys that begin with it
	Most   int    // keys; up to 1000. Default: 100.
}

// Keys reads the balances of keys, in the order of their bytes, and the key from which the next
// page goes on: "" if there is none. A Page.Most below 0 or above 1000 is refused with an error
// that matches [ratelimit.ErrInvalid].
func (r *Reader) Keys(
	ctx context.Context, name string, p Page,
) (balances []Balance, next string, err error) {
	if p.Most < 0 || p.Most > mostKeys {
		return nil, "", &ratelimit.InvalidError{Limit: name, Field: "inspect.Page.Most",
			Value: p.Most,
			Want:  "a number from 1 to 1000, or 0 for the default"}
	}
	if p.Most == 0 {
		p.Most = 100
	}
	err = r.read(ctx, func(tx pgx.Tx) error {
		balances, err = r.keys(ctx, tx, name, p.From, p.Prefix, p.Most+1)
		return err
	})
	if err != nil {
		return nil, "", explain(err, fmt.Sprintf("keys of limit %q", name))
	}
	if len(balances) > p.Most {
		balances, next = balances[:p.Most], balances[p.Most].Key
	}
	return balances, next, nil
}
