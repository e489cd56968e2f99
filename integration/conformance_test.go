package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// The conformance data are outcomes of the reference implementation, Convex's rate limiter: see
// testdata/conformance/README.md. CONFORMANCE_DIR names another folder of the same form to check
// instead.

func conformanceDir() string {
	if dir := os.Getenv("CONFORMANCE_DIR"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "conformance")
}

type ruleJSON struct {
	Kind        string   `json:"kind"`
	Rate        float64  `json:"rate"`
	Period      float64  `json:"period"`
	Capacity    *float64 `json:"capacity"`
	MaxReserved *float64 `json:"maxReserved"`
	Start       *float64 `json:"start"`
}

type stateJSON struct {
	Value float64 `json:"value"`
	TS    float64 `json:"ts"`
}

type vectorJSON struct {
	Config   ruleJSON   `json:"config"`
	Existing *stateJSON `json:"existing"`
	Now      float64    `json:"now"`
	Count    float64    `json:"count"`
	Want     struct {
		stateJSON
		RetryAfter *float64 `json:"retryAfter"`
	} `json:"want"`
}

type sequenceJSON struct {
	Config ruleJSON `json:"config"`
	Ops    []opJSON `json:"ops"`
}

type opJSON struct {
	Now     float64 `json:"now"`
	Op      string  `json:"op"`
	Count   float64 `json:"count"`
	Reserve bool    `json:"reserve"`
	Want    struct {
		OK         bool            `json:"ok"`
		RetryAfter json.RawMessage `json:"retryAfter"` // absent: not to be compared
		State      *stateJSON      `json:"state"`
		Error      string          `json:"error"`
	} `json:"want"`
}

func (r ruleJSON) rule(t testing.TB) ratelimit.Rule {
	t.Helper()
	period := time.Duration(r.Period * float64(time.Millisecond))
	switch r.Kind {
	case "token bucket":
		return ratelimit.TokenBucket{Rate: r.Rate, Period: period, Capacity: r.Capacity, MaxReserved: r.MaxReserved}
	case "fixed window":
		w := ratelimit.FixedWindow{Rate: r.Rate, Period: period, Capacity: r.Capacity, MaxReserved: r.MaxReserved}
		if r.Start != nil {
			w.Start = ms(*r.Start)
		}
		return w
	}
	t.Fatalf("unknown kind %q", r.Kind)
	return nil
}

func ms(f float64) time.Time     { return time.UnixMicro(int64(math.Round(f * 1000))).UTC() }
func millis(t time.Time) float64 { return float64(t.UnixMicro()) / 1000 }
func sameTime(a, b float64) bool { return math.Abs(a-b) <= 1 }
func sameTokens(a, b float64) bool {
	return math.Abs(a-b) <= max(1e-9, 1e-6*max(math.Abs(a), math.Abs(b)))
}

// lines calls fn with each line of a file and returns how many there were.
func lines[T any](t testing.TB, file string, fn func(n int, v T)) int {
	t.Helper()
	f, err := os.Open(filepath.Join(conformanceDir(), file))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	n := 0
	for s.Scan() {
		n++
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatalf("%s:%d: %v", file, n, err)
		}
		fn(n, v)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Fatalf("%s is empty", f.Name())
	}
	return n
}

func TestConformanceVectors(t *testing.T) {
	t.Parallel()
	checked := lines(t, "vectors.jsonl", func(n int, v vectorJSON) {
		limit, err := ratelimit.Define("vector", v.Config.rule(t))
		if err != nil {
			t.Errorf("line %d: %v", n, err)
			return
		}
		var state ratelimit.State
		if v.Existing != nil {
			state = ratelimit.State{Value: v.Existing.Value, TS: ms(v.Existing.TS)}
		}
		got, err := ratelimit.Decide(limit.Global().Count(v.Count).OrReserve(), state, ms(v.Now))
		if err != nil {
			t.Errorf("line %d: %v", n, err)
			return
		}
		if !sameTokens(got.State.Value, v.Want.Value) || !sameTime(millis(got.State.TS), v.Want.TS) {
			t.Errorf("line %d: state is %+v, want %+v", n, got.State, v.Want.stateJSON)
		}
		switch after := v.Want.RetryAfter; {
		case after == nil && !got.RunAt.IsZero():
			t.Errorf("line %d: runs at %v, want at once", n, got.RunAt)
		case after != nil && !sameTime(millis(got.RunAt)-v.Now, *after):
			t.Errorf("line %d: runs after %v ms, want %v", n, millis(got.RunAt)-v.Now, *after)
		}
	})
	fmt.Printf("conformance: %d vectors checked\n", checked)
}

func TestConformanceSequences(t *testing.T) {
	t.Parallel()
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			var ops atomic.Int64
			sequences := lines(t, "sequences.jsonl", func(n int, s sequenceJSON) {
				replay(t, w, pool, n, s)
				ops.Add(int64(len(s.Ops)))
			})
			fmt.Printf("conformance: %s: %d sequences with %d operations checked\n", w.Name, sequences, ops.Load())
		})
	}
}

func replay(t *testing.T, w rig.Way, pool *pgxpool.Pool, n int, s sequenceJSON) {
	t.Helper()
	var now time.Time
	l := rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: func() time.Time { return now }})
	v := w.Verbs(t, l, pool)
	limit, err := ratelimit.Define("sequence", s.Config.rule(t))
	if err != nil {
		t.Errorf("line %d: %v", n, err)
		return
	}
	key := fmt.Sprint(n)
	for i, op := range s.Ops {
		now = ms(op.Now)
		request := limit.For(key).Count(op.Count)
		if op.Reserve {
			request = request.OrReserve()
		}
		verb := v.RateLimit
		if op.Op == "check" {
			verb = v.CheckRateLimit
		}
		res, err := verb(t.Context(), request)
		if problem := compare(op, res, err); problem != "" {
			t.Errorf("line %d, operation %d %+v: %s", n, i, op, problem)
			return
		}
		if op.Want.Error != "" {
			continue
		}
		if problem := compareRow(t.Context(), pool, s.Config, key, op.Want.State); problem != "" {
			t.Errorf("line %d, operation %d %+v: %s", n, i, op, problem)
			return
		}
	}
}

func compare(op opJSON, res ratelimit.Result, err error) string {
	if op.Want.Error != "" {
		if !errors.Is(err, ratelimit.ErrNeverGranted) {
			return fmt.Sprintf("got %+v and error %v, want ErrNeverGranted", res, err)
		}
		return ""
	}
	if err != nil {
		return err.Error()
	}
	if res.OK != op.Want.OK {
		return fmt.Sprintf("got %+v, want ok %v", res, op.Want.OK)
	}
	if op.Want.RetryAfter == nil {
		return ""
	}
	at := res.RetryAt
	if res.OK {
		at = res.RunAt
	}
	if string(op.Want.RetryAfter) == "null" {
		if !at.IsZero() {
			return fmt.Sprintf("got %v, want no time", at)
		}
		return ""
	}
	var after float64
	if err := json.Unmarshal(op.Want.RetryAfter, &after); err != nil {
		return err.Error()
	}
	if !sameTime(millis(at)-op.Now, after) {
		return fmt.Sprintf("after %v ms, want %v", millis(at)-op.Now, after)
	}
	return ""
}

// compareRow looks at the row as it is stored. For a window that is the clock of the last take,
// which the reference rounds down to the start of its window.
func compareRow(ctx context.Context, pool *pgxpool.Pool, rule ruleJSON, key string, want *stateJSON) string {
	var value float64
	var ts time.Time
	err := pool.QueryRow(ctx, `SELECT value, ts FROM weir_balance WHERE name = 'sequence' AND key = $1`,
		key).Scan(&value, &ts)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && want == nil:
		return ""
	case err != nil:
		return err.Error()
	case want == nil:
		return fmt.Sprintf("a row of %v at %v, want none", value, ts)
	}
	got := millis(ts)
	if rule.Kind == "fixed window" {
		start := 0.0
		if rule.Start != nil {
			start = *rule.Start
		}
		got = start + math.Floor((got-start)/rule.Period)*rule.Period
	}
	if !sameTokens(value, want.Value) || !sameTime(got, want.TS) {
		return fmt.Sprintf("row is %v at %v, want %+v", value, got, *want)
	}
	return ""
}
