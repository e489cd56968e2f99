// Package jsontext writes JSON by appending, where encoding/json's reflection is too slow.
package jsontext

import (
	"strconv"
	"unicode/utf8"
)

// String appends s as a JSON string. What is not UTF-8 becomes U+FFFD.
func String(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(append(b, s[from:i]...), '\\', c)
		case c < 0x20:
			b = append(append(b, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			i++
			continue
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			b = append(append(b, s[from:i]...), "\uFFFD"...)
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// Float appends a finite number, which reads back as the same.
func Float(b []byte, f float64) []byte { return strconv.AppendFloat(b, f, 'g', -1, 64) }
