package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/weir-go/weir/shard"
)

// Key returns the key that a request counts for. With an empty key, or an error that matches
// [ErrNoKey], the request is refused with 403.
//
// A key that clients can choose freely limits nobody, as each new key is a new balance, and each
// costs a row. Check it before, in your authentication, or put a limit by address in front: see
// docs/http.md of the repository.
type Key func(*http.Request) (string, error)

// ErrNoKey is matched by the error of a request without a required key. The answer is 403.
var ErrNoKey = errors.New("httplimit: the request has no key")

// ByUser is the user that a function returns, for example from the context in which your
// authentication has put it.
func ByUser(user func(*http.Request) string) Key {
	return func(r *http.Request) (string, error) { return user(r), nil }
}

// ByHeader is the SHA-256, in hex, of a header field with a secret such as an API key or a token,
// so that the stored key lets nobody in. If the field is repeated, the first one counts. Clients
// can send any value: see [Key].
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

// Good makes a key that the database can store from any key that is not empty. Different keys stay
// different. It returns the key itself, or the SHA-256 of a key that is longer than 128 bytes, has
// a NUL, is not UTF-8, looks like such a hash, or begins as Weir's own keys do.
func Good(key string) string {
	if len(key) <= mostBytes && utf8.ValidString(key) && strings.IndexByte(key, 0) < 0 &&
		!strings.HasPrefix(key, hashed) && !strings.HasPrefix(key, shard.Reserved) {
		return key
	}
	return hashed + digest(key)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
