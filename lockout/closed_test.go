package lockout

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// New takes a Limiter and nothing else. A Limiter cannot fail open, and what does is no Limiter.
var _ func(*ratelimit.Limiter, *pgxpool.Pool, Config) (*Lockout, error) = New

func TestALockoutIsNotBuiltOnWhatFailsOpen(t *testing.T) {
	t.Parallel()
	takes := reflect.TypeOf(New).In(0)
	open := reflect.TypeFor[*ratelimit.FailOpen]()
	if takes.Kind() == reflect.Interface || open.AssignableTo(takes) {
		t.Errorf("New takes a %v, which a %v may be", takes, open)
	}
}

// While the database is away nobody is checked, and so nobody gets in, though a FailOpen beside it
// on the same limiter lets calls through.
func TestNobodyGetsInWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	charged, err := g.Begin(t.Context(), from("alice", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	beside := &ratelimit.FailOpen{Limiter: g.limiter.Autocommit(g.pool), Share: -1,
		Logger: slog.New(slog.DiscardHandler)}
	res, err := beside.RateLimit(t.Context(), g.account.failures.For("alice"))
	if err != nil || !res.OK || res.Decided() {
		t.Fatalf("a FailOpen: %+v, %v", res, err)
	}
	var locked *LockedError
	ok, err := g.Attempt(t.Context(), from("alice", 1), func(context.Context) (bool, error) {
		t.Error("an attempt was checked that could not be charged")
		return true, nil
	})
	if ok || err == nil || errors.As(err, &locked) {
		t.Errorf("an attempt: %v, %v", ok, err)
	}
	if err := charged.Succeeded(t.Context(), nil); err == nil {
		t.Error("an attempt was given back without a transaction")
	}
	if _, err := g.State(t.Context(), from("alice", 1)); err == nil {
		t.Error("its state was told")
	}
}
