package dashboard

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A key has one name, by which only who has the secret finds it again.
func FuzzHiddenKeys(f *testing.F) {
	f.Add("ann@example.org", "AAAA")
	f.Add("k", "")
	f.Add(strings.Repeat("ü", 500), "_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-")
	h, err := newHider([]byte("0123456789abcdef"))
	if err != nil {
		f.Fatal(err)
	}
	other, err := newHider([]byte("0123456789abcdeg"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, forged string) {
		if !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
			return // no key
		}
		name, shown := h.name(key)
		again, _ := h.name(key)
		got, ok := h.key(name)
		if !ok || got != key || name != again || len(shown) != 8 {
			t.Errorf("%q: %q, %v; %s, %s", key, got, ok, name, shown)
		}
		if len(key) > 3 && (strings.Contains(name, key) || strings.Contains(shown, key)) {
			t.Errorf("%q is in %s or %s", key, name, shown)
		}
		if got, ok := other.key(name); ok {
			t.Errorf("another secret finds %q", got)
		}
		if got, ok := h.key(forged); ok {
			if name, _ := h.name(got); name != forged {
				t.Errorf("%q finds %q", forged, got)
			}
		}
	})
}

func TestNamesHardlyTellHowLongAKeyIs(t *testing.T) {
	t.Parallel()
	h, err := newHider([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	short, _ := h.name("a")
	longer, _ := h.name(strings.Repeat("a", padded-1))
	long, _ := h.name(strings.Repeat("a", padded))
	if len(short) != len(longer) || len(long) <= len(longer) {
		t.Errorf("%d, %d, %d", len(short), len(longer), len(long))
	}
}
