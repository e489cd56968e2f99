package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// One address sends 20,000 requests, each with another cookie or none, makes sessions as often as
// it can, and sends what it has solved again and again. The limit of all its requests lets every
// one through, so that nothing but the price of sessions bounds the rows.
func TestAFloodFromOneAddressMakesFewRows(t *testing.T) {
	t.Parallel()
	const flood = 20_000
	p := newPlace(t, func(v *visitors) {
		v.limits.perAddress = ratelimit.MustDefine("visitorAddress",
			ratelimit.TokenBucket{Rate: 1e6, Period: time.Minute})
	})
	h := p.handler(http.HandlerFunc(site))
	solution := p.solvedBy(p.client("203.0.113.1")).Encode()
	own := claims{ID: "own", Issued: start.Unix(), Expires: start.Add(time.Hour).Unix()}
	over := claims{ID: "over", Issued: start.Add(-time.Hour).Unix(), Expires: start.Unix()}
	cookies := []func(i int) string{
		func(i int) string { return fmt.Sprint("made up ", i) },
		func(i int) string {
			own := own
			own.ID = fmt.Sprint(i)
			return keys{make([]byte, 32)}.seal(toVisit, own)
		},
		func(i int) string { return fmt.Sprintf("%s%d", p.keys.seal(toVisit, own), i) },
		func(i int) string { return strings.Replace(p.keys.seal(toSolve, own), "challenge", "session", 1) },
		func(i int) string { return p.keys.seal(toVisit, over) },
	}
	var mu sync.Mutex
	count := map[string]int{}
	send := func(method, path, body, cookie string) (set []*http.Cookie) {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.RemoteAddr = "203.0.113.1:4711"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if cookie != "" {
			r.Header.Set("Cookie", "visitor="+url.PathEscape(cookie))
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		mu.Lock()
		defer mu.Unlock()
		count[fmt.Sprint(path, " ", w.Code)]++
		return (&http.Response{Header: w.Header()}).Cookies()
	}
	var wg sync.WaitGroup
	for sender := range 16 {
		wg.Go(func() {
			for i := sender; i < flood; i += 16 {
				switch i % 10 {
				case 0:
					for _, fresh := range send(http.MethodPost, "/session", "", "") {
						send(http.MethodGet, "/", "", fresh.Value)
					}
				case 1:
					for _, fresh := range send(http.MethodPost, "/session/solved", solution, "") {
						send(http.MethodGet, "/", "", fresh.Value)
					}
				case 2:
					send(http.MethodPost, "/session/solved", "challenge="+fmt.Sprint(i)+"&nonce=1", "")
				case 3:
					send(http.MethodGet, "/", "", "")
				default:
					send(http.MethodGet, "/", "", cookies[i%len(cookies)](i))
				}
			}
		})
	}
	wg.Wait()
	want := map[string]int{"/session 204": 2, "/session 429": 1998, "/session/solved 204": 1,
		"/session/solved 403": 3999, "/ 200": 3, "/ 403": 14_000}
	if !maps.Equal(count, want) {
		t.Errorf("%v, want %v", count, want)
	}
	for name, want := range map[string]int{"visitorAddress": 1, "visitorFree": 1,
		"visitorEarned": 1, "visitorChallenge": 1, "visitorSession": 3} {
		if n := p.rows(name); n != want {
			t.Errorf("%s has %d rows, want %d", name, n, want)
		}
	}
	if n := p.rows() - p.rows("visitors"); n != 7+1 { // the demand
		t.Errorf("%d rows in all, without those that all share", n)
	}
}

// What is full again is deleted, and neither a session that goes on nor a challenge that is good is
// touched.
func TestTheRowsOfWhatIsOverAreDeleted(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c, gone := p.client("203.0.113.1"), p.client("203.0.113.2")
	p.want(204, gone.begin)
	for range 2 {
		p.want(204, c.earn)
		p.want(200, c.visit)
	}
	p.clock.Add(2 * time.Hour)
	form := p.solvedBy(c)
	p.want(204, c.sends(form))
	for range 3 {
		p.want(200, c.visit)
	}
	if _, err := p.limiter.Prune(t.Context(), p.pool, ratelimit.PruneConfig{}); err != nil {
		t.Fatal(err)
	}
	p.want(429, c.visit)
	p.advised(usedUp, c.sends(form))
	for name, want := range map[string]int{"visitorSession": 1, "visitorChallenge": 1,
		"visitorEarned": 1, "visitorAddress": 1, "visitorFree": 0} {
		if n := p.rows(name); n != want {
			t.Errorf("%s has %d rows left, want %d", name, n, want)
		}
	}
}
