package lockout

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// Devices recognizes devices that have signed in to an account before, by a token that they keep:
// the device cookies of OWASP
// (https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies). Set it
// as Config.Devices. It is safe for concurrent use.
//
// A token is no session. It lets nobody in by itself, and only selects the balance that an attempt
// is charged to. It is bound to an account, and has an id and the time of its issue, under
// HMAC-SHA256. A thief gets five tries per lock with it, as without, and can lock that device. A
// token with a new id ends the latter: issue one when the password is reset. Tokens that were
// issued before a reset stay good until MaxAge, and who knew the password may have collected many,
// by signing in again and again: each is worth five tries per lock. Bound the sign-ins of an
// account where that matters; removing the key ends all of them.
type Devices struct {
	keys   [][]byte
	maxAge time.Duration
	now    func() time.Time
}

// DevicesConfig configures [NewDevices].
type DevicesConfig struct {
	// Keys are secrets of at least 32 random bytes each, the same in all processes. The first one
	// signs; all are accepted. To rotate, add a new key at the end in all processes, then move it
	// to the front, and remove the old one after MaxAge. Remove a leaked key at once: its devices
	// are unknown until they sign in again. There is no default.
	Keys [][]byte

	// MaxAge is how long a token is good after its issue, by the clock of the program. Default: 180
	// days.
	MaxAge time.Duration
}

const (
	leastKey = 32
	// by which a program's clock may be behind that of the one that issued a token
	skew = time.Hour
)

// NewDevices makes a Devices. A bad cfg is refused with an error that matches
// [ratelimit.ErrInvalid].
func NewDevices(cfg DevicesConfig) (*Devices, error) {
	if len(cfg.Keys) == 0 {
		return nil, invalid("DevicesConfig.Keys", 0, "at least one")
	}
	d := &Devices{maxAge: cmp.Or(cfg.MaxAge, 180*24*time.Hour), now: time.Now}
	if d.maxAge < time.Second {
		return nil, invalid("DevicesConfig.MaxAge", cfg.MaxAge,
			"at least a second, or 0 for the default")
	}
	for _, k := range cfg.Keys {
		if len(k) < leastKey {
			return nil, invalid("length of a key of DevicesConfig.Keys", len(k),
				"at least 32 random bytes")
		}
		d.keys = append(d.keys, bytes.Clone(k))
	}
	return d, nil
}

// A token is a version, the seconds of its issue since the Unix epoch, the id, and the signature;
// in URL-safe base64, without padding, so that it fits into a cookie.
const (
	version   = 1
	idBytes   = 16
	bodyBytes = 1 + 8 + idBytes
)

var encoding = base64.RawURLEncoding.Strict()

// Issue returns the token for a client that has signed in to account, named as in [Who]. old is
// what came in Who.Device. If it is a valid token of the same account, the device keeps its id;
// otherwise it is a new device. Give the client a new token after each sign-in, and not before, in
// a cookie that is HttpOnly, Secure and SameSite.
func (d *Devices) Issue(account, old string) string {
	body := make([]byte, bodyBytes, bodyBytes+sha256.Size)
	body[0] = version
	binary.BigEndian.PutUint64(body[1:], uint64(d.now().Unix())) //nolint:gosec // the same bits
	if earlier, ok := d.open(account, old); ok {
		copy(body[bodyBytes-idBytes:], earlier[bodyBytes-idBytes:])
	} else {
		_, _ = rand.Read(body[bodyBytes-idBytes:]) // never fails
	}
	return encoding.EncodeToString(append(body, sign(d.keys[0], body, account)...))
}

// known is the id of the device that a token is of. A nil Devices knows none.
func (d *Devices) known(account, token string) (id string, ok bool) {
	if d == nil {
		return "", false
	}
	body, ok := d.open(account, token)
	if !ok {
		return "", false
	}
	return encoding.EncodeToString(body[bodyBytes-idBytes:]), true
}

// open returns the body of a token that is good for account.
func (d *Devices) open(account, token string) (body []byte, ok bool) {
	if len(token) != encoding.EncodedLen(bodyBytes+sha256.Size) {
		return nil, false
	}
	raw, err := encoding.DecodeString(token)
	if err != nil || len(raw) != bodyBytes+sha256.Size { // base64 skips line breaks
		return nil, false
	}
	body = raw[:bodyBytes]
	for _, k := range d.keys { // all of them: how long it takes does not tell which
		ok = hmac.Equal(raw[bodyBytes:], sign(k, body, account)) || ok
	}
	issued := time.Unix(int64(binary.BigEndian.Uint64(body[1:])), 0) //nolint:gosec // the same bits
	age := d.now().Sub(issued)
	return body, ok && body[0] == version && age >= -skew && age < d.maxAge
}

// sign binds a body to an account. Of the parts only the last has no fixed length.
func sign(key, body []byte, account string) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("weir lockout device\x00"))
	_, _ = mac.Write(body)
	_, _ = mac.Write([]byte(account))
	return mac.Sum(nil)
}
