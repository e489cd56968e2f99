package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// replyArgs are a job: answer the message.
type replyArgs struct {
	MessageID string `json:"message_id"`
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens"`
}

// Kind names the job.
func (replyArgs) Kind() string { return "reply" }

// replyWorker works jobs for which an estimate has been reserved: it calls the API, and settles
// what that has used.
type replyWorker struct {
	river.WorkerDefaults[replyArgs]

	store   *store
	client  *client
	limiter *ratelimit.Limiter
	sched   *scheduler.Scheduler
	limits  limits
	refused atomic.Int64 // 429s
	broken  func(error)  // called when there is no use in going on
}

// NextRetry is soon: the demo is short.
func (w *replyWorker) NextRetry(*river.Job[replyArgs]) time.Time {
	return time.Now().Add(time.Second)
}

// Work calls the API. What becomes of the reservation depends on what comes of the call:
//
//   - an answer: it is settled by what the API says was used, in the transaction that saves the
//     answer and completes the job
//   - a 429: it stays, and is for the next try, as nothing was used; the limits are closed until
//     the API takes calls again
//   - a refusal: it is settled with no tokens, as the API did no work; the request was made and
//     counts
//   - no answer, after a 5xx or a timeout say: nobody knows what was used, so it keeps its
//     estimate, and River's next attempt pays anew
func (w *replyWorker) Work(ctx context.Context, job *river.Job[replyArgs]) error {
	r, ok := scheduler.ReservationOf(job.JobRow)
	if !ok {
		return river.JobCancel(errors.New("nothing was reserved"))
	}
	if err := w.store.start(ctx, job.Args.MessageID, r.ID, w.limits.tokensOf(r),
		job.ScheduledAt); err != nil {
		return err
	}
	answer, used, err := w.client.complete(ctx, job.Args.Prompt, job.Args.MaxTokens)
	var tooMany *tooManyRequests
	if errors.As(err, &tooMany) {
		w.refused.Add(1)
		return &scheduler.PauseError{For: tooMany.after, Err: err,
			Requests: []ratelimit.Request{w.limits.chatTokens.Global(),
				w.limits.chatRequests.Global()}}
	}
	var refused *refusedError
	if errors.As(err, &refused) { // the key, say: no other call would fare better
		_, settling := w.limiter.Autocommit(w.store.pool).Settle(ctx, r,
			w.limits.chatTokens.Global().Count(0))
		w.broken(err)
		return errors.Join(river.JobCancel(err), settling)
	}
	if err != nil {
		return fmt.Errorf("message %s: %w", job.Args.MessageID, err)
	}
	return pgx.BeginFunc(ctx, w.store.pool, func(tx pgx.Tx) error {
		if err := w.store.save(ctx, tx, job.Args.MessageID, answer, used,
			w.limits.tokensOf(r)-float64(used)); err != nil {
			return err
		}
		// Last, as it locks the limit's row, for which others wait.
		return w.sched.CompleteTx(ctx, tx, job.JobRow,
			w.limits.chatTokens.Global().Count(float64(used)))
	})
}
