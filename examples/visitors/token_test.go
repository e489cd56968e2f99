package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var (
	oldKey = bytes.Repeat([]byte("old "), 8)
	newKey = bytes.Repeat([]byte("new "), 8)
	start  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	signed = claims{ID: "ABC", Issued: start.Unix(), Expires: start.Add(time.Hour).Unix(),
		Network: "2001:db8::/64", Bits: 7}
)

func TestATokenIsGoodIfWeHaveSignedItAndItsTimeIsNotOver(t *testing.T) {
	t.Parallel()
	good := keys{oldKey}.seal(toVisit, signed)
	parts := strings.Split(good, ".") // v1 session payload mac
	payload, _ := json.Marshal(claims{ID: "ABC", Issued: signed.Issued, Expires: signed.Expires + 1})
	later := signed
	later.Issued, later.Expires = start.Add(skew+2*time.Second).Unix(), start.Add(2*time.Hour).Unix()
	for name, c := range map[string]struct {
		keys  keys
		p     purpose
		token string
		after time.Duration
		want  bool
	}{
		"Good":             {keys{oldKey}, toVisit, good, 0, true},
		"InItsLastSecond":  {keys{oldKey}, toVisit, good, time.Hour - time.Nanosecond, true},
		"Expired":          {keys{oldKey}, toVisit, good, time.Hour, false},
		"ClockSetBack":     {keys{oldKey}, toVisit, good, -2 * time.Minute, false},
		"ClocksDiffer":     {keys{oldKey}, toVisit, good, -skew, true},
		"OfTheFuture":      {keys{oldKey}, toVisit, keys{oldKey}.seal(toVisit, later), 0, false},
		"Rotated":          {keys{newKey, oldKey}, toVisit, good, 0, true},
		"RotatedBefore":    {keys{oldKey, newKey}, toVisit, keys{newKey, oldKey}.seal(toVisit, signed), 0, true},
		"KeyGone":          {keys{newKey}, toVisit, good, 0, false},
		"SignedByTheFirst": {keys{oldKey}, toVisit, keys{newKey, oldKey}.seal(toVisit, signed), 0, false},
		"NoKeys":           {nil, toVisit, good, 0, false},
		"OtherPurpose":     {keys{oldKey}, toSolve, good, 0, false},
		"PurposeChanged":   {keys{oldKey}, toSolve, strings.Replace(good, "session", "challenge", 1), 0, false},
		"VersionChanged":   {keys{oldKey}, toVisit, "v2" + good[2:], 0, false},
		"PayloadChanged": {keys{oldKey}, toVisit, "v1.session." +
			base64.RawURLEncoding.EncodeToString(payload) + "." + parts[3], 0, false},
		"NoMAC":        {keys{oldKey}, toVisit, strings.Join(parts[:3], "."), 0, false},
		"EmptyMAC":     {keys{oldKey}, toVisit, strings.Join(parts[:3], ".") + ".", 0, false},
		"HalfAMAC":     {keys{oldKey}, toVisit, good[:len(good)-20], 0, false},
		"MACOfAnother": {keys{oldKey}, toVisit, "v1.session.e30." + parts[3], 0, false},
		"Padded":       {keys{oldKey}, toVisit, good + "=", 0, false},
		"Spaced":       {keys{oldKey}, toVisit, good + "\n", 0, false},
		"Empty":        {keys{oldKey}, toVisit, "", 0, false},
		"PurposeOnly":  {keys{oldKey}, toVisit, string(toVisit), 0, false},
		"Long": {keys{oldKey}, toVisit, keys{oldKey}.seal(toVisit,
			claims{ID: strings.Repeat("x", 600), Expires: signed.Expires}), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := c.keys.open(c.p, c.token, start.Add(c.after))
			if ok != c.want || ok && got != signed {
				t.Errorf("%v, %+v", ok, got)
			}
			if !ok && got != (claims{}) {
				t.Errorf("a token that is none says %+v", got)
			}
		})
	}
}

func TestKeysAreLongEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys [][]byte
		want string
	}{
		"None":        {nil, "no key"},
		"Short":       {[][]byte{make([]byte, 31)}, "key 1 has 31 bytes"},
		"SecondEmpty": {[][]byte{newKey, nil}, "key 2 has 0 bytes"},
		"Good":        {[][]byte{newKey, oldKey}, ""},
	} {
		_, err := newKeys(c.keys...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Nothing is opened but what was sealed, to the letter, and it says what was sealed.
func FuzzOpen(f *testing.F) {
	k := keys{newKey, oldKey}
	good := k.seal(toVisit, signed)
	other := k.seal(toSolve, signed)
	f.Add("", uint16(0), byte(0), byte(0))
	f.Add(good, uint16(20), byte(1), byte(9))
	f.Add(other, uint16(len(good)-1), byte(1), byte(0))
	f.Add("v1.session..", uint16(3), byte('.'), byte(255))
	f.Add("v1.session."+strings.Repeat("A", 40)+"."+strings.Repeat("A", 43), uint16(11), byte(32), byte(1))
	f.Fuzz(func(t *testing.T, token string, at uint16, flip, more byte) {
		bent := []byte(good)
		bent[int(at)%len(bent)] ^= flip
		for _, s := range []string{token, string(bent), good[:int(at)%len(good)] + token, good + token, token + good} {
			c, ok := k.open(toVisit, s, start)
			if ok != (s == good) || ok && c != signed {
				t.Fatalf("%q: %v, %+v", s, ok, c)
			}
		}
		if c, ok := k.open(toVisit, other, start); ok {
			t.Fatalf("a challenge is a session: %+v", c)
		}
		c := claims{ID: strings.ToValidUTF8(token[:min(len(token), 50)], ""),
			Issued: start.Unix() - int64(at), Expires: start.Unix() + int64(more), Bits: int(flip)}
		if got, ok := k.open(toSolve, k.seal(toSolve, c), start); ok != (more > 0) &&
			len(k.seal(toSolve, c)) <= longestToken || ok && got != c {
			t.Fatalf("%v, %+v, want %+v", ok, got, c)
		}
	})
}
