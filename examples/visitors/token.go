package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// claims are what a token says. Anybody can read them, and nobody without a key can write them.
type claims struct {
	ID      string `json:"id"`  // random: the key of its limit
	Issued  int64  `json:"iat"` // in seconds since 1970
	Expires int64  `json:"exp"` // the first second in which it is none
	// where alone it is good, as httplimit.ByAddress says it; everywhere if empty
	Network string `json:"net,omitempty"`
	Bits    int    `json:"bits,omitempty"` // the work that a challenge asks for
}

// purpose is what a token is for. It is signed with it: a challenge is no session.
type purpose string

const (
	toVisit purpose = "v1.session."
	toSolve purpose = "v1.challenge."

	longestToken = 512
	skew         = time.Minute // by which the clocks of two processes may differ
)

// keys sign tokens: the first one does, and what any of them has signed is good. A new key goes
// first once all processes have it as their second; an old one goes when the last session that it
// signed is over.
type keys [][]byte

func newKeys(some ...[]byte) (keys, error) {
	if len(some) == 0 {
		return nil, fmt.Errorf("no key to sign with")
	}
	for i, key := range some {
		if len(key) < sha256.Size {
			return nil, fmt.Errorf("key %d has %d bytes, want %d or more random ones", i+1,
				len(key), sha256.Size)
		}
	}
	return some, nil
}

func (k keys) seal(p purpose, c claims) string {
	body, _ := json.Marshal(c) // strings and numbers: it cannot fail
	text := string(p) + base64.RawURLEncoding.EncodeToString(body)
	return text + "." + sign(k[0], text)
}

// open returns what a token says if one of the keys has signed it, for that purpose, and its time
// is not over. One from the future, too, is none: else a clock that is set back would make what is
// used up good again.
func (k keys) open(p purpose, token string, now time.Time) (c claims, ok bool) {
	end := strings.LastIndexByte(token, '.')
	if len(token) > longestToken || end < len(p) || !strings.HasPrefix(token, string(p)) {
		return claims{}, false
	}
	text, mac := token[:end], token[end+1:]
	for _, key := range k {
		// takes as long wherever they differ
		ok = ok || hmac.Equal([]byte(mac), []byte(sign(key, text)))
	}
	if !ok {
		return claims{}, false
	}
	body, err := base64.RawURLEncoding.DecodeString(text[len(p):])
	if err != nil || json.Unmarshal(body, &c) != nil {
		return claims{}, false
	}
	if now.Unix() >= c.Expires || now.Add(skew).Unix() < c.Issued {
		return claims{}, false
	}
	return c, true
}

func sign(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
