package lockout

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func newDevices(t testing.TB, keys ...[]byte) *Devices {
	t.Helper()
	d, err := NewDevices(DevicesConfig{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestATokenIsGoodForItsAccountOnly(t *testing.T) {
	t.Parallel()
	d := newDevices(t, key(1))
	token := d.Issue("alice", "")
	if id, ok := d.known("alice", token); !ok || len(id) != 22 {
		t.Errorf("its own: %q, %v", id, ok)
	}
	for _, account := range []string{"bob", "Alice", "alice ", "alic", ""} {
		if _, ok := d.known(account, token); ok {
			t.Errorf("good for %q, too", account)
		}
	}
	if _, ok := (*Devices)(nil).known("alice", token); ok {
		t.Error("without Devices it is good")
	}
	if other := d.Issue("alice", ""); other == token {
		t.Error("two tokens are one")
	}
}

// Not a bit of a token may be another one.
func TestAForgedTokenIsNone(t *testing.T) {
	t.Parallel()
	d := newDevices(t, key(1))
	token := d.Issue("alice", "")
	raw, err := encoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			if _, ok := d.known("alice", encoding.EncodeToString(raw)); ok {
				t.Errorf("good with bit %d of byte %d turned", bit, i)
			}
			raw[i] ^= 1 << bit
		}
	}
	if _, ok := newDevices(t, key(2)).known("alice", token); ok {
		t.Error("good under another key")
	}
	for _, forged := range []string{"", "a", token[1:], token + "A", token + "=",
		token[:len(token)-1] + "\n", strings.Repeat("\n", len(token)), strings.Repeat("\r", len(token)),
		strings.Repeat("\n", len(token)-32) + token[:32], strings.Repeat("=", len(token)),
		strings.Repeat("A", len(token)), strings.Repeat("A", 1<<20)} {
		if _, ok := d.known("alice", forged); ok {
			t.Errorf("%.100q is good", forged)
		}
	}
	// A bad version, signed all the same.
	raw[0]++
	copy(raw[bodyBytes:], sign(key(1), raw[:bodyBytes], "alice"))
	if _, ok := d.known("alice", encoding.EncodeToString(raw)); ok {
		t.Error("good in another version")
	}
}

func FuzzTokens(f *testing.F) {
	d := newDevices(f, key(1))
	d.now = func() time.Time { return time.Unix(0, 0) }
	body := make([]byte, bodyBytes) // the same in each process that takes part
	body[0] = version
	good := encoding.EncodeToString(append(body, sign(key(1), body, "alice")...))
	if _, ok := d.known("alice", good); !ok {
		f.Fatal("the good token is none")
	}
	f.Add("alice", good)
	f.Add("bob", good)
	f.Add("alice", "")
	f.Fuzz(func(t *testing.T, account, token string) {
		if _, ok := d.known(account, token); ok && (account != "alice" || token != good) {
			t.Errorf("%q is good for %q", token, account)
		}
	})
}

func TestATokenHasItsTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d, err := NewDevices(DevicesConfig{Keys: [][]byte{key(1)}, MaxAge: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	d.now = func() time.Time { return now }
	token := d.Issue("alice", "")
	issued := now
	for after, want := range map[time.Duration]bool{
		0: true, 24*time.Hour - time.Nanosecond: true, 24 * time.Hour: false, 1000 * time.Hour: false,
		-time.Hour: true, -time.Hour - time.Second: false, // a clock that is behind
	} {
		now = issued.Add(after)
		if _, ok := d.known("alice", token); ok != want {
			t.Errorf("after %v: %v, want %v", after, ok, want)
		}
	}
	// However far away the time that it tells.
	for _, seconds := range []uint64{0, 1 << 62, 1 << 63, 1<<64 - 1} {
		body := make([]byte, bodyBytes)
		body[0] = version
		binary.BigEndian.PutUint64(body[1:], seconds)
		now = issued
		if _, ok := d.known("alice", encoding.EncodeToString(append(body, sign(key(1), body, "alice")...))); ok {
			t.Errorf("good at %d", seconds)
		}
	}
}

// A device keeps its id, and with it its balance, from one sign-in to the next; not that of another
// account, nor an old one.
func TestADeviceKeepsItsID(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := newDevices(t, key(1))
	d.now = func() time.Time { return now }
	first := d.Issue("alice", "")
	id, _ := d.known("alice", first)
	now = now.Add(179 * 24 * time.Hour)
	second := d.Issue("alice", first)
	now = now.Add(179 * 24 * time.Hour)
	if got, ok := d.known("alice", second); !ok || got != id {
		t.Errorf("issued anew: %q, %v, want %q", got, ok, id)
	}
	for _, old := range []string{first, "", "x", d.Issue("bob", "")} {
		if got, ok := d.known("alice", d.Issue("alice", old)); !ok || got == id {
			t.Errorf("issued for %q: %q, %v", old, got, ok)
		}
	}
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	old, both, swapped, fresh := newDevices(t, key(1)), newDevices(t, key(1), key(2)),
		newDevices(t, key(2), key(1)), newDevices(t, key(2))
	for _, c := range []struct {
		name          string
		issuer, other *Devices
		want          bool
	}{
		{"old to both", old, both, true}, {"both to old", both, old, true}, {"both to swapped", both, swapped, true},
		{"swapped to both", swapped, both, true}, {"swapped to fresh", swapped, fresh, true}, {"old to swapped", old, swapped, true},
		{"both to fresh", both, fresh, false}, {"swapped to old", swapped, old, false}, {"old to fresh", old, fresh, false},
	} {
		if _, ok := c.other.known("alice", c.issuer.Issue("alice", "")); ok != c.want {
			t.Errorf("%s: %v, want %v", c.name, ok, c.want)
		}
	}
}

func TestBadDevicesAreRefused(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]DevicesConfig{
		"no keys":   {},
		"short key": {Keys: [][]byte{key(1), key(2)[:31]}},
		"no age":    {Keys: [][]byte{key(1)}, MaxAge: time.Millisecond},
		"below 0":   {Keys: [][]byte{key(1)}, MaxAge: -time.Hour},
	} {
		_, err := NewDevices(cfg)
		if !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "\x02") {
			t.Errorf("%s: the error tells a key: %q", name, err)
		}
	}
	keys := [][]byte{key(1)}
	d := newDevices(t, keys...)
	token := d.Issue("alice", "")
	clear(keys[0]) // is the caller's
	if _, ok := d.known("alice", token); !ok {
		t.Error("the key is not the one that was given")
	}
}
