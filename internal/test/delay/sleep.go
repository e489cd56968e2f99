package delay

import (
	"runtime"
	"time"
)

const (
	// by which a timer may be late, where nothing else is to be done
	coarse = 2 * time.Millisecond
	late   = 100 * time.Microsecond // by which the system may wake a thread too late
)

// sleepUntil returns at t, or soon after ended is closed. So it comes nearer by finer means, and is
// awake for the last of it.
func sleepUntil(t time.Time, ended <-chan struct{}) {
	if d := time.Until(t) - coarse; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ended:
			return
		}
	}
	if d := time.Until(t) - late; d > 0 {
		sleep(d)
	}
	for time.Now().Before(t) {
		runtime.Gosched()
	}
}
