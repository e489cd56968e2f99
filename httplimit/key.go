package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Key tells for whom a request counts. An empty key is none: the request is refused with 403, as with an error that matches
// [ErrNoKey].
//
// A key that clients may choose freely limits nobody, as each new one is a new balance, and costs a row each. Let it be checked
// before, by the authentication, or put a limit by address in front: see docs/http.md of the repository.
type Key func(*http.Request) (string, error)

// ErrNoKey is matched by the error of a request that has no key where one is required. It is answered with 403.
var ErrNoKey = errors.New("httplimit: the request has no key")

// ByUser is whoever a function says that the request is from: out of the context in which the authentication has put it, say.
func ByUser(user func(*http.Request) string) Key {
	return func(r *http.Request) (string, error) { return user(r), nil }
}

// ByHeader is the value of a header field that is a secret, an API key or a token: its SHA-256 in hex, so that what is stored lets
// nobody in. Of several lines the first counts. Anybody can send any value: see [Key].
func ByHeader(name string) Key {
	return func(r *http.Request) (string, error) {
		v := r.Header.Get(name)
		if v == "" {
			return "", ErrNoKey
		}
		return digest(v), nil
	}
}

const (
	mostBytes = 128
	hashed    = "sha256:"
)

// Good makes a key that the database can hold out of any that is not empty, and another one out of another: it is key itself, or the
// SHA-256 of one that is longer than 128 bytes, has a NUL, is not UTF-8, or looks like such a hash.
func Good(key string) string {
	if len(key) <= mostBytes && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0 && !strings.HasPrefix(key, hashed) {
		return key
	}
	return hashed + digest(key)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
