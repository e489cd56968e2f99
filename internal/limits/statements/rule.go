package statements

// A kind is how limits refill.
type kind int

const (
	bucket kind = iota
	window
	either // as the row says: a bucket has no origin
)

// A rule is where a statement finds the numbers of a rule.
type rule struct {
	kind                           kind
	capacity, rate, period, origin string
	micros                         string // the period as a bigint
}

// asked is the rule in the arguments.
func asked(k kind) rule {
	return rule{k, "$4::float8", "$5::float8", "$6::float8", "$9::timestamptz", "$6"}
}

// ofShard is the rule in the row that would be inserted: the share of the shard that was chosen.
func ofShard(k kind) rule {
	r := asked(k)
	r.capacity, r.rate = "excluded.capacity", "excluded.rate"
	return r
}

var (
	// stored is the rule in the row: the one by which tokens were last taken.
	stored = rule{either, "b.capacity", "b.rate", "b.period::float8", "b.origin", "b.period"}

	// ofMany is the rule in the arguments of a statement over many rows.
	ofMany = rule{either, "u.capacity", "u.rate", "u.period::float8", "u.origin", "u.period"}
)

// since is when a row was last refilled. The time of a pause does not count.
const since = `greatest(b.ts, b.paused_until)`

// us is an interval in whole microseconds: date_part returns seconds as float8, and rounding makes
// them exact again.
func us(interval string) string {
	return `round(date_part('epoch', ` + interval + `) * 1e6::float8)`
}

// window is the number of the window at a time.
func (r rule) window(at string) string { return r.windowOf(us(at + ` - ` + r.origin)) }

// windowOf is the number of the window at a time in microseconds since the origin.
func (r rule) windowOf(micros string) string { return `floor(` + micros + ` / ` + r.period + `)` }

// windows is how many windows begin from one on to another, by their numbers.
func (r rule) windows(from, to string) string {
	return "greatest(0,\n\t\t" + to + " -\n\t\t" + from + ")"
}

// refill is what flows in between two times.
func (r rule) refill(from, to string) string {
	return r.choose(
		r.rate+` * greatest(0, `+us(to+` - `+from)+`) / `+r.period,
		r.rate+` * `+r.windows(r.window(from), r.window(to)))
}

// refilled is the balance of a row at a time.
func (r rule) refilled(at string) string {
	return `least(` + r.capacity + `, b.value + ` + r.refill(since, at) + `)`
}

// delay is by how much a pause between two times delays work: in microseconds, or for windows in
// those of whole windows.
func (r rule) delay(from, to string) string {
	return r.choose(
		`greatest(0, `+us(to+` - `+from)+`)::bigint`,
		r.micros+` * `+r.windows(r.window(from), r.window(to))+`::bigint`)
}

func (r rule) choose(ofBucket, ofWindow string) string {
	switch r.kind {
	case bucket:
		return ofBucket
	case window:
		return ofWindow
	default:
		return `CASE WHEN ` + r.origin + " IS NULL\n\t\tTHEN " + ofBucket + "\n\t\tELSE " +
			ofWindow + ` END`
	}
}
