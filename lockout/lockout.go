package lockout

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// Config configures [New]. The zero Config uses the defaults. Durations are whole microseconds, and at most 366 days.
//
// A change of the numbers takes effect at once, and keeps what was counted and the locks that stand.
type Config struct {
	// Name begins the names of the limits that it stands on, which identify what was counted: sign-ins, second factors and
	// PINs want one each. Default: "signIn".
	Name string

	// Failures is how many lock an account, or a device: 1 to a million. Default: 5.
	Failures int

	// AddressFailures is how many lock an address: 1 to a million, or a number below 0 for as many as there may come, with
	// which Who.Address does not matter. Default: ten times Failures.
	AddressFailures int

	// Window is the time in which that many failures are forgotten, one after the other, where no lock comes of them: who
	// stays below it may guess so many times in each Window, so it should be no shorter than Cap. At least a second.
	// Default: an hour.
	Window time.Duration

	// First is how long the first lock lasts, at least a millisecond; each further one twice as long as the one before it.
	// Default: a minute.
	First time.Duration

	// Cap is the longest lock, at least First. It is also for how long a stranger can lock out an owner who comes without a
	// device's token: see [Devices]. Default: an hour, or First if that is longer.
	Cap time.Duration

	// Forget is how long a lockout is remembered, counted from the end of its lock; of several, one is forgotten in each
	// such time. At least a second. No more are remembered than make the longest lock, and one. Default: 24 hours.
	Forget time.Duration

	// ExtendWhileLocked begins a lock anew with each attempt that comes while it lasts. Each then costs a write, and whoever
	// likes keeps an account locked for as long as he likes: its owner comes in with a device's token only. Default: false.
	ExtendWhileLocked bool

	// Devices are known again by their tokens, and have balances of their own. Default: none are.
	Devices *Devices
}

// Lockout guards what is guessed at. It is made by [New], holds nothing but its configuration, and is safe for concurrent use.
// Those with the same name on the same tables, in whatever process, count together.
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

// New makes a Lockout. It does not touch the database. What is wrong with cfg is refused with an error that matches
// [ratelimit.ErrInvalid]. It takes a Limiter and no [ratelimit.FailOpen]: without a decision nobody
// gets in.
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
	}{{&l.account, "account", cfg.Failures}, {&l.device, "device", cfg.Failures}, {&l.address, "address", cfg.AddressFailures}} {
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
		return invalid("Config.AddressFailures", c.AddressFailures, "1 to 1,000,000, 0 for the default, or -1 for none")
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
			return invalid(d.field, d.value, "whole microseconds, "+d.least.String()+" to 366 days, or 0 for the default")
		}
	}
	return nil
}

func invalid(field string, value any, want string) error {
	return &ratelimit.InvalidError{Field: "lockout." + field, Value: value, Want: want}
}

// Attempt charges an attempt of who, runs check, and gives the attempt back if that returns true. It returns true only then,
// and never with an error.
//
// The charge is committed before check runs, and check runs outside of any transaction: it holds no row and no connection, and
// may take its time. A wrong answer, an error of check, a panic, an end of ctx and of the process all leave the attempt charged:
// whoever could make the check fail would else guess for nothing.
//
// Errors: a [*LockedError], upon which check has not run; one that matches [ratelimit.ErrInvalid] for a bad who; that of check,
// as it is; else the database's, wrapped, upon which nobody is to be let in. If the charge failed, or its outcome is unknown
// ([ratelimit.ErrOutcomeUnknown]), check has not run. If giving back failed, check has returned true and the attempt may count as
// a failure all the same.
//
// Inside an InTx on the same pool it is refused with [ratelimit.ErrNested]: what it charges must not roll back with anything.
func (l *Lockout) Attempt(ctx context.Context, who Who, check func(ctx context.Context) (bool, error)) (bool, error) {
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
	err = l.limiter.InTxOptions(ctx, l.pool, readCommitted, func(ctx context.Context, tx pgx.Tx) error {
		return a.Succeeded(ctx, tx)
	})
	return err == nil, err
}
