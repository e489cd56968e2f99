package delay

import (
	"syscall"
	"time"
)

// sleep may return early, by a signal.
func sleep(d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&ts, nil)
}
