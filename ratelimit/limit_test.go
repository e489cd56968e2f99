package ratelimit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-go/weir/ratelimit"
)

var plain = ratelimit.TokenBucket{Rate: 10, Period: sec}

func TestNamesAndKeysThatPostgresCanStoreAreAccepted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a", " ", "a:b/c|d", `quote"'`, `back\slash`, "new\nline", "emoji 🦫", "日本語", "\u200b", "%s", "$1",
		strings.Repeat("x", ratelimit.MaxNameBytes), strings.Repeat("é", ratelimit.MaxNameBytes/2),
	} {
		l, err := ratelimit.Define(text, plain)
		if err != nil || l.Name() != text {
			t.Errorf("Define(%q): %v", text, err)
		}
		if _, err := ratelimit.Decide(l.For(text), ratelimit.State{}, t0); err != nil {
			t.Errorf("For(%q): %v", text, err)
		}
	}
	l := define(t, plain)
	if _, err := ratelimit.Decide(l.For(strings.Repeat("k", ratelimit.MaxKeyBytes)),
		ratelimit.State{}, t0); err != nil {
		t.Error(err)
	}
}

func TestNamesAndKeysThatPostgresCannotStoreAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, why string }{
		{"", "empty"},
		{"a\x00b", "NUL"},
		{"\x00", "NUL"},
		{"a\xff", "UTF-8"},
		{"\xed\xa0\x80", "UTF-8"}, // half of a surrogate pair
		{strings.Repeat("x", 10_000), "longer"},
	} {
		_, err := ratelimit.Define(tc.text, plain)
		var invalid *ratelimit.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "name" || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("Define(%.20q): %v, want %q", tc.text, err, tc.why)
		}
		if len(err.Error()) > 300 {
			t.Errorf("the message is %d bytes long", len(err.Error()))
		}
		_, err = ratelimit.Decide(define(t, plain).For(tc.text), ratelimit.State{}, t0)
		if !errors.As(err, &invalid) || invalid.Field != "key" || invalid.Limit != "limit" ||
			!strings.Contains(err.Error(), tc.why) {
			t.Errorf("For(%.20q): %v, want %q", tc.text, err, tc.why)
		}
		if len(err.Error()) > 300 {
			t.Errorf("the message is %d bytes long", len(err.Error()))
		}
	}
	if _, err := ratelimit.Define(strings.Repeat("x", ratelimit.MaxNameBytes+1), plain); err == nil {
		t.Error("a name of 256 bytes is accepted")
	}
	if _, err := ratelimit.Decide(define(t, plain).For(strings.Repeat("x",
		ratelimit.MaxKeyBytes+1)), ratelimit.State{}, t0); err == nil {
		t.Error("a key of 1025 bytes is accepted")
	}
}

func TestMustDefinePanicsWithTheError(t *testing.T) {
	t.Parallel()
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("recovered %v", err)
		}
	}()
	ratelimit.MustDefine("", plain)
}

func TestZeroLimitIsRefusedWhenUsed(t *testing.T) {
	t.Parallel()
	var l ratelimit.Limit
	if l.Name() != "" {
		t.Errorf("its name is %q", l.Name())
	}
	for _, r := range []ratelimit.Request{{}, l.For("key"), l.Global(), l.For("key").Rule(plain).Count(3).OrReserve()} {
		if _, err := ratelimit.Decide(r, ratelimit.State{}, t0); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
