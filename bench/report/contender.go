package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// limiter takes one token of a key at a time. Its methods may be called concurrently, except close,
// which is called last. An error is not a denial: it ends the run.
type limiter interface {
	take(ctx context.Context, key string) (ok bool, err error)
	close() error
}

// bucket is a limit: so many tokens in each period, and as many at once. The period is of whole
// seconds, and the tokens divide by them, as one of the contenders knows no other limits.
type bucket struct {
	tokens int
	period time.Duration
}

func (b bucket) perSecond() float64 { return float64(b.tokens) / b.period.Seconds() }

// allowed is how many tokens the limit may have granted in a time in which it was full at first.
func (b bucket) allowed(elapsed time.Duration) float64 {
	return float64(b.tokens) + b.perSecond()*elapsed.Seconds()
}

// place is where limiters keep what they know.
type place struct {
	pool  *pgxpool.Pool
	redis *redis.Client
}

// family groups contenders by where the balances are.
type family string

const (
	weir     family = "Weir"
	postgres family = "Postgres"
	inRedis  family = "Redis"
	memory   family = "memory"
)

// contender is one way of limiting rates.
type contender struct {
	name   string
	family family
	about  string // a paragraph of the page: what it is, and how it is set up
	shared bool   // its limit holds over all processes
	joins  bool   // its tokens roll back with the caller's own writes

	// table is what it keeps its keys in, if they are to be there before it is measured. Contenders
	// of one table share its rows.
	table string
	// oneKey says that there is one limiter for each key, so that many keys are no work for it.
	oneKey bool

	open func(ctx context.Context, at place, b bucket) (limiter, error)
}

// contenders are in the order of the tables.
func contenders() []contender {
	all := weirWays()
	all = append(all, postgresWays()...)
	all = append(all, redisWays()...)
	return append(all, memoryWays()...)
}
