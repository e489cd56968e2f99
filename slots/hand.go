package slots

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
)

// Hand is for package scheduler, which hands slots from job to job: see scheduler.AtOnce. Nothing
// else can use what it returns.
func (s *Slots) Hand() hand.Slots { return hander{s} }

// Hand is for package scheduler, as [Slots.Hand] is. It returns an error for a bad request.
func (r Request) Hand() (hand.Want, error) {
	w, err := r.resolve()
	return hand.Want{Place: hand.Place{Name: w.name, Key: w.key}, N: w.n}, err
}

const (
	// claimSQL takes over a slot that Give granted: it replaces the holder.
	claimSQL = `
WITH clock AS MATERIALIZED (
	SELECT c.now, c.now + $6::bigint::float8 * interval '1 microsecond' AS until,
		round(date_part('epoch', c.now) * 1e6::float8)::bigint AS token
	FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) c
)
UPDATE {schema}weir_slot AS s SET holder = $4::text::uuid, until = clock.until, token = greatest(s.token + 1, clock.token)
FROM clock WHERE s.name = $2::text AND s.key = $3::text AND s.holder = $5::text::uuid AND s.until > clock.now
RETURNING s.slot, s.token`

	// countSQL counts the held slots of several keys.
	countSQL = `
SELECT s.name, s.key, count(*)::integer FROM {schema}weir_slot AS s, unnest($2::text[], $3::text[]) AS w (name, key)
WHERE s.name = w.name AND s.key = w.key AND s.until > coalesce($1::timestamptz, clock_timestamp()){one}
GROUP BY s.name, s.key`
)

type hander struct{ s *Slots }

func (h hander) Take(ctx context.Context, on hand.Connect, w hand.Want) (hand.Hold, error) {
	want := &want{place{w.Name, w.Key}, w.N}
	sl, err := h.s.one(ctx, on, want, 0, false)
	switch {
	case errors.Is(err, ErrFull):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return handed{h.s.hold([]*slot{sl})}, nil
}

func (h hander) Claim(
	ctx context.Context, on hand.Connect, w hand.Want, given string,
) (hand.Hold, error) {
	holder, before := uuid.NewString(), time.Now()
	until := h.s.lostAt(before)
	got := &slot{Slot: Slot{Limit: w.Name, Key: w.Key}, holder: holder, n: w.N, since: before,
		until: until}
	var sl *slot
	ctx, cancel := context.WithDeadline(ctx, until) // a later answer is useless: the slot is lost
	defer cancel()
	claim := func(b *pgx.Batch) {
		b.Queue(h.s.sql.claim, h.s.clock(), w.Name, w.Key, holder, given, h.s.ttl.Microseconds()).
			Query(func(rows pgx.Rows) error {
				_, err := pgx.ForEachRow(rows, []any{&got.Number, &got.Token}, func() error {
					sl = got
					return nil
				})
				return err
			})
	}
	err := on(ctx, func(c *pgxpool.Conn) error { return h.s.trip(ctx, c, claim) })
	p := place{w.Name, w.Key}
	switch {
	case err != nil:
		h.s.tidy(p, holder)
		return nil, explain(ctx, err, "claim a slot of", p)
	case sl == nil:
		return nil, nil
	case !h.s.keep(sl):
		_ = h.s.forget(p, holder) // if this fails, the slot expires
		return nil, errClosed(&want{place: p})
	}
	return handed{h.s.hold([]*slot{sl})}, nil
}

func (h hander) Free(b *pgx.Batch, s hand.Slot) {
	keys := []string{s.Key}
	sql, args := h.s.sql.release.of(keys, []string{s.Name}, keys, []int32{int32(s.Number)}, //nolint:gosec // it was an int32
		[]string{s.Holder})
	b.Queue(sql, args...)
}

func (h hander) Give(
	ctx context.Context, q hand.Querier, w hand.Want, holder string, d time.Duration,
) (bool, error) {
	for locked := false; ; {
		a, err := h.s.acquireOn(ctx, q, &want{place{w.Name, w.Key}, w.N}, holder, locked, d)
		if err != nil || a.slot != nil || a.live >= int64(w.N) {
			return a.slot != nil, err
		}
		locked = a.left
	}
}

// Held asks with one statement, which reads all nodes of Citus. If that fails, it asks on Citus for
// each key by itself.
func (h hander) Held(ctx context.Context, places []hand.Place) (map[hand.Place]int, error) {
	brief, cancel := context.WithTimeout(ctx, patience/2)
	held, err := h.s.count(brief, places)
	cancel()
	if err == nil {
		return held, nil
	}
	held = make(map[hand.Place]int, len(places))
	var mu sync.Mutex
	keyOf := func(p hand.Place) string { return p.Key }
	err = eachKey(ctx, h.s, patience, places, keyOf, func(ctx context.Context, some []hand.Place) error {
		counted, err := h.s.count(ctx, some)
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(held, counted)
		return err
	})
	return held, err
}

// count counts the held slots of each place with one statement.
func (s *Slots) count(ctx context.Context, places []hand.Place) (map[hand.Place]int, error) {
	names, keys := make([]string, len(places)), make([]string, len(places))
	counted := make(map[hand.Place]int, len(places))
	for i, p := range places {
		names[i], keys[i], counted[p] = p.Name, p.Key, 0
	}
	var p hand.Place
	var n int
	sql, args := s.sql.count.of(keys, s.clock(), names, keys)
	err := s.trip(ctx, s.pool, func(b *pgx.Batch) {
		b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&p.Name, &p.Key, &n}, func() error {
				counted[p] = n
				return nil
			})
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return counted, nil
}

// handed is a Hold of one slot.
type handed struct{ *Hold }

func (h handed) Drop() (hand.Slot, bool) {
	s := h.s
	s.mu.Lock()
	var mine *slot
	for _, sl := range h.slots {
		mine = sl
		s.drop(sl)
	}
	h.slots = nil
	s.mu.Unlock()
	h.end(ErrReleased)
	if mine == nil {
		return hand.Slot{}, false
	}
	return hand.Slot{Place: hand.Place{Name: mine.Limit, Key: mine.Key}, Number: mine.Number,
		Holder: mine.holder}, true
}
