package lockout

import (
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
)

// Who describes an attempt: which account, from where.
type Who struct {
	// Account is the account's name as the client has sent it, even if there is no such account:
	// otherwise the answer would reveal that. All spellings of one account must be equal here: fold
	// case, spaces and Unicode forms as your accounts do, or each spelling has its own attempts. It
	// may have any length and any bytes, but must not be empty.
	Account string

	// Address is the address of the client's connection. IPv6 counts per /64, and IPv4 in IPv6 as
	// IPv4. Behind your own proxy, use what the proxy says, and no other header: clients can send
	// any value. The zero Addr is refused, unless Config.AddressFailures is below 0.
	//
	// Proxies.ClientAddr of package httplimit returns it for a request, with or without proxies.
	// What Proxies.Address returns there is a key and not an address: for IPv6 it is a network.
	Address netip.Addr

	// Device is the token that the client has sent, unchanged: see [Devices]. Anything that is not
	// a valid token for the account counts as none.
	Device string
}

// subject is a row of failures, and that of its lockouts.
type subject struct {
	*ladder
	key string
}

// charged are the subjects that an attempt of who is charged to: first the one that its success
// forgives.
func (l *Lockout) charged(who Who) ([]subject, error) {
	if who.Account == "" {
		return nil, invalid("Who.Account", who.Account, "a name")
	}
	if l.address != nil && !who.Address.IsValid() {
		return nil, invalid("Who.Address", who.Address,
			"the client's address, or Config.AddressFailures below 0")
	}
	return l.named(who), nil
}

// named are the subjects of what who names.
func (l *Lockout) named(who Who) (subjects []subject) {
	if who.Account != "" {
		account := accountKey(who.Account)
		if id, ok := l.cfg.Devices.known(who.Account, who.Device); ok {
			return []subject{{l.device, account + "." + id}}
		}
		subjects = append(subjects, subject{l.account, account})
	}
	if l.address != nil && who.Address.IsValid() {
		subjects = append(subjects, subject{l.address, addressKey(who.Address)})
	}
	return subjects
}

func accountKey(account string) string {
	sum := sha256.Sum256([]byte(account))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func addressKey(a netip.Addr) string {
	if a = a.Unmap(); a.Is4() {
		return a.String()
	}
	return netip.PrefixFrom(a.WithZone(""), 64).Masked().String()
}
