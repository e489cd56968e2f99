package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// submitter takes messages from tenants and enqueues the calls that answer them.
type submitter struct {
	store   *store
	limiter *ratelimit.Limiter
	jobs    *scheduler.Jobs
	limits  limits
	denied  atomic.Int64
}

// promptTokens is a guess: one for each word.
const promptTokens = 10

var tenants = []string{"acme", "globex", "initech", "umbrella"}

// submit enqueues n messages of different sizes, from all tenants at once.
func (s *submitter) submit(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i, tenant := range tenants {
		share := n / len(tenants)
		if i < n%len(tenants) {
			share++
		}
		wg.Go(func() {
			for range share {
				switch err := s.one(ctx, tenant, smallest+mathrand.IntN(largest-smallest+1)); {
				case errors.Is(err, ratelimit.ErrDenied): // more than MaxReserved
					s.denied.Add(1)
				case err != nil:
					cancel(fmt.Errorf("tenant %s: %w", tenant, err))
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// one saves a message, takes or reserves the tokens that its answer may need, and the request, and
// enqueues the call: all of it in one transaction. How many it will need nobody knows yet: the
// estimate is a guess at the prompt's, and the longest answer that is asked for; the worker settles
// it. The take comes first: what a SERIALIZABLE transaction reads before it ages its snapshot.
func (s *submitter) one(ctx context.Context, tenant string, tokens int) error {
	args := replyArgs{MessageID: rand.Text(), Prompt: strings.Repeat("why ", promptTokens),
		MaxTokens: tokens - promptTokens}
	return s.limiter.InTx(ctx, s.store.pool, func(ctx context.Context, tx pgx.Tx) error {
		in, err := s.jobs.ReserveTx(ctx, tx, args, nil,
			s.limits.chatTokens.Global().Count(float64(tokens)),
			s.limits.chatRequests.Global(),
		)
		if err != nil {
			return err // a *ratelimit.DeniedError if more than MaxReserved would be owed
		}
		var planned *time.Time
		if !in.RunAt.IsZero() {
			planned = &in.Job.Job.ScheduledAt
		}
		_, err = tx.Exec(ctx, `INSERT INTO message (id, tenant, reservation, reserved, planned_at) VALUES ($1, $2, $3, $4, $5)`,
			args.MessageID, tenant, in.Reservation().ID, tokens, planned)
		return err
	})
}

// next tells which job starts next, and what it waits for. It asks for some, as the first may have
// become due meanwhile.
func next(
	ctx context.Context, limiter *ratelimit.Limiter, s *store, m *submitter,
) (text string, err error) {
	err = limiter.InTxOptions(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
		func(ctx context.Context, tx pgx.Tx) error {
			waiting, err := m.jobs.Waiting(ctx, tx, m.limits.chatTokens.Global(), 10)
			if len(waiting) > 0 {
				text = waiting[0].String()
			}
			return err
		})
	return text, err
}
