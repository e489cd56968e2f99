package httplimit_test

import (
	"fmt"
	"strconv"
	"strings"
)

// member is an Item of a List, as a field has it.
type member struct {
	name   string
	params map[string]int64
}

// parseList reads a List of Strings with Integers as parameters, by the algorithms of RFC 9651,
// sections 4.2.1 to 4.2.5, and not by the library that the fields are written with.
func parseList(lines []string) (list []member, err error) {
	rest := strings.Trim(strings.Join(lines, ","), " ")
	for rest != "" {
		var m member
		if m.name, rest, err = parseString(rest); err != nil {
			return nil, err
		}
		if m.params, rest, err = parseParams(rest); err != nil {
			return nil, err
		}
		list = append(list, m)
		if rest = strings.TrimLeft(rest, " \t"); rest == "" {
			return list, nil
		}
		if rest[0] != ',' {
			return nil, fmt.Errorf("want a comma: %q", rest)
		}
		if rest = strings.TrimLeft(rest[1:], " \t"); rest == "" {
			return nil, fmt.Errorf("a comma at the end")
		}
	}
	return list, nil
}

func parseString(in string) (s, rest string, err error) {
	if in == "" || in[0] != '"' {
		return "", "", fmt.Errorf("want a String: %q", in)
	}
	var b strings.Builder
	for i := 1; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			return b.String(), in[i+1:], nil
		case c == '\\':
			i++
			if i == len(in) || in[i] != '"' && in[i] != '\\' {
				return "", "", fmt.Errorf("a bad escape: %q", in)
			}
			b.WriteByte(in[i])
		case c < 0x20 || c > 0x7e:
			return "", "", fmt.Errorf("a byte that no String has: %q", in)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("no end: %q", in)
}

func parseParams(in string) (params map[string]int64, rest string, err error) {
	params = map[string]int64{}
	for strings.HasPrefix(in, ";") {
		in = strings.TrimLeft(in[1:], " ")
		n := 0
		for n < len(in) && in[n] >= 'a' && in[n] <= 'z' {
			n++
		}
		if n == 0 || n == len(in) || in[n] != '=' {
			return nil, "", fmt.Errorf("want a key and a value: %q", in)
		}
		key := in[:n]
		in = in[n+1:]
		for n = 0; n < len(in) && (in[n] >= '0' && in[n] <= '9' || n == 0 && in[n] == '-'); n++ {
		}
		if n > 15 {
			return nil, "", fmt.Errorf("more than 15 digits: %q", in)
		}
		if params[key], err = strconv.ParseInt(in[:n], 10, 64); err != nil {
			return nil, "", err
		}
		in = in[n:]
	}
	return params, in, nil
}
