package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

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

// replyWorker works jobs whose tokens have been taken, so it just calls the API.
type replyWorker struct {
	river.WorkerDefaults[replyArgs]

	store   *store
	client  *client
	limits  limits
	refused atomic.Int64 // 429s
	broken  func(error)  // called when there is no use in going on
}

// NextRetry is soon: the demo is short.
func (w *replyWorker) NextRetry(*river.Job[replyArgs]) time.Time { return time.Now().Add(time.Second) }

// Work calls the API and saves the answer, in the transaction that completes the job. A 429 closes the limits until the API
// takes calls again, for all jobs.
func (w *replyWorker) Work(ctx context.Context, job *river.Job[replyArgs]) error {
	_, err := w.store.pool.Exec(ctx, `UPDATE message SET started_at = coalesce(started_at, clock_timestamp()) WHERE id = $1`, job.Args.MessageID)
	if err != nil {
		return err
	}
	answer, used, err := w.client.complete(ctx, job.Args.Prompt, job.Args.MaxTokens)
	var tooMany *tooManyRequests
	if errors.As(err, &tooMany) {
		w.refused.Add(1)
		return &scheduler.PauseError{For: tooMany.after, Err: err,
			Requests: []ratelimit.Request{w.limits.chatTokens.Global(), w.limits.chatRequests.Global()}}
	}
	var refused *refusedError
	if errors.As(err, &refused) { // the key, say: no other call would fare better
		w.broken(err)
		return river.JobCancel(err)
	}
	if err != nil {
		return fmt.Errorf("message %s: %w", job.Args.MessageID, err)
	}
	return pgx.BeginFunc(ctx, w.store.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE message SET answer = $2, used = $3 WHERE id = $1`, job.Args.MessageID, answer, used)
		if err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}
