package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

// patience is what calls that are under way at the end of a slice may still take. It is also the
// deadline by which a transaction that conflicts runs again as often as it must.
const patience = time.Minute

// slice is what callers have done in a time.
type slice struct {
	calls   int           // that ended within it
	all     int           // those before and after it as well
	granted int           // of all
	elapsed time.Duration // from before the first call to after the last
	rate    float64       // calls a second
	times   histogram     // of all calls but those that ended as the callers warmed up
}

// load is callers who call at once, one call after the other, for random ones of the keys.
type load struct {
	callers      int
	keys         []string
	warm, length time.Duration
}

func (l load) run(ctx context.Context, on limiter) (*slice, error) {
	ctx, cancel := context.WithTimeout(ctx, l.warm+l.length+patience)
	defer cancel()
	runtime.GC()
	var (
		wg    sync.WaitGroup
		parts = make([]slice, l.callers)
		errs  = make([]error, l.callers)
		began = time.Now()
		start = began.Add(l.warm)
		end   = start.Add(l.length)
	)
	for i := range l.callers {
		wg.Go(func() { errs[i] = l.caller(ctx, on, &parts[i], start, end) })
	}
	wg.Wait()
	sum := &slice{elapsed: time.Since(began)}
	if err := first(errs); err != nil {
		return nil, err
	}
	for i := range parts {
		sum.calls += parts[i].calls
		sum.all += parts[i].all
		sum.granted += parts[i].granted
		sum.times.merge(&parts[i].times)
	}
	sum.rate = float64(sum.calls) / l.length.Seconds()
	return sum, nil
}

func (l load) caller(ctx context.Context, on limiter, s *slice, start, end time.Time) error {
	r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for began := time.Now(); began.Before(end); {
		ok, err := on.take(ctx, l.keys[r.IntN(len(l.keys))])
		if err != nil {
			return err
		}
		now := time.Now()
		s.all++
		if ok {
			s.granted++
		}
		if now.After(start) {
			s.times.add(now.Sub(began))
			if !now.After(end) {
				s.calls++
			}
		}
		began = now
	}
	return nil
}

// touch takes of each key once, so that all of them are there.
func touch(ctx context.Context, on limiter, keys []string, callers int) error {
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for i := range callers {
		wg.Go(func() {
			for n := i; n < len(keys) && errs[i] == nil; n += callers {
				_, errs[i] = on.take(ctx, keys[n])
			}
		})
	}
	wg.Wait()
	return first(errs)
}

// first is one error of many callers', who often meet the same.
func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// numbered are keys 0 to n-1.
func numbered(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user-%d", i)
	}
	return keys
}

// nothing grants at once: what it costs is what the measuring costs.
type nothing struct{}

func (nothing) take(context.Context, string) (bool, error) { return true, nil }

func (nothing) close() error { return nil }
