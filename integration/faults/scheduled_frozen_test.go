package faults

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// One of two clients is frozen while 300 jobs become due, and goes on when the other has worked
// them. River rescues nothing meanwhile: each job is worked once, and what the frozen client had
// fetched is worked when it goes on.
func TestScheduledWorkWhenAClientIsFrozen(t *testing.T) {
	t.Parallel()
	for name, kinds := range map[string][2]kind{"Configured": {careful, careful},
		"Plain": {plain, careful}, "PlainTakesOver": {careful, plain}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, ok := long(t); !ok && name != "Configured" {
				t.Skip("for a soak")
			}
			frozenWhileDue(t, kinds[0], kinds[1])
		})
	}
}

func frozenWhileDue(t *testing.T, a, b kind) {
	t.Helper()
	const jobs, burst, hands = 300, 40, 5 // the burst is due at once, so that the client has many in hand
	c := newChaos(t, 2*time.Minute, false)
	c.env = []string{rescueEnv + "=" + c.rescue.String()}
	spread, freeze := 2*time.Second, 3*time.Second
	if _, ok := long(t); ok {
		spread, freeze = 20*time.Second, 31*time.Second
	}
	c.hire(t, a)
	frozen := c.any()
	first := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range hands {
		wg.Go(func() {
			for n := i; n < jobs; n += hands {
				at := first.Add(spread * time.Duration(max(0, n-burst)) / jobs)
				c.once(t.Context(), wish{after: max(time.Millisecond, time.Until(at)), loose: n%2 == 0, far: n%10 == 0})
			}
		})
	}
	held, extra := 0, 1
	// It is in the middle of some jobs. On a slow machine others are not even reserved by then, and
	// if they were waited for there might be none left to work.
	for end := time.Now().Add(hung); held == 0; {
		if time.Now().After(end) {
			t.Fatalf("not within %v: it works", hung)
		}
		if c.count(t, `SELECT count(*) FROM river_job WHERE state = 'running'`) == 0 {
			if time.Since(first) > spread { // all may have been worked before that was seen
				c.once(t.Context(), wish{after: time.Millisecond})
				extra++
			}
			time.Sleep(5 * time.Millisecond)
			continue
		}
		signal(t, frozen, syscall.SIGSTOP)
		if held = c.count(t, `SELECT count(*) FROM river_job WHERE state = 'running'`); held == 0 {
			signal(t, frozen, syscall.SIGCONT)
		}
	}
	thaw := time.After(freeze)
	wg.Wait()
	c.hire(t, b)
	c.once(t.Context(), wish{after: time.Millisecond}) // the frozen one may have fetched all the others
	<-thaw
	c.await(t, "the other works", `SELECT count(*) FROM start WHERE worker <> '`+frozen.name+`'`)
	signal(t, frozen, syscall.SIGCONT)
	c.finish(t)
	c.dismiss(t)
	f := c.counts(t)
	fmt.Printf("faults: %s: frozen with %d jobs; %v\n", t.Name(), held, f)
	if f.jobs != jobs+extra || f.starts != jobs+extra || f.early+f.lost+f.unworked+f.unplanned+f.doneAgain > 0 {
		t.Errorf("of %d jobs: %v; %q", jobs+extra, f, f.unexplained)
	}
}

func signal(t *testing.T, h *hand, s syscall.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// await waits until a count is not zero.
func (s *shift) await(t *testing.T, what, sql string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(hung); s.count(t, sql, args...) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", hung, what)
		}
	}
}
