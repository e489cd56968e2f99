package lockout

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// Config configures [New]. The zero Config uses the defaults. Durations are whole microseconds, and
// at most 366 days.
//
// A change of the numbers takes effect at once. Locks are kept. Failures are not stored as a
// number, but as the part of Window that they have used, and past lockouts as the time until they
// are forgotten. So other numbers count what is past differently:
//
//   - With other Failures or AddressFailures, the same share of the attempts is left, rounded down.
//   - With a shorter Window, some failures or all of them are forgotten.
//   - With a longer Window, the added time counts as used until it has passed. An account with a
//     recent failure, or an address with recent attempts, has fewer attempts left, or none. If none
//     is left, its next attempt locks it, once, as too many failures would. After that lock it has
//     all attempts again.
//   - With a shorter Forget, a past lockout counts as several, so the next lock is longer. With a
//     longer Forget, several count as fewer.
//
// So raise Window when few people sign in. Or use another Name: then all begin without failures,
// locks and lockouts.
type Config struct {
	// Name begins the names of the limits that it uses, which identify the counts. Use different
	// names for sign-ins, second factors and PINs. Default: "signIn".
	Name string

	// Failures is how many failures lock an account or a device: 1 to a million. Default: 5.
	Failures int

	// AddressFailures is how many failures lock an address: 1 to a million. With a number below 0
	// addresses are never locked, and Who.Address does not matter. Default: ten times Failures.
	AddressFailures int

	// Window is the time in which Failures failures are forgotten, one after the other, if they do
	// not lead to a lock. An attacker who avoids locks gets that many guesses in each Window, so it
	// should be no shorter than Cap. At least a second. Default: an hour.
	Window time.Duration

	// First is how long the first lock lasts, at least a millisecond. Each further lock lasts twice
	// as long as the one before. Default: a minute.
	First time.Duration

	// Cap is the longest lock, at least First. For that long a stranger can lock out an owner who
	// has no device token: see [Devices]. Default: an hour, or First if that is longer.
	Cap time.Duration

	// Forget is how long a lockout is remembered, counted from the end of its lock. If there are
	// several, one is forgotten in each such time. At least a second. At most one more is
	// remembered than it takes to reach the longest lock. Default: 24 hours.
	Forget time.Duration

	// ExtendWhileLocked restarts a lock with each attempt during the lock. Each attempt then costs
	// a write, and anybody can keep an account locked for as long as they like: the owner gets in
	// only with a device token. Default: false.
	ExtendWhileLocked bool

	// Devices recognizes known devices by their tokens, and gives them balances of their own.
	// Default: none.
	Devices *Devices
}

// Lockout guards a secret that can be guessed. [New] makes it. It holds only its configuration, and
// is safe for concurrent use. All Lockouts with the same name on the same tables, in any process,
// count together.
type Lockout struct {
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	cfg     Config

	account, device, address *ladder // address is nil if addresses do not matter
}

// readCommitted is the level at which those who come for one row queue for it.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

const (
	mostFailures = 1_000_000
	longest      = 366 * 24 * time.Hour
)

// New makes a Lockout. It does not touch the database. A bad cfg is refused with an error that
// matches [ratelimit.ErrInvalid]. It takes a Limiter and not a [ratelimit.FailOpen]: without a
// decision nobody gets in.
func New(limiter *ratelimit.Limiter, pool *pgxpool.Pool, cfg Config) (*Lockout, error) {
	if limiter == nil {
		return nil, invalid("limiter", nil, "one made by ratelimit.New")
	}
	if pool == nil {
		return nil, invalid("pool", nil, "an open pool")
	}
	cfg.Name = cmp.Or(cfg.Name, "signIn")
	cfg.Failures = cmp.Or(cfg.Failures, 5)
	cfg.AddressFailures = cmp.Or(cfg.AddressFailures, min(10*cfg.Failures, mostFailures))
	cfg.Window = cmp.Or(cfg.Window, time.Hour)
	cfg.First = cmp.Or(cfg.First, time.Minute)
	cfg.Cap = cmp.Or(cfg.Cap, max(cfg.First, time.Hour))
	cfg.Forget = cmp.Or(cfg.Forget, 24*time.Hour)
	if err := cfg.check(); err != nil {
		return nil, err
	}

	l := &Lockout{limiter: limiter, pool: pool, cfg: cfg}
	for _, k := range []struct {
		to    **ladder
		whose string
		n     int
	}{{&l.account, "account", cfg.Failures}, {&l.device, "device", cfg.Failures},
		{&l.address, "address", cfg.AddressFailures}} {
		if k.n < 0 {
			continue
		}
		var err error
		if *k.to, err = newLadder(k.whose, k.n, cfg); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (c *Config) check() error {
	if c.Failures < 1 || c.Failures > mostFailures {
		return invalid("Config.Failures", c.Failures, "1 to 1,000,000, or 0 for the default")
	}
	if c.AddressFailures > mostFailures {
		return invalid("Config.AddressFailures", c.AddressFailures,
			"1 to 1,000,000, 0 for the default, or -1 for none")
	}
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"Config.Window", c.Window, time.Second}, {"Config.First", c.First, time.Millisecond},
		{"Config.Cap", c.Cap, c.First}, {"Config.Forget", c.Forget, time.Second},
	} {
		if d.value < d.least || d.value > longest || d.value%time.Microsecond != 0 {
			return invalid(d.field, d.value,
				"whole microseconds, "+d.least.String()+" to 366 days, or 0 for the default")
		}
	}
	return nil
}

func invalid(field string, value any, want string) error {
	return &ratelimit.InvalidError{Field: "lockout." + field, Value: value, Want: want}
}

// Attempt charges an attempt of who, runs check, and gives the attempt back if that returns true.
// It returns true only then, and never with an error.
//
// The charge is committed before check runs, and check runs outside of any transaction. So it locks
// no row, holds no connection, and may be slow. After a wrong answer, an error or panic of check,
// the end of ctx or of the process, the attempt stays charged. Otherwise an attacker who can make
// the check fail could guess for free.
//
// Errors: a [*LockedError], and check has not run; an error that matches [ratelimit.ErrInvalid] for
// a bad who; the error of check, unchanged; otherwise the database's, wrapped. With any error, let
// nobody in. If the charge failed, or its outcome is unknown ([ratelimit.ErrOutcomeUnknown]), check
// has not run. If giving back failed, check has returned true, and the attempt may still count as a
// failure.
//
// It has no time limit of its own: give ctx a deadline, or a database that hangs holds the request.
//
// Inside an InTx on the same pool it is refused with [ratelimit.ErrNested]: the charge must not
// roll back.
func (l *Lockout) Attempt(ctx context.Context, who Who,
	check func(ctx context.Context) (bool, error)) (bool, error) {
	if check == nil {
		return false, invalid("check", nil, "a function")
	}
	a, err := l.Begin(ctx, who)
	if err != nil {
		return false, err
	}
	if ok, err := check(ctx); err != nil || !ok {
		return false, err
	}
	err = l.limiter.InTxOptions(ctx, l.pool, readCommitted,
		func(ctx context.Context, tx pgx.Tx) error {
			return a.Succeeded(ctx, tx)
		})
	return err == nil, err
}
