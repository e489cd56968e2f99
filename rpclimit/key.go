package rpclimit

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/weir-go/weir/httplimit"
)

// Key tells for whom a call counts. A call whose key is empty has none. It is refused with
// PermissionDenied, as with an error that matches [ErrNoKey].
//
// A key that clients may choose freely limits nobody: each new key is a new balance, and costs a
// row. Let the authentication check it first, or put a limit by address in front, as an
// interceptor of its own.
type Key func(ctx context.Context, call *Call) (string, error)

// ErrNoKey is matched by the error of a call that has no key where one is required. The call is
// refused with PermissionDenied. It is [httplimit.ErrNoKey].
var ErrNoKey = httplimit.ErrNoKey

// ByUser is the user whom a function finds in the context, where the authentication has put it.
func ByUser(user func(ctx context.Context) string) Key {
	return func(ctx context.Context, _ *Call) (string, error) { return user(ctx), nil }
}

// ByHeader is the value of a metadata key that is a secret, such as an API key or a token: its
// SHA-256 in hex, so that a reader of the table cannot use it. Of several values the first counts.
// A client can send any value: see [Key].
func ByHeader(name string) Key { return overHTTP(httplimit.ByHeader(name), name) }

// ByAddress is the address of the client: an IPv6 address by its network of 64 bits. It is the one
// that the connection comes from. Only if that is a trusted proxy, it is the last address in
// x-forwarded-for that is not itself a trusted proxy's. See [ByProxies].
func ByAddress(trusted ...netip.Prefix) Key {
	return ByProxies(httplimit.Proxies{Trusted: trusted})
}

// ByProxies is the address of the client behind proxies that write another key, or that connect by
// a unix socket: [httplimit.Proxies] says how it is found.
func ByProxies(proxies httplimit.Proxies) Key {
	name := proxies.Header
	if name == "" {
		name = "X-Forwarded-For"
	}
	return overHTTP(proxies.Address, name)
}

// Good makes of any key that is not empty one that the database can hold, and of different keys
// different ones. It is [httplimit.Good].
func Good(key string) string { return httplimit.Good(key) }

// overHTTP has a Key of httplimit look at the address of a call, and at one of its metadata keys.
func overHTTP(key httplimit.Key, name string) Key {
	name = http.CanonicalHeaderKey(name)
	return func(_ context.Context, call *Call) (string, error) {
		r := http.Request{RemoteAddr: call.Address, Header: http.Header{}}
		if call.Header != nil {
			r.Header[name] = call.Header(name)
		}
		return key(&r)
	}
}
