package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// sends is a request with a solution.
func (c *client) sends(form url.Values) func(context.Context) (reply, error) {
	return func(ctx context.Context) (reply, error) { return c.do(ctx, http.MethodPost, "/session/solved", form) }
}

// solved is a challenge of the client's and its solution.
func (p *place) solvedBy(c *client) url.Values {
	p.t.Helper()
	form, err := c.solution(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return form
}

func TestASolvedChallengeMakesOneSession(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("203.0.113.1")
	form := p.solvedBy(c)
	var mu sync.Mutex
	count := map[int]int{}
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			r, err := p.client("203.0.113.1").sends(form)(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			count[r.status]++
		})
	}
	wg.Wait()
	if count[204] != 1 || count[403] != 29 {
		t.Errorf("30 at once: %v, want one session and 29 refusals", count)
	}
	p.advised(usedUp, c.sends(form))
	p.clock.Add(challengeLife - time.Second)
	p.advised(usedUp, c.sends(form))
	p.clock.Add(time.Second)
	p.advised(unsolved, c.sends(form))
	p.clock.Add(-time.Hour)
	p.advised(unsolved, c.sends(form)) // of the future
	if n := p.rows("visitorChallenge"); n != 1 {
		t.Errorf("%d challenges are used up, want 1", n)
	}
	p.clock.Add(time.Hour - challengeLife)
	for range 39 { // what the 30 and the others have not taken
		p.want(204, c.earn)
	}
	p.want(429, c.earn)
}

// No clock that any process may have lets a challenge be used again.
func TestATokenOfAChallengeComesAfterItsEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	again := func(id string) bool {
		res, err := p.gate.Limiter.RateLimit(t.Context(), p.limits.once.For(id))
		if err != nil {
			t.Fatal(err)
		}
		return res.OK
	}
	for i := range 200 { // each of which has windows of its own, if it had windows
		if !again(strconv.Itoa(i)) {
			t.Fatal("the first time is denied")
		}
	}
	p.clock.Add(challengeLife + 2*skew)
	for i := range 200 {
		if again(strconv.Itoa(i)) {
			t.Fatalf("challenge %d is good again", i)
		}
	}
}

func TestWhatIsNoSolution(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(v *visitors) { v.bits = 12 })
	c := p.client("203.0.113.1")
	good := p.solvedBy(c)
	challenge, nonce := good.Get("challenge"), good.Get("nonce")
	unsolvedNonce := 0
	for zeros(challenge+strconv.Itoa(unsolvedNonce)) >= 12 {
		unsolvedNonce++
	}
	easy := claims{ID: "x", Issued: start.Unix(), Expires: start.Add(time.Minute).Unix(), Network: "203.0.113.1"}
	for name, form := range map[string]url.Values{
		"Nothing":       {},
		"NoNonce":       {"challenge": {challenge}},
		"WrongNonce":    {"challenge": {challenge}, "nonce": {strconv.Itoa(unsolvedNonce)}},
		"NonceOnly":     {"nonce": {nonce}},
		"MadeUp":        {"challenge": {"v1.challenge.e30.x"}, "nonce": {"1"}},
		"OwnKey":        {"challenge": {keys{make([]byte, 32)}.seal(toSolve, easy)}, "nonce": {"1"}},
		"ASession":      {"challenge": {p.keys.seal(toVisit, easy)}, "nonce": {"1"}},
		"Altered":       {"challenge": {strings.Replace(challenge, "challenge.e", "challenge.f", 1)}, "nonce": {nonce}},
		"LargerThanAll": {"challenge": {challenge}, "nonce": {nonce}, "more": {strings.Repeat("x", 100_000)}},
	} {
		t.Log(name)
		p.advised(unsolved, c.sends(form))
	}
	p.advised(unsolved, p.client("203.0.113.2").sends(good))
	// The same claims as in OwnKey are accepted with our signature.
	p.want(204, c.sends(url.Values{"challenge": {p.keys.seal(toSolve, easy)}, "nonce": {"1"}}))
	p.want(204, c.sends(good))
	if n := p.rows("visitorChallenge"); n != 2 {
		t.Errorf("%d challenges are used up, want 2", n)
	}
}

// All or none: whom the address's limit denies has not used up the solution.
func TestADeniedSolutionIsStillGood(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	c := p.client("203.0.113.1")
	for range 40 {
		p.want(204, c.earn)
	}
	form := p.solvedBy(c)
	if r := p.want(429, c.sends(form)); r.header.Get("Retry-After") == "" || r.header.Get("Set-Cookie") != "" {
		t.Errorf("%v", r.header)
	}
	p.clock.Add(time.Minute + 30*time.Second)
	p.want(204, c.sends(form))
	p.advised(usedUp, c.sends(form))
}

// Asking for challenges makes none harder; sessions do, and nobody is denied for it.
func TestDemandMakesChallengesHarder(t *testing.T) {
	t.Parallel()
	p := newPlace(t, func(v *visitors) {
		v.limits.demand = ratelimit.MustDefine("visitorDemand",
			ratelimit.TokenBucket{Rate: 8, Period: time.Hour}, ratelimit.Shadow())
	})
	c := p.client("203.0.113.1")
	for earned, want := range []int{5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 9} {
		var asked task
		for range 3 {
			r, err := c.do(t.Context(), http.MethodGet, "/challenge", nil)
			if err != nil || json.Unmarshal([]byte(r.body), &asked) != nil ||
				r.header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%d %s %v, %v", r.status, r.body, r.header, err)
			}
			if asked.Bits != want {
				t.Errorf("after %d sessions: %d bits, want %d", earned, asked.Bits, want)
			}
		}
		p.want(204, c.earn)
	}
	p.clock.Add(time.Hour)
	if r, _ := c.do(t.Context(), http.MethodGet, "/challenge", nil); !strings.Contains(r.body, `"bits":5}`) {
		t.Errorf("an hour later: %s", r.body)
	}
}

func TestZerosAreCountedOverBytes(t *testing.T) {
	t.Parallel()
	for i := range 10_000 {
		if text := strconv.Itoa(i); zeros(text) != zerosByHand(text) {
			t.Fatalf("%q: %d, want %d", text, zeros(text), zerosByHand(text))
		}
	}
	nonce, err := task{Challenge: "c", Bits: 13}.solve(t.Context())
	if n := zerosByHand("c" + nonce); err != nil || n < 13 {
		t.Errorf("a nonce with %d zero bits, %v", n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (task{Challenge: "c", Bits: 200}).solve(ended); err == nil {
		t.Error("solved what cannot be")
	}
}

// zerosByHand reads them off the digits.
func zerosByHand(text string) int {
	digits := fmt.Sprintf("%0256b", new(big.Int).SetBytes(sum(text)))
	return len(digits) - len(strings.TrimLeft(digits, "0"))
}

func sum(text string) []byte {
	s := sha256.Sum256([]byte(text))
	return s[:]
}
