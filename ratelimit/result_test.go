package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// A failed call leaves the zero Result. Taken for a denial, it would tell a user to come again
// because of a database that cannot be reached.
func TestZeroResultIsNoDenial(t *testing.T) {
	t.Parallel()
	var r ratelimit.Result
	if err := r.Err(); err != ratelimit.ErrNoDecision || errors.Is(err, ratelimit.ErrDenied) { //nolint:errorlint // itself
		t.Errorf("%v", err)
	}
	if r.RetryAfter() != 0 {
		t.Errorf("RetryAfter %v", r.RetryAfter())
	}
}

func TestResultIsAnErrorOnlyIfDenied(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		r     ratelimit.Result
		want  error
		after time.Duration
	}{
		{"granted now", ratelimit.Result{OK: true, At: t0}, nil, 0},
		{"granted ahead", ratelimit.Result{OK: true, At: t0, RunAt: t0.Add(sec), Limit: "limit"}, nil, 0},
		{"denied", ratelimit.Result{At: t0, RetryAt: t0.Add(sec), Limit: "limit", Key: "key"}, ratelimit.ErrDenied, sec},
		{"denied, by a clock that was set back", ratelimit.Result{At: t0, RetryAt: t0.Add(-sec), Limit: "limit"}, ratelimit.ErrDenied, 0},
	} {
		err := tc.r.Err()
		if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
		if tc.r.RetryAfter() != tc.after {
			t.Errorf("%s: RetryAfter %v, want %v", tc.name, tc.r.RetryAfter(), tc.after)
		}
		var denied *ratelimit.DeniedError
		if errors.As(err, &denied) {
			want := ratelimit.DeniedError{Limit: tc.r.Limit, Key: tc.r.Key, At: tc.r.At, RetryAt: tc.r.RetryAt}
			if *denied != want || denied.RetryAfter() != tc.after {
				t.Errorf("%s: %+v, want %+v", tc.name, *denied, want)
			}
		}
	}
}
