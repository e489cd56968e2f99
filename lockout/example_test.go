package lockout_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
)

// signIn answers a request to sign in.
func signIn(w http.ResponseWriter, r *http.Request, guard *lockout.Lockout, who lockout.Who, password string) {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second) // or a database that hangs holds the request
	defer cancel()
	ok, err := guard.Attempt(ctx, who, func(ctx context.Context) (bool, error) {
		return checkPassword(ctx, who.Account, password) // slow, as it should be; it holds no connection and no row
	})
	if !guard.Pass(w, r, ok, err) {
		return // it has answered
	}
	_, _ = io.WriteString(w, "welcome")
}

// proxies are ours: nobody else can connect from this network.
var proxies = httplimit.Proxies{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}

// whoOf tells who tries to sign in.
func whoOf(r *http.Request, account string) lockout.Who {
	who := lockout.Who{Account: account, Address: proxies.ClientAddr(r)}
	if device, err := r.Cookie("device"); err == nil {
		who.Device = device.Value
	}
	return who
}

// The address is the one that the proxy has appended. A client can send the field, too, but not
// what comes last in it.
func ExampleWho() {
	r := httptest.NewRequest(http.MethodPost, "/signin", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	r.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.7")
	fmt.Println(whoOf(r, "alice").Address)

	r.RemoteAddr = "203.0.113.8:4711" // past the proxy
	fmt.Println(whoOf(r, "alice").Address)
	// Output:
	// 203.0.113.7
	// 203.0.113.8
}

// post signs in over HTTP.
func post(guard *lockout.Lockout, who lockout.Who, password string) (status int, retryAfter string) {
	w := httptest.NewRecorder()
	signIn(w, httptest.NewRequest(http.MethodPost, "/signin", nil), guard, who, password)
	return w.Code, w.Header().Get("Retry-After")
}

func Example() {
	pool, done := pgtest.Example(`CREATE TABLE session (token text, account text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := lockout.New(limiter, pool, lockout.Config{}) // one for the whole program
	if err != nil {
		log.Fatal(err)
	}

	alice := lockout.Who{Account: "alice", Address: netip.MustParseAddr("198.51.100.7")}
	for _, password := range []string{"guess", "right", "1", "2", "3", "4", "5", "right"} {
		status, retryAfter := post(guard, alice, password)
		fmt.Println(password, status, "Retry-After:", retryAfter != "")
	}
	// Output:
	// guess 401 Retry-After: false
	// right 200 Retry-After: false
	// 1 401 Retry-After: false
	// 2 401 Retry-After: false
	// 3 401 Retry-After: false
	// 4 401 Retry-After: false
	// 5 401 Retry-After: false
	// right 429 Retry-After: true
}

// What is written because of a success is written together with it: both or none.
func ExampleLockout_Begin() {
	ctx := context.Background()
	pool, done := pgtest.Example(`CREATE TABLE session (token text, account text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := lockout.New(limiter, pool, lockout.Config{})
	if err != nil {
		log.Fatal(err)
	}

	session := func(who lockout.Who, password string) (token string, err error) {
		attempt, err := guard.Begin(ctx, who)
		if err != nil {
			return "", err
		}
		right, err := checkPassword(ctx, who.Account, password)
		if err != nil || !right {
			return "", errors.Join(err, errors.New("wrong account or password"))
		}
		token = rand.Text()
		err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := attempt.Succeeded(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO session (token, account) VALUES ($1, $2)`, token, who.Account)
			return err
		})
		if err != nil {
			return "", err
		}
		return token, nil
	}

	alice := lockout.Who{Account: "alice", Address: netip.MustParseAddr("198.51.100.7")}
	token, err := session(alice, "guess")
	fmt.Println(len(token), err)
	token, err = session(alice, "right")
	fmt.Println(len(token), err)
	state, err := guard.State(ctx, alice)
	fmt.Println(state.Attempts, "attempts left,", err)
	// Output:
	// 0 wrong account or password
	// 26 <nil>
	// 5 attempts left, <nil>
}

// A browser that has signed in before is let in while strangers keep the account locked.
func ExampleDevices() {
	pool, done := pgtest.Example(`CREATE TABLE session (token text, account text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // in earnest the same in all processes, from where your other secrets are

	devices, err := lockout.NewDevices(lockout.DevicesConfig{Keys: [][]byte{secret}})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := lockout.New(limiter, pool, lockout.Config{Devices: devices})
	if err != nil {
		log.Fatal(err)
	}

	cookie := devices.Issue("alice", "") // when she has signed in

	for i := range 5 {
		stranger := lockout.Who{Account: "alice", Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
		status, _ := post(guard, stranger, "guess")
		fmt.Print(status, " ")
	}
	alice := lockout.Who{Account: "alice", Address: netip.MustParseAddr("198.51.100.7")}
	status, _ := post(guard, alice, "right")
	fmt.Println("without the cookie:", status)

	alice.Device = cookie
	status, _ = post(guard, alice, "right")
	fmt.Println("with it:", status)
	alice.Device = devices.Issue("alice", alice.Device) // anew with each sign-in

	// Output:
	// 401 401 401 401 401 without the cookie: 429
	// with it: 200
}

func checkPassword(_ context.Context, _, password string) (bool, error) {
	return password == "right", nil
}
