package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"math/bits"
	"net/http"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
)

// challenge hands out work, and keeps nothing of it: what is to be known of it is in the token.
func (v *visitors) challenge(w http.ResponseWriter, r *http.Request) {
	network, err := v.address(r)
	if err != nil {
		v.door.Pass(w, r, ratelimit.Result{}, err)
		return
	}
	now := v.now()
	c := claims{ID: rand.Text(), Issued: now.Unix(), Expires: now.Add(challengeLife).Unix(),
		Network: network, Bits: v.bits + v.rise(r)}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// a client that has gone needs no answer
	_ = json.NewEncoder(w).Encode(task{v.keys.seal(toSolve, c), c.Bits})
}

// task is a challenge as clients get it: to find a nonce so that the SHA-256 of both begins with so
// many zero bits.
type task struct {
	Challenge string `json:"challenge"`
	Bits      int    `json:"bits"`
}

// rise is by how many bits demand makes challenges harder. The limit was asked for no token: to see
// what it has left.
func (v *visitors) rise(r *http.Request) int {
	res, _ := httplimit.FromContext(r.Context())
	for _, o := range res.Outcomes {
		if o.Limit == v.limits.demand.Name() && o.Capacity > 0 {
			return int(mostRise * (1 - o.Value/o.Capacity))
		}
	}
	return 0
}

// work is a key: the challenge that the request has solved. To refuse it costs no query.
func (v *visitors) work(r *http.Request) (string, error) {
	network, err := v.address(r)
	if err != nil {
		return "", err
	}
	challenge, nonce := r.PostFormValue("challenge"), r.PostFormValue("nonce")
	c, ok := v.keys.open(toSolve, challenge, v.now())
	if !ok || c.Network != network || zeros(challenge+nonce) < c.Bits {
		return "", unsolved
	}
	return c.ID, nil
}

// zeros is the number of zero bits that the SHA-256 begins with.
func zeros(text string) (n int) {
	for _, b := range sha256.Sum256([]byte(text)) {
		n += bits.LeadingZeros8(b)
		if b != 0 {
			break
		}
	}
	return n
}
