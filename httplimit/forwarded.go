package httplimit

import "strings"

// forwardedFor reads who asked each of the proxies, by RFC 7239, section 4: the parameters "for",
// in order, and what is no address for an element without one. None of a field that does not parse
// as a whole: a client could otherwise open a quotation that swallows what the proxies append.
func forwardedFor(field string) []string {
	var who []string
	s := scanner{field}
	for {
		found, client := false, "unknown"
		for {
			s.spaces()
			name, ok := s.token()
			if ok {
				value, ok := s.value()
				if !ok {
					return nil
				}
				if strings.EqualFold(name, "for") {
					if found || strings.ContainsRune(value, ',') {
						return nil
					}
					found, client = true, value
				}
			}
			s.spaces()
			if !s.skip(';') {
				break
			}
		}
		who = append(who, client)
		if s.rest == "" {
			return who
		}
		if !s.skip(',') {
			return nil
		}
	}
}

// scanner has what is left of a field.
type scanner struct{ rest string }

func (s *scanner) spaces() { s.rest = strings.TrimLeft(s.rest, " \t") }

func (s *scanner) skip(c byte) bool {
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// token reads one of RFC 9110, section 5.6.2.
func (s *scanner) token() (string, bool) {
	n := 0
	for n < len(s.rest) && isTokenByte(s.rest[n]) {
		n++
	}
	t := s.rest[:n]
	s.rest = s.rest[n:]
	return t, n > 0
}

// value reads what follows the name of a parameter: = and a token or a quoted string.
func (s *scanner) value() (string, bool) {
	if !s.skip('=') {
		return "", false
	}
	if !s.skip('"') {
		return s.token()
	}
	var b strings.Builder
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; c {
		case '"':
			s.rest = s.rest[i+1:]
			return b.String(), true
		case '\\':
			if i++; i == len(s.rest) {
				return "", false
			}
			b.WriteByte(s.rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

func isTokenByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
