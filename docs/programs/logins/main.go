// Logins guards an account: only a few of many parallel guesses are checked, and the owner gets in.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

func signIn(ctx context.Context, guard *lockout.Lockout, who lockout.Who, password string) string {
	ok, err := guard.Attempt(ctx, who, func(context.Context) (bool, error) {
		time.Sleep(100 * time.Millisecond) // as a good hash takes
		return password == "secret", nil
	})
	var locked *lockout.LockedError
	switch {
	case errors.As(err, &locked):
		return "locked for " + locked.RetryAfter().Round(time.Minute).String()
	case err != nil:
		return "not now: " + err.Error() // no answer lets nobody in
	case ok:
		return "welcome"
	}
	return "wrong"
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	secret := []byte(rand.Text() + rand.Text()) // in production a fixed secret
	devices, err := lockout.NewDevices(lockout.DevicesConfig{Keys: [][]byte{secret}})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := lockout.New(limiter, pool, lockout.Config{Devices: devices})
	if err != nil {
		log.Fatal(err)
	}
	alice := lockout.Who{Account: "alice" + rand.Text(), Address: netip.MustParseAddr("198.51.100.7")} // a new one for each run
	fmt.Println("alice signs in:", signIn(ctx, guard, alice, "secret"))
	cookie := devices.Issue(alice.Account, "")

	wrong, guesses := atomic.Int64{}, sync.WaitGroup{}
	for i := range 20 {
		stranger := lockout.Who{Account: alice.Account, Address: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
		guesses.Go(func() {
			if signIn(ctx, guard, stranger, "guess") == "wrong" {
				wrong.Add(1)
			}
		})
	}
	guesses.Wait()
	fmt.Println("of 20 guesses at once", wrong.Load(), "were checked")
	fmt.Println("alice, from elsewhere:", signIn(ctx, guard, alice, "secret"))
	alice.Device = cookie
	fmt.Println("alice, with her browser:", signIn(ctx, guard, alice, "secret"))
}
