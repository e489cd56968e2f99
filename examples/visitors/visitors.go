package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
)

// visitors lets those in who have a session, and makes sessions. They are limited in two ways: an
// address has some for nothing, which are good from there only; more of them cost a solved
// challenge each, and go where their visitor goes.
type visitors struct {
	limits  limits
	keys    keys
	address httplimit.Key // ByAddress, with the proxies that there are
	// the id of the challenge that a request has solved: work, or that of a CAPTCHA
	solved httplimit.Key
	bits   int  // of work, while few want sessions
	secure bool // cookies are for TLS only: false is for demos
	now    func() time.Time

	gate *httplimit.Guard // for requests
	// for sessions: tells nothing of what is left, as a challenge never has anything
	door httplimit.Guard
}

// limiter is a *ratelimit.Coalesced, say.
type limiter interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
}

func newVisitors(limiter limiter, l limits, k keys, address httplimit.Key) *visitors {
	v := &visitors{limits: l, keys: k, address: address, bits: 16, secure: true, now: time.Now}
	v.solved = v.work
	v.gate = &httplimit.Guard{Limiter: limiter, Timeout: 5 * time.Second, Refuse: v.refuse}
	v.door = *v.gate
	v.door.Fields = httplimit.None
	return v
}

// handler asks before the site what a request has to be granted. What is without a session, or with
// a bad one, reaches no limit but that of its address: it costs the others nothing, and the table
// no row.
func (v *visitors) handler(site http.Handler) http.Handler {
	perAddress := v.gate.Limit(httplimit.By(v.limits.perAddress, v.address))
	perSession := v.gate.Limit(httplimit.By(v.limits.perSession, v.session),
		httplimit.Global(v.limits.overall))

	free := v.door.Limit(httplimit.By(v.limits.free, v.address))
	earned := v.door.Limit(httplimit.By(v.limits.earned, v.address),
		httplimit.By(v.limits.once, v.solved),
		httplimit.Global(v.limits.demand))
	look := v.door.Limit(httplimit.Global(v.limits.demand).Cost(func(*http.Request) float64 {
		return 0
	}))

	mux := http.NewServeMux()
	mux.Handle("POST /session", v.sameOrigin(free(v.welcome(true))))
	mux.Handle("POST /session/solved",
		v.sameOrigin(http.MaxBytesHandler(earned(v.welcome(false)), 10_000)))
	mux.Handle("GET /challenge", look(http.HandlerFunc(v.challenge)))
	mux.Handle("/", perSession(site))
	return perAddress(mux)
}

// session is a key: the id in the visitor's cookie, if we have signed it. What a client has made up
// is none.
func (v *visitors) session(r *http.Request) (string, error) {
	cookie, err := r.Cookie(v.cookie())
	if err != nil {
		return "", noSession
	}
	c, ok := v.keys.open(toVisit, cookie.Value, v.now())
	if !ok {
		return "", noSession
	}
	if c.Network == "" {
		return c.ID, nil
	}
	network, err := v.address(r)
	if err != nil {
		return "", err
	}
	if network != c.Network {
		return "", noSession // whoever has moved makes one there
	}
	return c.ID, nil
}

// welcome makes the session that has been granted.
func (v *visitors) welcome(bound bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := v.now()
		c := claims{ID: rand.Text(), Issued: now.Unix(), Expires: now.Add(sessionLife).Unix()}
		if bound {
			var err error
			if c.Network, err = v.address(r); err != nil {
				v.door.Pass(w, r, ratelimit.Result{}, err)
				return
			}
		}
		http.SetCookie(w, &http.Cookie{Name: v.cookie(), Value: v.keys.seal(toVisit, c), Path: "/",
			MaxAge: int(sessionLife.Seconds()),
			Secure: v.secure, HttpOnly: true, SameSite: http.SameSiteLaxMode})
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	})
}

// cookie is its name. With __Host- browsers take it from this very host only, by TLS.
func (v *visitors) cookie() string {
	if v.secure {
		return "__Host-visitor"
	}
	return "visitor"
}

// sameOrigin refuses what a page of another site has made a visitor's browser send: it would use up
// the sessions of the address.
func (v *visitors) sameOrigin(next http.Handler) http.Handler {
	p := http.NewCrossOriginProtection()
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.door.Pass(w, r, ratelimit.Result{}, otherSite)
	}))
	return p.Handler(next)
}

// advice is an error for the eyes of clients: a 403 that says what to do.
type advice string

const (
	noSession advice = "no session, or one that is over, or was made for another address. " +
		"POST /session makes one; while that is denied, GET /challenge, and POST it to /session/solved with a nonce."
	unsolved  advice = "no solution of a challenge that this address has got in the last two minutes. GET /challenge has another."
	usedUp    advice = "this challenge has made its session. GET /challenge has another."
	otherSite advice = "a page of another site has sent this."
)

func (a advice) Error() string { return string(a) }

// Is makes it a 403.
func (advice) Is(target error) bool { return target == httplimit.ErrNoKey }

func (v *visitors) refuse(w http.ResponseWriter, _ *http.Request, refusal httplimit.Refusal) {
	var detail advice
	if slices.Contains(refusal.Policies, v.limits.once.Name()) {
		detail = usedUp
		w.Header().Del("Retry-After") // it will be over by then
	} else if !errors.As(refusal.Err, &detail) {
		refusal.Write(w)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(
		map[string]any{"title": "Forbidden", "status": http.StatusForbidden, "detail": detail},
	)
}
