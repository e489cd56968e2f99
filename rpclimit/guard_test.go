package rpclimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// limits answers all alike, and keeps what it was asked.
type limits struct {
	res   ratelimit.Result
	err   error
	asked [][]ratelimit.Request
}

func (l *limits) RateLimit(_ context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	l.asked = append(l.asked, requests)
	return l.res, l.err
}

var (
	perUser = ratelimit.MustDefine("perUser", ratelimit.TokenBucket{Rate: 100, Period: time.Minute})
	at      = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	granted = ratelimit.Result{OK: true, At: at}
)

func header(fields map[string]string) func(string) []string {
	return func(name string) []string {
		if v, ok := fields[strings.ToLower(name)]; ok {
			return []string{v}
		}
		return nil
	}
}

// What a call meets, and what of it its client is told: never a key, nor what the database has
// said.
func TestEveryEndHasItsStatus(t *testing.T) {
	t.Parallel()
	secret := errors.New("secret: connection refused")
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), at)
	defer cancel()
	denied := ratelimit.Result{At: at, RetryAt: at.Add(time.Second), Limit: "perUser", Key: "secret"}
	for name, c := range map[string]struct {
		ctx    context.Context
		limits limits
		asks   []rpclimit.Ask
		want   code.Code
		logged string
	}{
		"Granted":      {limits: limits{res: granted}, want: code.Code_OK},
		"Undecided":    {limits: limits{res: ratelimit.Result{OK: true}}, want: code.Code_OK},
		"Denied":       {limits: limits{res: denied}, want: code.Code_RESOURCE_EXHAUSTED},
		"DeniedError":  {limits: limits{err: denied.Err()}, want: code.Code_RESOURCE_EXHAUSTED},
		"DatabaseGone": {limits: limits{err: secret}, want: code.Code_UNAVAILABLE, logged: "ERROR"},
		"Unknown": {limits: limits{
			err: fmt.Errorf("%w: %w", ratelimit.ErrOutcomeUnknown, secret),
		}, want: code.Code_UNAVAILABLE, logged: "ERROR"},
		"Overloaded": {limits: limits{err: ratelimit.ErrOverloaded}, want: code.Code_UNAVAILABLE, logged: "ERROR"},
		"Canceled":   {ctx: gone, limits: limits{err: secret}, want: code.Code_CANCELLED},
		"Deadline":   {ctx: late, limits: limits{err: secret}, want: code.Code_DEADLINE_EXCEEDED, logged: "WARN"},
		"DeniedGone": {ctx: gone, limits: limits{res: denied}, want: code.Code_RESOURCE_EXHAUSTED},
		"NoResult":   {limits: limits{}, want: code.Code_INTERNAL, logged: "ERROR"},
		"Ahead": {limits: limits{res: ratelimit.Result{OK: true, At: at, RunAt: at.Add(1)}},
			want: code.Code_INTERNAL, logged: "ERROR"},
		"BadCount": {limits: limits{
			err: &ratelimit.InvalidError{Field: "count", Value: -1.0, Want: "secret"},
		}, want: code.Code_INTERNAL, logged: "ERROR"},
		"BadKey": {limits: limits{err: &ratelimit.InvalidError{Field: "key", Value: "secret"}}, want: code.Code_PERMISSION_DENIED},
		"NoKey": {asks: []rpclimit.Ask{rpclimit.By(perUser, rpclimit.ByUser(func(context.Context) string { return "" }))},
			want: code.Code_PERMISSION_DENIED},
		"NoKeyWrapped": {asks: []rpclimit.Ask{rpclimit.By(perUser,
			func(context.Context, *rpclimit.Call) (string, error) {
				return "", fmt.Errorf("secret: %w", rpclimit.ErrNoKey)
			})}, want: code.Code_PERMISSION_DENIED},
		"KeyFails": {asks: []rpclimit.Ask{rpclimit.By(perUser, func(context.Context, *rpclimit.Call) (string, error) {
			return "x", secret
		})},
			want: code.Code_UNAVAILABLE, logged: "ERROR"},
		"NilKey":       {asks: []rpclimit.Ask{rpclimit.By(perUser, nil)}, want: code.Code_INTERNAL, logged: "ERROR"},
		"NoAsks":       {asks: []rpclimit.Ask{}, want: code.Code_INTERNAL, logged: "ERROR"},
		"NoProcedures": {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only()}, want: code.Code_INTERNAL, logged: "ERROR"},
		"Empty":        {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only("a.B/C", "")}, want: code.Code_INTERNAL, logged: "ERROR"},
		"NoSlash":      {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only("/a.B/", "a.B/C")}, want: code.Code_INTERNAL, logged: "ERROR"},
		"NoService":    {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only("//C")}, want: code.Code_INTERNAL, logged: "ERROR"},
		"TooDeep":      {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only("/a.B/C/D")}, want: code.Code_INTERNAL, logged: "ERROR"},
		"OnlyAService": {asks: []rpclimit.Ask{rpclimit.Global(perUser).Only("/a.B")}, want: code.Code_INTERNAL, logged: "ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			g := &rpclimit.Guard{Limiter: &c.limits, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			if c.asks == nil {
				c.asks = []rpclimit.Ask{rpclimit.By(perUser, rpclimit.ByUser(func(context.Context) string {
					return "u"
				}))}
			}
			ctx, res, err := g.Take(c.ctx, &rpclimit.Call{Procedure: "/a.B/C"}, c.asks)
			h, status := g.Answer(ctx, "/a.B/C", res, err)
			if code.Code(status.GetCode()) != c.want {
				t.Errorf("%v, want %v", status, c.want)
			}
			if _, ok := rpclimit.FromContext(ctx); ok != (c.want == code.Code_OK) {
				t.Errorf("the context has a result: %v", ok)
			}
			if strings.Contains(status.String()+fmt.Sprint(h), "secret") {
				t.Errorf("it leaks: %v %v", h, status)
			}
			if (log.Len() > 0) != (c.logged != "") ||
				!strings.Contains(log.String(), "level="+c.logged) && c.logged != "" {
				t.Errorf("logged: %s", &log)
			}
			if denied := c.want == code.Code_RESOURCE_EXHAUSTED; len(status.GetDetails()) != map[bool]int{
				true: 2,
			}[denied] || (h.Get("Retry-After") != "") != denied {
				t.Errorf("%v %v", h, status)
			}
		})
	}
}

func TestAGuardWithoutALimiterLetsNobodyThrough(t *testing.T) {
	t.Parallel()
	g := &rpclimit.Guard{Logger: quiet()}
	ctx, res, err := g.Take(t.Context(), &rpclimit.Call{}, []rpclimit.Ask{rpclimit.Global(perUser)})
	if _, status := g.Answer(ctx, "", res, err); code.Code(status.GetCode()) != code.Code_INTERNAL {
		t.Errorf("%v", status)
	}
}

// A call that asks nothing makes no call of the limiter, and its handler finds no result.
func TestACallThatAsksNothing(t *testing.T) {
	t.Parallel()
	l := &limits{res: granted}
	g := &rpclimit.Guard{Limiter: l}
	all := func(context.Context, *rpclimit.Call) bool { return true }
	nobody := func(context.Context, *rpclimit.Call) (string, error) {
		return "", errors.New("it was asked for its key")
	}
	ctx, res, err := g.Take(t.Context(), &rpclimit.Call{Procedure: "/a.B/C"}, []rpclimit.Ask{
		rpclimit.By(perUser, nobody).Unless(all), rpclimit.By(perUser, nobody).Only("/a.B/D", "/a.BC/").Cost(nil),
	})
	h, status := g.Answer(ctx, "/a.B/C", res, err)
	if _, limited := rpclimit.FromContext(ctx); err != nil || status != nil || len(h) != 0 ||
		limited || len(l.asked) != 0 {
		t.Errorf("%v, %v %v, limited %v, asked %v", err, h, status, limited, l.asked)
	}
}

// A call is decided by the plan of its user, if there is one.
func TestAsksByThePlanOfTheUser(t *testing.T) {
	t.Parallel()
	pro := ratelimit.TokenBucket{Rate: 600, Period: time.Minute}
	planOf := func(_ context.Context, call *rpclimit.Call) ratelimit.Rule {
		if call.Procedure == "/a.B/Pro" {
			return pro
		}
		return nil
	}
	l := &limits{res: ratelimit.Result{OK: true}}
	g := &rpclimit.Guard{Limiter: l}
	byUser := rpclimit.By(perUser, rpclimit.ByUser(func(context.Context) string { return "ann" })).Rule(planOf)
	for _, procedure := range []string{"/a.B/Pro", "/a.B/Free"} {
		if _, _, err := g.Take(t.Context(), &rpclimit.Call{Procedure: procedure}, []rpclimit.Ask{byUser}); err != nil {
			t.Error(err)
		}
	}
	if want := [][]ratelimit.Request{{perUser.For("ann").Rule(pro)},
		{perUser.For("ann")}}; !reflect.DeepEqual(l.asked, want) {
		t.Errorf("asked %+v, want %+v", l.asked, want)
	}
	nobody := rpclimit.By(perUser, rpclimit.ByUser(func(context.Context) string { return "" })).Rule(nil)
	if _, _, err := g.Take(t.Context(), &rpclimit.Call{}, []rpclimit.Ask{nobody}); !errors.Is(err, rpclimit.ErrNoKey) {
		t.Errorf("without a user: %v", err)
	}
}

// A limit may have its next token in centuries, which is longer than a Duration.
func TestAWaitOfCenturiesIsLong(t *testing.T) {
	t.Parallel()
	g := &rpclimit.Guard{}
	res := ratelimit.Result{At: at, RetryAt: at.AddDate(1000, 0, 0), Limit: "perUser"}
	_, s := g.Answer(t.Context(), "/p.S/M", res, nil)
	if s == nil || s.Code != int32(code.Code_RESOURCE_EXHAUSTED) || len(s.Details) == 0 {
		t.Fatalf("%v", s)
	}
	var retry errdetails.RetryInfo
	if err := s.Details[0].UnmarshalTo(&retry); err != nil {
		t.Fatal(err)
	}
	const century = 100 * 365 * 24 * time.Hour
	if d := retry.RetryDelay.AsDuration(); d < 2*century || strings.Contains(s.Message, "after -") {
		t.Errorf("%s, with a delay of %v", s.Message, d)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	forwarded := func(value string) map[string]string { return map[string]string{"x-forwarded-for": value} }
	for name, c := range map[string]struct {
		key     rpclimit.Key
		address string
		fields  map[string]string
		want    string
	}{
		"Address":          {rpclimit.ByAddress(), "203.0.113.9:4711", nil, "203.0.113.9"},
		"AddressV6":        {rpclimit.ByAddress(), "[2001:db8:1:2:3::4]:4711", nil, "2001:db8:1:2::/64"},
		"NobodyIsBelieved": {rpclimit.ByAddress(), "203.0.113.9:4711", forwarded("6.6.6.6"), "203.0.113.9"},
		"NotTheProxy":      {rpclimit.ByAddress(proxies), "203.0.113.9:4711", forwarded("6.6.6.6"), "203.0.113.9"},
		"Proxy":            {rpclimit.ByAddress(proxies), "10.1.2.3:4711", forwarded("6.6.6.6, 203.0.113.9, 10.9.9.9"), "203.0.113.9"},
		"OtherField": {rpclimit.ByProxies(httplimit.Proxies{Trusted: []netip.Prefix{proxies},
			Header: "cf-connecting-ip"}), "10.1.2.3:4711",
			map[string]string{"cf-connecting-ip": "203.0.113.9", "x-forwarded-for": "6.6.6.6"}, "203.0.113.9"},
		"Forwarded": {rpclimit.ByProxies(httplimit.Proxies{Trusted: []netip.Prefix{proxies},
			Header: "Forwarded"}), "10.1.2.3:4711",
			map[string]string{"forwarded": "for=6.6.6.6, for=203.0.113.9"}, "203.0.113.9"},
		"Unix":       {rpclimit.ByProxies(httplimit.Proxies{Unix: true}), "@", forwarded("203.0.113.9"), "203.0.113.9"},
		"UnixUntold": {rpclimit.ByAddress(), "@", forwarded("203.0.113.9"), ""},
		"NoAddress":  {rpclimit.ByProxies(httplimit.Proxies{Unix: true}), "unknown", forwarded("203.0.113.9"), ""},
		"Header": {rpclimit.ByHeader("X-API-Key"), "", map[string]string{"x-api-key": "k"},
			"8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"},
		"NoHeader": {rpclimit.ByHeader("X-API-Key"), "", nil, ""},
		"LongUser": {rpclimit.ByUser(func(context.Context) string {
			return strings.Repeat("x", 200)
		}), "", nil, rpclimit.Good(strings.Repeat("x", 200))},
		"NoHeaderFunc": {rpclimit.ByHeader("X-API-Key"), "", map[string]string{"": ""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &limits{res: granted}
			g := &rpclimit.Guard{Limiter: l}
			call := &rpclimit.Call{Address: c.address, Header: header(c.fields)}
			if name == "NoHeaderFunc" {
				call.Header = nil
			}
			_, _, err := g.Take(t.Context(), call, []rpclimit.Ask{rpclimit.By(perUser, c.key)})
			if c.want == "" {
				if !errors.Is(err, rpclimit.ErrNoKey) {
					t.Errorf("%v, asked %v", err, l.asked)
				}
				return
			}
			if want := perUser.For(c.want); err != nil || len(l.asked) != 1 || l.asked[0][0] != want {
				t.Errorf("%v, asked %v, want %v", err, l.asked, want)
			}
		})
	}
}
