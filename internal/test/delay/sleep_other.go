//go:build !linux

package delay

import "time"

func sleep(d time.Duration) { time.Sleep(d) }
