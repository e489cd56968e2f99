package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/weir-go/weir/httplimit"
)

// captcha is a key in place of work: the token that a CAPTCHA has given to who solved it, if its
// provider says that it did. No answer is no session.
func captcha(provider *http.Client, siteverify, secret string) httplimit.Key {
	return func(r *http.Request) (string, error) {
		token := r.PostFormValue("captcha")
		if token == "" {
			return "", unsolved
		}
		form := url.Values{"secret": {secret}, "response": {token}}
		resp, err := provider.PostForm(siteverify, form) // let the client have a timeout
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		var answer struct{ Success bool }
		if err := json.NewDecoder(io.LimitReader(resp.Body, 10_000)).Decode(&answer); err != nil {
			return "", err
		}
		if !answer.Success {
			return "", unsolved
		}
		return token, nil
	}
}

func TestACaptchaFitsTheSameDoor(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		_, _ = fmt.Fprintf(w, `{"success": %v}`,
			r.PostFormValue("secret") == "s" && r.PostFormValue("response") == "human")
	}))
	defer provider.Close()
	p := newPlace(t, func(v *visitors) { v.solved = captcha(provider.Client(), provider.URL, "s") })
	c := p.client("203.0.113.1")
	p.advised(unsolved, c.sends(url.Values{}))
	p.advised(unsolved, c.sends(url.Values{"captcha": {"robot"}}))
	away.Store(true)
	p.want(503, c.sends(url.Values{"captcha": {"human"}}))
	away.Store(false)
	p.want(204, c.sends(url.Values{"captcha": {"human"}}))
	p.want(200, c.visit)
	p.advised(usedUp, c.sends(url.Values{"captcha": {"human"}}))
}
