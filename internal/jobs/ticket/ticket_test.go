package ticket

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river/rivertype"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// A ticket reads back as it was written, and beside it stands whatever else was in the metadata.
func TestATicketReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Ticket{
			Version: Version, Due: rapid.Int64Range(0, 1e17).Draw(t, "due"),
			At:      rapid.Int64Range(0, 1e17).Draw(t, "at"),
			Attempt: rapid.IntRange(-1, 25).Draw(t, "attempt"),
			Job:     rapid.Int64Min(0).Draw(t, "job"),
			Gone:    rapid.SampledFrom([]int64{0, 1.7e15}).Draw(t, "gone"),
			Late:    rapid.Bool().Draw(t, "late"), Missed: rapid.Bool().Draw(t, "missed"),
			By: rapid.IntRange(0, 3).Draw(t, "by"), Jitter: rapid.Int64Range(0, 250_000).Draw(t, "jitter"),
			From: rapid.SampledFrom([]int64{0, 1.7e15}).Draw(t, "from"),
			Paid: rapid.Bool().Draw(t, "paid"), Used: rapid.Bool().Draw(t, "used"),
			Pays: rapid.SampledFrom([]Pays{PerAttempt, PerJob, PerStart}).Draw(t, "pays"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "pauses") {
			text := rapid.StringMatching(`[^\x00]{0,9}`)
			want.On = append(want.On, Row{text.Draw(t, "limit"), text.Draw(t, "key")})
		}
		if n := rapid.IntRange(0, 3).Draw(t, "takes"); n > 0 {
			want.Taken = ratelimit.Reservation{ID: [16]byte{6: 0x70, 15: 1}}
			for range n {
				var k ratelimit.Take
				b, err := json.Marshal([]any{"limit" + rapid.StringMatching(`[^\x00]{0,9}`).Draw(t,
					"limit"), rapid.StringMatching(`[^\x00]{0,9}`).Draw(t, "key"),
					rapid.Float64Range(0, 1e9).Draw(t, "count"), 0, 1.7e15,
					rapid.Float64Range(-1e9, 1e9).Draw(t, "owed"), 0, 0, 1, 1, 1})
				if err == nil {
					err = json.Unmarshal(b, &k)
				}
				if err != nil {
					t.Skip("no take: ", err)
				}
				want.Taken.Takes = append(want.Taken.Takes, k)
			}
		}
		metadata, err := want.Into([]byte(`{"own": [1, "two"]}`))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Own  []any
			Weir Ticket
		}
		if err := json.Unmarshal(metadata, &got); err != nil || len(got.Own) != 2 ||
			!reflect.DeepEqual(got.Weir, want) {
			t.Fatalf("%s (%v)\nreads back as %+v\nwant %+v", metadata, err, got.Weir, want)
		}
		alone, err := want.Into(nil)
		if err != nil {
			t.Fatal(err)
		}
		var w struct{ Weir wire }
		if err := json.Unmarshal(alone, &w); err != nil || len(w.Weir.On) != len(want.Rows()) {
			t.Fatalf("%s (%v)", alone, err)
		}
	})
}

func TestMetadataThatIsNoObjectIsRefused(t *testing.T) {
	t.Parallel()
	var k Ticket
	for _, bad := range []string{`[]`, `1`, `{`, `"x"`} {
		if b, err := k.Into([]byte(bad)); err == nil {
			t.Errorf("%s becomes %s", bad, b)
		}
	}
	if b, err := k.Into([]byte("null")); err != nil || string(b) != `{"weir":{"more":"{\"v\":1}"}}` {
		t.Errorf("%s (%v)", b, err)
	}
}

// River appends what it notes about a job to metadata that is no object. The last ticket counts.
func TestATicketIsFoundInAnArray(t *testing.T) {
	t.Parallel()
	for _, own := range []string{`[]`, `[null]`, `1`, `"weir"`, `[{"weir": 1}]`, `[[{"weir": {"more": ""}}]]`} {
		metadata := []byte(own)
		for _, due := range []int64{1, 2} {
			k := Ticket{Version: Version, Due: due}
			var err error
			if metadata, err = k.Onto(metadata); err != nil {
				t.Fatal(err)
			}
			for _, of := range []string{string(metadata), strings.TrimSuffix(string(metadata), "]") + `, {"snoozes": 1}, "weir"]`} {
				got, found := Of(&rivertype.JobRow{Metadata: []byte(of)})
				if !found || !reflect.DeepEqual(got, k) {
					t.Errorf("%s reads as %+v, want %+v", of, got, k)
				}
			}
		}
		gone := strings.TrimSuffix(string(metadata), "]") + `, {"weir": null}]`
		if got, found := Of(&rivertype.JobRow{Metadata: []byte(gone)}); found {
			t.Errorf("%s reads as %+v, want none", gone, got)
		}
	}
	k := Ticket{Version: Version, Due: 1}
	for _, own := range []string{``, `null`, `{}`} {
		if b, err := k.Onto([]byte(own)); err != nil || b[0] != '{' {
			t.Errorf("%s becomes %s, %v", own, b, err)
		}
	}
}

// Postgres refuses a NUL in what is asked of it about a job, and about others in the same statement.
func TestATicketWithANULIsNone(t *testing.T) {
	t.Parallel()
	for _, more := range []string{
		`{"v":1,"on":[["a","k\u0000"]]}`, `{"v":1,"on":[["a\u0000","k"]]}`,
		`{"v":1,"seat":{"limit":"a\u0000"}}`, `{"v":1,"seat":{"key":"\u0000"}}`, `{"v":1,"seat":{"tenant":"\u0000"}}`,
	} {
		b, err := json.Marshal(wire{More: more})
		if err != nil {
			t.Fatal(err)
		}
		var got Ticket
		if err := json.Unmarshal(b, &got); err == nil || got.Known() {
			t.Errorf("%s reads as %+v, %v", more, got, err)
		}
	}
}

// The jitter has no largest value.
func TestRandomIsWithinItsBound(t *testing.T) {
	t.Parallel()
	for _, most := range []time.Duration{-1, 0, 1, math.MaxInt64} {
		if d := Random(most); d < 0 || d > max(most, 0) {
			t.Errorf("%v of %v", d, most)
		}
	}
}
