package lockout

import (
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
)

// Who attempts.
type Who struct {
	// Account is what is guessed at, as the client has named it: also if there is no such account, or the answer would tell.
	// Whatever means the same account must be the same here: fold the case, the spaces and the Unicode forms that your accounts
	// know, or each spelling has attempts of its own. It may be of any length, and any bytes, but not empty.
	Account string

	// Address is where the client is connected from; of IPv6 it counts by the /64, and of IPv4 in IPv6 as IPv4. Behind a
	// proxy of yours take it from what that says, and from nothing else: a header is what the client likes it to be. The zero
	// Addr is refused, unless Config.AddressFailures is below 0.
	Address netip.Addr

	// Device is the token that the client has kept, as it came: see [Devices]. What is not a token of theirs for the account
	// counts as none.
	Device string
}

// subject is a row of failures, and that of its lockouts.
type subject struct {
	*ladder
	key string
}

// charged are the subjects that an attempt of who is charged to: first the one that its success forgives.
func (l *Lockout) charged(who Who) ([]subject, error) {
	if who.Account == "" {
		return nil, invalid("Who.Account", who.Account, "a name")
	}
	if l.address != nil && !who.Address.IsValid() {
		return nil, invalid("Who.Address", who.Address, "the client's address, or Config.AddressFailures below 0")
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
