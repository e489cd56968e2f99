package ratelimit

import (
	"slices"
	"testing"
	"time"
)

// On Citus the clock is read after takes and before looks, and replaces the one of the node that a
// look was sent to. Elsewhere nothing is added.
func TestOnCitusTheClockIsReadBetweenTakesAndLooks(t *testing.T) {
	t.Parallel()
	calls := resolved(t, apples.For("x"))
	c := &calls[0]
	trip := func(cfg Config) (trip []*statement, looks []*statement) {
		l := limiterFor(t, cfg)
		row := &standing{c: c}
		looks = []*statement{l.lookOf(c), l.looksAtShards(calls)[0], l.lookMany([]*standing{row})[0], l.lookOf(c)}
		return []*statement{{sql: beginTogetherSQL}, l.takeOf(c), looks[0], looks[1], looks[2], l.takeOf(c), looks[3],
			{sql: commitSQL}}, looks
	}
	texts := func(trip []*statement) (all []string) {
		for _, s := range trip {
			all = append(all, s.sql)
		}
		return all
	}
	for _, cfg := range []Config{{}, {Portable: true}, {Citus: true, Clock: time.Now}} {
		sent, _ := trip(cfg)
		if got, want := texts(timed(sent)), texts(sent); !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", cfg, got, want)
		}
	}

	sent, looks := trip(Config{Citus: true})
	want := texts(sent)
	want = slices.Insert(slices.Insert(want, 6, clockSQL), 2, clockSQL)
	got := timed(sent)
	if !slices.Equal(texts(got), want) {
		t.Fatalf("%q, want %q", texts(got), want)
	}
	now := []time.Time{fromMicro(noon), fromMicro(noon + 1)}
	for i, s := range []*statement{got[2], got[7]} {
		*s.dest()[0].(*time.Time) = now[i]
	}
	for _, s := range looks {
		s.tick()
	}
	if at := []time.Time{looks[0].answer.at, looks[1].look.at, fromMicro(looks[2].many.rows[0].at), looks[3].answer.at}; !slices.Equal(
		at, []time.Time{now[0], now[0], now[0], now[1]}) {
		t.Errorf("%v, want %v", at, now)
	}
}
