package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// Of twenty calls for one key each contender grants five, if that is the limit: to one caller as to several at once.
func TestEachContenderGrantsWhatTheLimitAllows(t *testing.T) {
	t.Parallel()
	r := testRig(t)
	for _, c := range contenders() {
		for _, callers := range []int{1, 16} {
			t.Run(fmt.Sprintf("%s/%s", c.name, callersText(callers)), func(t *testing.T) {
				l, err := c.open(t.Context(), r.at(callers), bucket{5, 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := l.close(); err != nil {
						t.Error(err)
					}
				}()
				if granted := inTime(t, c, l, callers); granted != 5 {
					t.Errorf("%d of 20 calls were granted, want 5", granted)
				}
			})
		}
	}
}

// inTime tells how many of twenty calls are granted before a token comes in: after a second, or half of one where they are
// rounded. What took longer is done again, on another key.
func inTime(t *testing.T, c contender, l limiter, callers int) int64 {
	t.Helper()
	const calls, tries = 20, 30
	keys := make([]string, calls)
	for try := range tries {
		for i := range keys {
			keys[i] = fmt.Sprintf("%s, %d callers, try %d", c.name, callers, try)
		}
		counted := &counter{limiter: l}
		began := time.Now()
		if err := touch(t.Context(), counted, keys, callers); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) < 400*time.Millisecond {
			if n := counted.calls.Load(); n != calls {
				t.Fatalf("%d calls were made, want %d", n, calls)
			}
			return counted.granted.Load()
		}
		if c.oneKey {
			t.Skip("skipped: the machine is too busy, and this limiter knows one key only")
		}
	}
	t.Fatalf("twenty calls took too long %d times: the machine is too busy", tries)
	return 0
}

// Keys do not share their limits.
func TestEachContenderTellsKeysApart(t *testing.T) {
	t.Parallel()
	r := testRig(t)
	for _, c := range contenders() {
		if c.oneKey {
			continue
		}
		l, err := c.open(t.Context(), r.at(16), bucket{1, 1000 * time.Second})
		if c.table == "rate_limiting_token_bucket" { // it knows only whole tokens a second
			l, err = c.open(t.Context(), r.at(16), bucket{1, time.Second})
		}
		if err != nil {
			t.Fatal(err)
		}
		counted, keys := &counter{limiter: l}, numbered(12)
		for i := range keys {
			keys[i] = c.name + keys[i] // some share a table
		}
		if err := touch(t.Context(), counted, keys, 16); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if n := counted.granted.Load(); n != int64(len(keys)) {
			t.Errorf("%s: %d of %d keys were granted their token", c.name, n, len(keys))
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	}
}

// counter counts what is granted.
type counter struct {
	limiter
	calls, granted atomic.Int64
}

func (c *counter) take(ctx context.Context, key string) (bool, error) {
	ok, err := c.limiter.take(ctx, key)
	c.calls.Add(1)
	if ok {
		c.granted.Add(1)
	}
	return ok, err
}
