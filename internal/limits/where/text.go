package where

import (
	"strings"
	"unicode/utf8"
)

// Unfit returns the reason why a text cannot be a name or a key in Postgres, or "" if it can. most
// is how many bytes it may have.
func Unfit(text string, most int) (why string) {
	switch {
	case len(text) > most:
		return "it is longer"
	case strings.IndexByte(text, 0) >= 0:
		return "it has a NUL"
	case !utf8.ValidString(text):
		return "it is not UTF-8"
	}
	return ""
}

// Short is a text that keeps error messages readable.
func Short(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return text[:most] + "..."
}
