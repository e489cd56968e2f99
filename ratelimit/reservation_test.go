package ratelimit

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// anyTake draws what a grant may have taken.
func anyTake(t *rapid.T) Take {
	text := func(label string, least, most int) string {
		s := rapid.StringN(least, -1, most).Draw(t, label)
		return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?") + strings.Repeat("x", least)
	}
	rule := anyAlgebra(t)
	rule.Phased, rule.Debt = false, 0
	number := rapid.OneOf(rapid.SampledFrom([]float64{0, 1, 0.1, 1.0 / 3, 1 << 53,
		math.Copysign(0, -1)}), rapid.Float64Range(-1e15, 1e15))
	take := Take{
		Limit: text("limit", 1, MaxNameBytes/4), Key: text("key", 0, MaxKeyBytes/4),
		Count: rapid.Float64Range(0, 1e15).Draw(t, "count"),
		rule:  rule,
		left: algebra.Left{
			Since: noon + rapid.Int64Range(-1e15, 1e15).Draw(t, "since"),
			Owed:  number.Draw(t, "owed"),
			Delay: rapid.Int64Range(0, 1e15).Draw(t, "delay"),
			Moved: number.Draw(t, "moved"),
		},

		credit: rapid.Bool().Draw(t, "credit"),
		settle: rapid.SampledFrom([]int64{0, 1e6, 3600e6}).Draw(t, "settle"),
	}
	if rapid.Bool().Draw(t, "of a shard") {
		n := rapid.IntRange(1, shard.Max).Draw(t, "shards")
		layout := shard.Layout{Shards: n, Generation: rapid.IntRange(0, shard.MaxGeneration).Draw(t, "generation")}
		take.row = layout.Row(rapid.IntRange(0, n-1).Draw(t, "shard"))
	}
	return take
}

func TestAReservationSurvivesJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := Reservation{ID: newID(noon + rapid.Int64Range(-1e15, 1e15).Draw(t, "at"))}
		for range rapid.IntRange(1, 4).Draw(t, "takes") {
			r.Takes = append(r.Takes, anyTake(t))
		}
		text, err := json.Marshal(map[string]any{"weir": r})
		if err != nil {
			t.Fatal(err)
		}
		var again map[string]Reservation
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !reflect.DeepEqual(again["weir"], r) {
			t.Fatalf("%s was read as %+v, want %+v", text, again["weir"], r)
		}
	})
}

// Jobs, messages and tables of users have this text, so it must stay.
func TestTheTextOfAReservationStays(t *testing.T) {
	t.Parallel()
	const text = `{"id":"019ca945-1856-7c21-a77b-e5d1fd80f77b","takes":[` +
		`["chat","o\"1",1.5e+06,1048584,1772366400000000,-4,0,0,10,60000000,10],` +
		`["api","",0.1,0,1772366400000000,12.5,-3,1000000,40000,3600000000,1e+15,1577836800000000,` +
		`true,"rule",[3600000000]]]}`
	want := Reservation{ID: uuid.MustParse("019ca945-1856-7c21-a77b-e5d1fd80f77b"), Takes: []Take{
		{Limit: "chat", Key: `o"1`, Count: 1_500_000,
			row:  shard.Layout{Shards: 4, Generation: 1}.Row(2),
			left: algebra.Left{Since: 1772366400000000, Owed: -4},
			rule: algebra.Rule{Rate: 10, Period: 60e6, Capacity: 10}},
		{Limit: "api", Count: 0.1,
			left: algebra.Left{Since: 1772366400000000, Owed: 12.5, Moved: -3, Delay: 1e6},
			rule: algebra.Rule{Windowed: true, Rate: 40_000, Period: 3600e6, Capacity: 1e15,
				Origin: algebra.Anchor},
			credit: true, ruled: true, settle: 3600e6},
	}}
	if got, err := json.Marshal(want); err != nil || string(got) != text {
		t.Errorf("%s, %v, want\n%s", got, err, text)
	}
	var got Reservation
	if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want\n%+v", got, err, want)
	}
}

// A Result that went through JSON has lost what it took; its Reservation had to be kept.
func TestOnlyAGrantHasAReservation(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Result{
		"zero":   {},
		"denied": {RetryAt: at(time.Minute)},
		"copied": {OK: true, Outcomes: []Outcome{{Limit: "a", Key: "b", OK: true}}},
	} {
		if res := r.Reservation(); res.ID != uuid.Nil || res.Takes != nil || !errors.Is(res.check(), ErrInvalid) {
			t.Errorf("%s: %+v", name, res)
		}
	}
	calls := resolved(t, apples.For("x").Count(2), pears.For("x"))
	all := make([]took, 2)
	for i := range all {
		all[i].Since = noon
	}
	r := summarize(calls, make([]algebra.Verdict, 2), all)
	r.OK, r.id = true, newID(noon)
	res := r.Reservation()
	if res.check() != nil || len(res.Takes) != 2 || !reflect.DeepEqual(res, r.Reservation()) {
		t.Errorf("%+v", res)
	}
	for i, take := range res.Takes {
		if take.Limit != calls[i].Name || take.Key != "x" || take.Count != calls[i].Count {
			t.Errorf("%+v of %+v", take, calls[i])
		}
	}
}

func TestIdsAreOfTheTimeOfTheGrant(t *testing.T) {
	t.Parallel()
	seen := map[uuid.UUID]bool{}
	var last uuid.UUID
	for i := range int64(1000) {
		now := noon + i*1000
		id := newID(now)
		if ms := int64(binary.BigEndian.Uint64(id[:]) >> 16); id.Version() != 7 ||
			id.Variant() != uuid.RFC4122 || ms != now/1000 {
			t.Fatalf("%v at %v", id, fromMicro(now))
		}
		if seen[id] || id.String() <= last.String() {
			t.Fatalf("%v after %v", id, last)
		}
		seen[id], last = true, id
	}
}

// On Citus a reservation of a limit without keys is settled beside its balance, and so is that of
// another attempt.
func TestIdsSayWhereToSettle(t *testing.T) {
	t.Parallel()
	l := &Limiter{cfg: Config{Citus: true}}
	for nr := range shard.Homes {
		r := Reservation{ID: withHome(newID(noon), nr), Takes: []Take{{Limit: "a"}}}
		again := r.Again()
		if again.ID == r.ID || l.settledAt(&r) != shard.Home(nr) || l.settledAt(&again) != shard.Home(nr) {
			t.Errorf("home %d: %q, and of another attempt %q", nr, l.settledAt(&r), l.settledAt(&again))
		}
	}
	r := Reservation{ID: newID(noon), Takes: []Take{{Limit: "a"}}}
	if got := l.settledAt(&r); got != shard.Home(shard.Beside) {
		t.Errorf("a limit without shards is settled at %q", got)
	}
}

func TestATakeThatNobodyMadeIsRefused(t *testing.T) {
	t.Parallel()
	const sound = `["a","b",1,0,1772366400000000,-4,0,0,10,60000000,10]`
	if err := new(Take).UnmarshalJSON([]byte(sound)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 2000)
	for _, text := range []string{
		`[]`, `["a","b"]`, `null`, `{}`, `"a"`, ``,
		strings.Replace(sound, `]`, `,0,0]`, 1),
		strings.Replace(sound, `"a"`, `""`, 1),
		strings.Replace(sound, `"a"`, `"`+long+`"`, 1),
		strings.Replace(sound, `"b"`, `"`+long+`"`, 1),
		strings.Replace(sound, `"b"`, `"\u0000"`, 1),
		strings.Replace(sound, `"b",1`, `"b",-1`, 1),
		strings.Replace(sound, `"b",1`, `"b",1e300`, 1),
		strings.Replace(sound, `"b",1`, `"b","1"`, 1),
		strings.Replace(sound, `"b",1,0`, `"b",1,1e10`, 1),
		strings.Replace(sound, `1772366400000000`, `-1772366400000000000`, 1),
		strings.Replace(sound, `1772366400000000`, `1772366400.5`, 1),
		strings.Replace(sound, `-4,0,0`, `-1e308,0,0`, 1),
		strings.Replace(sound, `-4,0,0`, `-4,1e308,0`, 1),
		strings.Replace(sound, `-4,0,0`, `-4,0,9223372036854775807`, 1),
		strings.Replace(sound, `10,60000000,10`, `0,60000000,10`, 1),
		strings.Replace(sound, `10,60000000,10`, `-10,60000000,10`, 1),
		strings.Replace(sound, `10,60000000,10`, `10,0,10`, 1),
		strings.Replace(sound, `10,60000000,10`, `10,9223372036854775807,10`, 1),
		strings.Replace(sound, `10,60000000,10`, `10,60000000,-1`, 1),
		strings.Replace(sound, `10,60000000,10`, `10,60000000,10,9223372036854775807`, 1),
	} {
		was := Take{Limit: "was"}
		var err error
		if take := was; true {
			err = take.UnmarshalJSON([]byte(text))
			if !reflect.DeepEqual(take, was) {
				t.Errorf("%s was read as %+v", text, take)
			}
		}
		if !refused(err) || err.Error() == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// refused says that JSON was, by us or by its package.
func refused(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.Is(err, ErrInvalid) || errors.As(err, &syntax) || errors.As(err, &kind)
}

// FuzzReservation reads whatever stands in a table: it is refused, or it is a reservation, out of
// which the same text comes again, and with which everything can be done that is done with one.
func FuzzReservation(f *testing.F) {
	for _, takes := range []string{
		`["a","b",1,0,1772366400000000,-4,0,0,10,60000000,10]`,
		`["a","",2.5,0,1772366400000000,12.5,-3,1000000,10,60000000,10,1577836800000000]`,
		`["a","b",1,0,1772366400000000,1e300,-1e300,0,5e-324,9223372036854775,0,253402300799000000]`,
		`["a","b",0,255,-62135596800000000,9007199254740992,0,-1,9007199254740992,1,9007199254740992,-1]`,
		`["a","b",1,0,1772366400000000,-4,0,9223372036854775807,10,9223372036854775807,10,-9223372036854775808]`,
		`["ü","\u0000",-1,0,0,0,0,0,0,0,0]`, `[]`, `null`, `{}`,
	} {
		f.Add(`{"id":"019ca945-1856-7c21-a77b-e5d1fd80f77b","takes":[`+takes+`]}`, 3.0, int64(1_000_000), 0.5)
	}
	f.Add(`{"id":"x","takes":[]}`, 0.0, int64(0), 0.0)
	f.Add(`{"id":"","takes":null}`, 0.0, int64(0), 0.0)
	f.Add(`[]`, 0.0, int64(0), 0.0)
	f.Add(`{"id":"019ca945-1856-7c21-a77b-e5d1fd80f77b"}`, 0.0, int64(0), 0.0)

	l, err := New(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, moved float64, delay int64, n float64) {
		var r Reservation
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			var id struct{ ID uuid.UUID }
			if !refused(err) && json.Unmarshal([]byte(text), &id) == nil {
				t.Fatal(err)
			}
			return
		}
		if r.check() != nil {
			return
		}
		first, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var again Reservation
		if err := json.Unmarshal(first, &again); err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%s: %+v and %v, want %+v", first, again, err, r)
		}
		if y := r.until().Year(); y < 1 || y > 9999 {
			t.Fatalf("%s: settled until %v", first, r.until())
		}
		_ = l.settleOf(&r)
		for i, take := range r.Takes {
			c := change{receipt: take.receipt()}
			_, _, _ = l.undoOf(&c), l.giveOf(&c, n, true), l.chargeOf(&c.call, n)
			early, _ := take.RunAt(State{})
			if early.Before(fromMicro(take.left.Since)) {
				t.Fatalf("%s: take %d runs at %v, before it was granted", first, i, early)
			}
			if math.IsNaN(moved) || math.IsInf(moved, 0) || delay < 0 || delay > 1e15 {
				continue
			}
			run, paced := take.RunAt(State{TS: fromMicro(noon), Moved: moved,
				Delay: time.Duration(delay) * time.Microsecond})
			if paced.Before(run) {
				t.Fatalf("%s: take %d runs at %v, and is paced for %v", first, i, run, paced)
			}
		}
	})
}
