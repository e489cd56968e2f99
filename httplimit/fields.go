package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weir-go/weir/ratelimit"
)

// Fields is the format in which clients learn what their limits have left. Its zero value is
// Draft10.
//
// If a call takes from several balances of one limit, the fields have the tightest. They have
// nothing about a [ratelimit.Shadow], and nothing for a result that is not
// [ratelimit.Result.Decided].
type Fields int

const (
	// Draft10 is RateLimit-Policy and RateLimit, in the form of
	// draft-ietf-httpapi-ratelimit-headers-10, which package upstream reads:
	//
	//	RateLimit-Policy: "perUser";q=100;w=60
	//	RateLimit: "perUser";r=50;t=30
	//
	// The policy's name is that of the limit, of which bytes other than printable ASCII, and %, are
	// written as %XX; q is the capacity and w the seconds of a window, or those in which an empty
	// bucket fills. Remaining are r whole tokens, and t is the seconds until the window ends, until
	// the bucket has the next whole token, or until the limit would grant what it has denied. For a
	// limit with shards the next token may come later, as full shards gain none. There is no t for a
	// full bucket. In a call that another limit has denied, there is none for a limit
	// that would have granted. So Retry-After is never earlier than any t.
	//
	// Several limits of one call are a list, and several Guards add to it.
	Draft10 Fields = iota

	// Legacy is X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset: q, r and t of the
	// tightest limit. Reset is in seconds from now, and 0 where there is no t.
	Legacy

	// None sends nothing but Retry-After.
	None
)

// item is what is told of one limit.
type item struct {
	name       string
	q, w, r, t int64 // t is below 0 if there is none
	denied     bool
}

const most = 999_999_999_999_999 // that an Integer of RFC 9651 has

// itemsOf has one for each limit, in the order of the requests.
func itemsOf(res ratelimit.Result) []item {
	if !res.Decided() {
		return nil
	}
	items := make([]item, 0, len(res.Outcomes))
outcomes:
	for i := range res.Outcomes {
		if res.Outcomes[i].Shadow {
			continue // it binds nobody
		}
		told := itemOf(&res.Outcomes[i], res)
		for j := range items {
			if items[j].name == told.name {
				if told.tighter(items[j]) {
					items[j] = told
				}
				continue outcomes
			}
		}
		items = append(items, told)
	}
	return items
}

func itemOf(o *ratelimit.Outcome, res ratelimit.Result) item {
	it := item{name: policy(o.Limit), q: whole(o.Capacity), r: whole(o.Value), t: -1, denied: !o.OK}
	if windowed := !o.WindowEnds.IsZero(); windowed {
		it.w = seconds(o.Period)
	} else {
		it.w = ceil(o.Capacity * perToken(o))
	}
	it.w = max(1, it.w)
	switch {
	case !o.OK:
		it.t = max(1, seconds(o.RetryAt.Sub(res.At)))
	case res.OK:
		it.t = next(o, res.At)
	}
	return it
}

// next is the seconds until there is one more whole token, or -1 for a bucket that will not have
// one.
func next(o *ratelimit.Outcome, at time.Time) int64 {
	has := math.Floor(max(0, o.Value))
	missing := has + 1 - o.Value
	if o.WindowEnds.IsZero() {
		if has >= math.Floor(o.Capacity) {
			return -1
		}
		return ceil(missing * perToken(o))
	}
	windows := max(0, math.Ceil(missing/o.Rate)-1) // that bring too little for one
	return ceil(windows*float64(o.Period.Microseconds()) +
		float64(max(0, o.WindowEnds.Sub(at).Microseconds())))
}

// perToken is the microseconds in which one token comes.
func perToken(o *ratelimit.Outcome) float64 { return float64(o.Period.Microseconds()) / o.Rate }

// ceil makes whole seconds of microseconds, whose own fractions are noise.
func ceil(us float64) int64 { return int64(min(most, math.Ceil(math.Round(us)/1e6))) }

// seconds is never earlier, nor below 0.
func seconds(d time.Duration) int64 {
	s := d / time.Second
	if d%time.Second > 0 {
		s++
	}
	return int64(max(0, s))
}

func whole(tokens float64) int64 { return int64(min(most, math.Floor(max(0, tokens)))) }

func (it item) tighter(than item) bool {
	if it.denied != than.denied {
		return it.denied
	}
	if it.denied {
		return it.t > than.t
	}
	return it.r < than.r
}

// policy is the name of a limit, as a String of RFC 9651 can have it.
func policy(name string) string {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }
	clean := true
	for i := range len(name) {
		clean = clean && plain(name[i])
	}
	if clean {
		return name
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

// write adds the fields to those of Guards further out, and returns the seconds before which one of
// these will deny, too, if the call was denied. What they have told counts for Guards of all
// Fields.
func (f Fields) write(h http.Header, items []item, denied bool) (after int64) {
	if denied {
		after = max(outer(h), outerLegacy(h))
	}
	if f == None || len(items) == 0 {
		return after
	}
	if f == Legacy {
		legacy(h, items, denied, after)
		return after
	}
	policies, limits := make(httpsfv.List, len(items)), make(httpsfv.List, len(items))
	for i, it := range items {
		p, l := httpsfv.NewItem(it.name), httpsfv.NewItem(it.name)
		p.Params.Add("q", it.q)
		p.Params.Add("w", it.w)
		l.Params.Add("r", it.r)
		if it.t >= 0 {
			l.Params.Add("t", it.t)
		}
		policies[i], limits[i] = p, l
	}
	add(h, "RateLimit-Policy", policies)
	add(h, "RateLimit", limits)
	return after
}

func add(h http.Header, name string, list httpsfv.List) {
	if text, err := httpsfv.Marshal(list); err == nil { // names and numbers were made to fit
		h.Add(name, text)
	}
}

// outer reads what Guards further out have told: who has nothing left there comes back no earlier
// than that says. Of the others t is taken away, as it may be later than Retry-After.
func outer(h http.Header) (after int64) {
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit"))
	if err != nil || len(list) == 0 {
		return 0
	}
	for _, m := range list {
		it, ok := m.(httpsfv.Item)
		if !ok {
			continue
		}
		t, _ := it.Params.Get("t")
		if r, _ := it.Params.Get("r"); r != int64(0) {
			it.Params.Del("t")
		} else if t, ok := t.(int64); ok {
			after = max(after, t)
		}
	}
	h.Del("RateLimit")
	add(h, "RateLimit", list)
	return after
}

// outerLegacy is outer for the fields of Legacy.
func outerLegacy(h http.Header) (after int64) {
	const timeOfDay = 1_000_000_000 // which other middleware writes there, or more
	reset, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
	if err != nil || reset >= timeOfDay {
		return 0
	}
	if h.Get("X-RateLimit-Remaining") != "0" {
		h.Set("X-RateLimit-Reset", "0")
		return 0
	}
	return reset
}

// legacy has room for one limit: that of a Guard further out, if that is as tight.
func legacy(h http.Header, items []item, denied bool, after int64) {
	it := items[0]
	for _, other := range items[1:] {
		if other.tighter(it) {
			it = other
		}
	}
	r, err := strconv.ParseInt(h.Get("X-RateLimit-Remaining"), 10, 64)
	if err == nil && !denied && r <= it.r {
		return
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(it.q, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(it.r, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(max(0, it.t, after), 10))
}
