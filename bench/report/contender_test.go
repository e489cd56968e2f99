package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// Of twenty calls for one key each contender grants five, if that is the limit: to one caller as to
// several at once.
func TestEachContenderGrantsWhatTheLimitAllows(t *testing.T) {
	t.Parallel()
	r := testRig(t)
	for _, c := range contenders() {
		for _, callers := range []int{1, 16} {
			t.Run(fmt.Sprintf("%s/%s", c.name, callersText(callers)), func(t *testing.T) {
				if granted := ofTwenty(t, c, r.at(callers), callers); granted != 5 {
					t.Errorf("%d of 20 calls were granted, want 5", granted)
				}
			})
		}
	}
}

// ofTwenty tells how many of twenty calls are granted before a token comes in, which is after a
// second, or half of one where they are rounded. What took too long is done again, on another key.
func ofTwenty(t *testing.T, c contender, at place, callers int) int64 {
	t.Helper()
	const calls, tries = 20, 30
	for try := range tries {
		l, err := c.open(t.Context(), at, bucket{5, 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		counted, keys := &counter{limiter: l}, make([]string, calls)
		for i := range keys {
			keys[i] = fmt.Sprintf("%s, %d callers, try %d", c.name, callers, try)
		}
		began := time.Now()
		err = touch(t.Context(), counted, keys, callers)
		took := time.Since(began)
		if err := errors.Join(err, l.close()); err != nil {
			t.Fatal(err)
		}
		if n := counted.calls.Load(); n != calls {
			t.Fatalf("%d calls were made, want %d", n, calls)
		}
		if took < 400*time.Millisecond {
			return counted.granted.Load()
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
