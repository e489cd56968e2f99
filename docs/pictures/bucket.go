package main

import "fmt"

// The story of bucket.svg: a bucket that gains a token a second and holds 40.
// TestTheBucketDoesWhatIsDrawn lets a limiter do the same.
const (
	capacity = 40
	ends     = 140 // seconds

	takes, taken         = 10, 30 // at which second, and how many tokens
	aReserves, aReserved = 20, 50
	aStarts              = 50
	bReserves, bReserved = 30, 30
	bWouldStart          = 80
	aSettles, aUsed      = 60, 35
	bStarts              = 65
	pauses, resumes      = 75, 95
)

// vertex is the balance at a time, in seconds. Where it jumps there are two.
type vertex struct{ at, balance float64 }

// story is the balance over time, from corner to corner.
func story() []vertex {
	v := []vertex{{0, capacity}}
	to := func(at, flow float64) { // lets tokens flow in until then
		last := v[len(v)-1]
		if full := last.at + (capacity - last.balance); flow > 0 && full < at && full > last.at {
			v = append(v, vertex{full, capacity})
		}
		v = append(v, vertex{at, min(capacity, last.balance+flow*(at-last.at))})
	}
	jump := func(by float64) {
		last := v[len(v)-1]
		v = append(v, vertex{last.at, last.balance + by})
	}
	to(takes, 1)
	jump(-taken)
	to(aReserves, 1)
	jump(-aReserved)
	to(bReserves, 1)
	jump(-bReserved)
	to(aSettles, 1)
	jump(aReserved - aUsed)
	to(pauses, 1)
	to(resumes, 0)
	to(ends, 1)
	return v
}

func drawBucket() (string, error) {
	c := &canvas{width: 920, height: 405,
		title: "The balance of a token bucket over time, with two reservations, a settlement and a pause"}
	x := func(at float64) float64 { return 60 + at*840/ends }
	y := func(balance float64) float64 { return 50 + (capacity-balance)*300/90 }

	c.text("strong", "start", 20, 26,
		"Balance of a bucket that gains one token per second and holds 40")
	for b := -50.0; b <= capacity; b += 10 {
		c.line("grid", x(0), y(b), x(ends), y(b))
		c.text("small faint", "end", x(0)-8, y(b)+4, fmt.Sprintf("%.0f", b))
	}
	for s := 0.0; s <= ends; s += 10 {
		c.text("small faint", "middle", x(s), y(-50)+20, fmt.Sprintf("%.0f", s))
	}
	c.text("small faint", "end", x(ends), y(-50)+40, "seconds")

	c.rect("pause", x(pauses), y(capacity), x(resumes)-x(pauses), y(-50)-y(capacity))
	v := story()
	c.area("debt", underZero(v, x, y)...)
	c.line("axis", x(0), y(0), x(ends), y(0))
	var points []float64
	for _, p := range v {
		points = append(points, x(p.at), y(p.balance))
	}
	c.curve("curve", points...)

	note := func(at, balance float64, anchor string, dx, dy float64, lines ...string) {
		for i, s := range lines {
			c.text("small", anchor, x(at)+dx, y(balance)+dy+float64(i)*15, s)
		}
	}
	note(takes, 40, "start", 6, 20, fmt.Sprintf("take %d", taken))
	note(aReserves, 20, "start", 6, 4,
		fmt.Sprintf("job A reserves %d: it may start at %d s", aReserved, aStarts))
	note(bReserves, -20, "start", 6, -14, fmt.Sprintf("job B reserves %d:", bReserved),
		fmt.Sprintf("it may start at %d s", bWouldStart))
	note(aStarts, -30, "start", 8, 14, "A starts")
	note(12, -36, "middle", 0, 0, "debt: tokens", "that are owed")
	note(aSettles, -5, "end", -8, -42, fmt.Sprintf("A has used %d: settle gives", aUsed),
		fmt.Sprintf("%d back, and B moves up", aReserved-aUsed))
	note(bStarts, 0, "start", 8, 18, "B starts,", fmt.Sprintf("at %d s", bStarts))
	note((pauses+resumes)/2, 40, "middle", 0, 20, "paused: nothing is", "granted, and time",
		"stands still")
	note(130, 20, "middle", 0, 4, "full: what would", "flow in is lost")
	for _, p := range []vertex{{aStarts, -30}, {bStarts, 0}} {
		c.rect("answer", x(p.at)-4, y(p.balance)-4, 8, 8)
	}
	return c.svg()
}

// underZero is the area between the curve and zero, where tokens are owed.
func underZero(v []vertex, x, y func(float64) float64) (points []float64) {
	for i, p := range v {
		if i > 0 && (v[i-1].balance < 0) != (p.balance < 0) { // it crosses zero between the two
			q := v[i-1]
			at := q.at
			if p.balance != q.balance {
				at += (p.at - q.at) * q.balance / (q.balance - p.balance)
			}
			points = append(points, x(at), y(0))
		}
		if p.balance < 0 {
			points = append(points, x(p.at), y(p.balance))
		}
	}
	return points
}
