package httplimit

import (
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ByAddress is the address of the client: that of the connection, as clients can send any header.
// For a connection from a trusted proxy it is the one in X-Forwarded-For: see [Proxies].
func ByAddress(trusted ...netip.Prefix) Key { return Proxies{Trusted: trusted}.Address }

// Proxies are the proxies between the clients and this program that are trusted to say where a
// request comes from. The zero Proxies trusts none. It is safe for concurrent use, if its fields do
// not change.
type Proxies struct {
	// Trusted are the networks of the proxies. A client within them could send any address, so name
	// only the proxies. Default: none.
	Trusted []netip.Prefix

	// Header is the field to which each proxy appends the address that it was called from: a list
	// of addresses, or Forwarded, in the form of RFC 7239. Name the field that the nearest proxy
	// writes, as it passes all other fields on. Default: X-Forwarded-For.
	Header string

	// Unix trusts connections through a unix socket, which have no address. Default: such a request
	// has no key.
	Unix bool
}

// Address is a [Key]: an IPv4 address as it is, and an IPv6 address as its /64 network, which
// belongs to one client.
//
// From a trusted proxy it is the last address in the field that is not itself a trusted proxy's.
// Entries before that are ignored, as the client may have sent them. If an entry is no address, or
// none is left, it is the last trusted one found so far. If a field in the form of RFC 7239 does
// not parse, it is the address of the proxy itself.
func (p Proxies) Address(r *http.Request) (string, error) {
	client, ok := p.client(r)
	if !ok {
		return "", ErrNoKey
	}
	return network(client), nil
}

// ClientAddr is the whole address that [Proxies.Address] makes a key of: IPv4 in IPv6 as IPv4, and
// IPv6 without a zone. If the request has none, it is the zero Addr, which is not valid.
//
// Use it where an address is wanted and not a key, such as in Who.Address of package lockout, which
// refuses the zero Addr:
//
//	who := lockout.Who{Account: name, Address: proxies.ClientAddr(r)}
//
// Never take the string of an IPv6 address as a key: a client has 2^64 of them.
func (p Proxies) ClientAddr(r *http.Request) netip.Addr {
	client, _ := p.client(r)
	return client
}

func (p Proxies) client(r *http.Request) (client netip.Addr, ok bool) {
	client, ok = parseAddr(r.RemoteAddr)
	through := p.trusts(client)
	if !ok {
		through = p.Unix && isUnix(r.RemoteAddr)
	}
	if !through {
		return client, ok
	}
	for entry := range p.entries(r.Header) {
		hop, good := parseAddr(entry)
		if !good {
			break
		}
		client, ok = hop, true
		if !p.trusts(hop) {
			break
		}
	}
	return client, ok
}

func (p Proxies) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(p.Trusted, func(trusted netip.Prefix) bool {
		if t := trusted.Addr(); t.Is4In6() && trusted.Bits() >= 96 {
			trusted = netip.PrefixFrom(t.Unmap(), trusted.Bits()-96)
		}
		return trusted.Contains(a)
	})
}

// entries are those of the field, the last first.
func (p Proxies) entries(h http.Header) iter.Seq[string] {
	name := p.Header
	if name == "" {
		name = "X-Forwarded-For"
	}
	lines := h.Values(name)
	if strings.EqualFold(name, "Forwarded") {
		lines = forwardedFor(strings.Join(lines, ","))
	}
	return func(yield func(string) bool) {
		for _, line := range slices.Backward(lines) {
			for end := len(line); end >= 0; {
				comma := strings.LastIndexByte(line[:end], ',')
				if !yield(strings.Trim(line[comma+1:end], " \t")) {
					return
				}
				end = comma
			}
		}
	}
}

// parseAddr reads an address with or without a port, the latter with or without brackets.
func parseAddr(s string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		var ap netip.AddrPort
		ap, err = netip.ParseAddrPort(s)
		a = ap.Addr()
	}
	if inner, ok := strings.CutPrefix(s, "["); err != nil && ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			a, err = netip.ParseAddr(inner)
		}
	}
	return a.Unmap().WithZone(""), err == nil
}

// isUnix tells whether net/http says so of a connection by a unix socket: the client's end has a
// name seldom.
func isUnix(remote string) bool { return remote == "" || remote[0] == '@' || remote[0] == '/' }

func network(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a, 64).Masked().String()
}
