package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// The two tenants on the fair line. The greedy one queues all of its messages at once, and the
// modest one has a message at a time: the next when the last is answered.
const (
	greedy = "greedy"
	modest = "modest"

	modestMessages = 6
)

// inLine has the greedy tenant and the modest one ask for answers, and returns when all of the
// modest one's are there.
func (s *submitter) inLine(ctx context.Context, greedyMessages int) error {
	var messages []scheduler.QueueManyParams
	for range greedyMessages {
		messages = append(messages, s.message(greedy))
	}
	for n := range modestMessages { // the first of them behind all of the greedy one's
		if err := s.queue(ctx, append(messages, s.message(modest))); err != nil {
			return err
		}
		messages = nil
		for answered := 0; answered <= n; {
			var err error
			if answered, err = s.store.answered(ctx, modest); err != nil {
				return err
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// message is one for the line. Nothing is taken for it before its turn.
func (s *submitter) message(tenant string) scheduler.QueueManyParams {
	tokens := smallest + mathrand.IntN(largest-smallest+1)
	return scheduler.QueueManyParams{
		Args: replyArgs{
			MessageID: rand.Text(), Prompt: strings.Repeat("why ", promptTokens),
			MaxTokens: tokens - promptTokens,
		},
		Tenant: scheduler.Tenant{Key: tenant},
		Requests: []ratelimit.Request{
			s.limits.chatTokens.Global().Count(float64(tokens)),
			s.limits.chatRequests.Global(),
		},
	}
}

// queue saves messages together with the jobs that will ask for the answers.
func (s *submitter) queue(ctx context.Context, messages []scheduler.QueueManyParams) error {
	return s.limiter.InTx(ctx, s.store.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := s.jobs.QueueManyTx(ctx, tx, messages); err != nil {
			return err
		}
		for _, m := range messages {
			args, ok := m.Args.(replyArgs)
			if !ok {
				return fmt.Errorf("a message of %T", m.Args)
			}
			_, err := tx.Exec(ctx,
				`INSERT INTO message (id, tenant, reservation, reserved) VALUES ($1, $2, $3, 0)`,
				args.MessageID, m.Tenant.Key, uuid.Nil)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *store) answered(ctx context.Context, tenant string) (n int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT pg_catalog.count(answer) FROM message WHERE tenant = $1`,
		tenant).Scan(&n)
	return n, err
}

// waited is how long the messages of a tenant have waited for their calls to start, ascending.
func (s *store) waited(ctx context.Context, tenant string) ([]time.Duration, error) {
	rows, err := s.pool.Query(ctx, `SELECT (extract(epoch FROM started_at - saved_at) * 1e6)::bigint
		FROM message WHERE tenant = $1 AND started_at IS NOT NULL`, tenant)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (time.Duration, error) {
		var us int64
		err := row.Scan(&us)
		return time.Duration(us) * time.Microsecond, err
	})
	slices.Sort(all)
	return all, err
}
