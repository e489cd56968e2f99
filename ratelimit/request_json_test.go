package ratelimit

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

func TestARequestGoesThroughJSON(t *testing.T) {
	t.Parallel()
	limit := MustDefine("throughJSON", TokenBucket{Rate: 10, Period: time.Second})
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, r := range map[string]Request{
		"Global":  limit.Global(),
		"Key":     limit.For("a").Count(2.5),
		"Reserve": limit.For("a").OrReserve(),
		"Within":  limit.For("a").Within(time.Minute),
		"Now":     limit.For("a").Within(0),
		"Credit":  limit.For("a").OnCredit(),
		"Leave":   limit.For("a").Leave(3),
		"Bucket": limit.For("a").Rule(
			TokenBucket{Rate: 3, Period: time.Hour, Capacity: Tokens(0), MaxReserved: Tokens(5)},
		),
		"Window": limit.For("a").Rule(FixedWindow{Rate: 3, Period: time.Hour, Start: start}),
		"Phase":  limit.For("a").Rule(FixedWindow{Rate: 3, Period: time.Hour, MaxReserved: Tokens(0)}),
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(name, err)
		}
		var got Request
		if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %s is read as %+v (%v), want %+v", name, b, got, err, r)
		}
	}
	var p Request
	b, err := json.Marshal(limit.For("a").Rule(&TokenBucket{Rate: 3, Period: time.Hour}))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || !reflect.DeepEqual(p, limit.For("a").Rule(TokenBucket{Rate: 3, Period: time.Hour})) {
		t.Errorf("a rule by its address is read as %+v (%v)", p, err)
	}
	for _, r := range []Request{
		limit.For("a").Within(-time.Second),
		limit.For("a").Rule(TokenBucket{Rate: 3, Period: 1500 * time.Nanosecond}),
		limit.For("a").Rule((*TokenBucket)(nil)),
		limit.For("a").Rule((*FixedWindow)(nil)),
	} {
		_, refused := r.resolve()
		if _, err := r.MarshalJSON(); refused == nil || !errors.Is(err, ErrInvalid) || err.Error() != refused.Error() {
			t.Errorf("%v: %v, want the error of each verb: %v", r, err, refused)
		}
	}
	if _, err := json.Marshal(Request{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("the zero Request: %v, want an error that matches ErrInvalid", err)
	}
	if err := json.Unmarshal([]byte(`{"limit":"nobody has defined this","n":1}`), &p); !errors.Is(err, ErrUndefined) {
		t.Errorf("a limit that is not defined: %v, want ErrUndefined", err)
	}
}

func TestALimitTellsItsRule(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ given, want Rule }{
		{TokenBucket{Rate: 10, Period: time.Second}, TokenBucket{Rate: 10, Period: time.Second, Capacity: Tokens(10)}},
		{TokenBucket{Rate: 10, Period: time.Second, Capacity: Tokens(0), MaxReserved: Tokens(0)},
			TokenBucket{Rate: 10, Period: time.Second, Capacity: Tokens(0), MaxReserved: Tokens(0)}},
		{FixedWindow{Rate: 10, Period: time.Second}, FixedWindow{Rate: 10, Period: time.Second, Capacity: Tokens(10)}},
		{FixedWindow{Rate: 10, Period: time.Hour, MaxReserved: Tokens(7), Start: start},
			FixedWindow{Rate: 10, Period: time.Hour, Capacity: Tokens(10), MaxReserved: Tokens(7),
				Start: fromMicro(algebra.Anchor).Add(4*time.Minute + 5*time.Second)}},
	} {
		limit := MustDefine("tellsItsRule", c.given)
		if got := limit.Rule(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v is told as %+v, want %+v", c.given, got, c.want)
		}
	}
	if n := MustDefine("tellsItsShards", TokenBucket{Rate: 10, Period: time.Second}, Shards(2)).Shards(); n != 2 {
		t.Errorf("%d shards, want 2", n)
	}
	if (Limit{}).Rule() != nil || (Limit{}).Shards() != 0 {
		t.Error("the zero Limit has a rule, or shards")
	}
}
