package model

// law is a rule with nothing left unset.
type law struct {
	windowed       bool
	rate, capacity float64
	period         int64
	reserved       float64 // MaxReserved; infinite if unset
	start          int64   // of some window
}

// kept is what a row keeps of a rule.
func (w law) kept() law {
	w.reserved = 0
	return w
}

func (w *law) window(t int64) int64 {
	t -= w.start
	into := t % w.period
	if into < 0 {
		into += w.period
	}
	return (t - into) / w.period
}

func (w *law) windowStart(t int64) int64 {
	if !w.windowed {
		return t
	}
	return w.start + w.window(t)*w.period
}

// balance is min(value + rate*steps, capacity).
func (w *law) balance(e entry, now int64) float64 {
	steps := float64(w.rate*float64(max(0, now-e.since()))) / float64(w.period)
	if w.windowed {
		steps = w.rate * float64(max(0, w.window(now)-w.window(e.since())))
	}
	return min(w.capacity, e.value+steps)
}

// span is how much later things come that a pause puts off.
func (w *law) span(from, to int64) int64 {
	if w.windowed {
		return max(0, w.window(to)-w.window(from)) * w.period
	}
	return max(0, to-from)
}

// since is the first instant from now on at which n tokens can be taken from e and leave the least.
func (w *law) since(e entry, now int64, n, least float64) int64 {
	return earliest(now, func(t int64) bool { return w.balance(e, t)-n >= least })
}

// earliest is the first instant from now on at which ok holds, and goes on to.
func earliest(now int64, ok func(t int64) bool) int64 {
	if ok(now) {
		return now
	}
	low, high := now, now+1
	for !ok(high) {
		low, high = high, high+2*(high-now)
	}
	for low+1 < high {
		if mid := (low + high) / 2; ok(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return high
}

// paced is when to start what a take of n, which left e, has reserved for the window that begins at
// run.
func (w *law) paced(e entry, n float64, run int64) int64 {
	if !w.windowed || e.value >= 0 {
		return run
	}
	earlier := 0 // windows that repay before it
	for at := w.windowStart(e.since()) + w.period; at < run; at += w.period {
		earlier++
	}
	// owed to others; in one step, as hundreds would round to another microsecond
	before := -e.value - n - w.rate*float64(earlier)
	return run + min(int64(max(0, before)/w.rate*float64(w.period)), w.period-1)
}
