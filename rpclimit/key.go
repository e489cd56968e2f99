package rpclimit

import (
	"context"
	"net/http"
	"net/netip"

	"github.com/weir-go/weir/httplimit"
)

// Key returns the key that a call counts for. With an empty key, or an error that matches
// [ErrNoKey], the call is refused with PermissionDenied.
//
// A key that clients can choose freely limits nobody: each new key is a new balance, and costs a
// row. Check it before, in your authentication, or put a limit by address in front, as an
// interceptor of its own.
type Key func(ctx context.Context, call *Call) (string, error)

// ErrNoKey is matched by the error of a call that has no key where one is required. The call is
// refused with PermissionDenied. It is [httplimit.ErrNoKey].
var ErrNoKey = httplimit.ErrNoKey

// ByUser is the user that a function returns, for example from the context in which your
// authentication has put it.
func ByUser(user func(ctx context.Context) string) Key {
	return func(ctx context.Context, _ *Call) (string, error) { return user(ctx), nil }
}

// ByHeader is the SHA-256, in hex, of a metadata value with a secret such as an API key or a token,
// so that the stored key lets nobody in. If there are several values, the first one counts. Clients
// can send any value: see [Key].
func ByHeader(name string) Key { return overHTTP(httplimit.ByHeader(name), name) }

// ByAddress is the address of the client; for IPv6, its /64 network. It is the one that the
// connection comes from. For a connection from a trusted proxy, it is the last address in
// x-forwarded-for that is not itself a trusted proxy's. See [ByProxies].
func ByAddress(trusted ...netip.Prefix) Key {
	return ByProxies(httplimit.Proxies{Trusted: trusted})
}

// ByProxies is the address of the client behind proxies that write another metadata key, or that
// connect through a unix socket: see [httplimit.Proxies].
func ByProxies(proxies httplimit.Proxies) Key {
	name := proxies.Header
	if name == "" {
		name = "X-Forwarded-For"
	}
	return overHTTP(proxies.Address, name)
}

// Good makes a key that the database can store from any key that is not empty. Different keys stay
// different. It is [httplimit.Good].
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
