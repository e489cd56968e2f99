// Package scheduler enqueues work together with the tokens that it needs: the take, the reservation and the River job
// commit in the caller's transaction, or none of them does.
//
// Work that is granted at once is available as soon as the transaction commits; work that is granted ahead of time is
// scheduled for when its tokens exist, plus jitter; work that is denied is not enqueued, and nothing is taken for it.
//
//	sched := scheduler.New(limiter, scheduler.Config{})
//	jobs := sched.Jobs(riverClient)
//
//	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		in, err := jobs.InsertTx(ctx, tx, GenerateReply{ID: id}, nil, ChatTokens.For(org).Count(1200).OrReserve())
//		if err != nil {
//			return err
//		}
//		return in.Err() // a *ratelimit.DeniedError if more than MaxReserved would be owed
//	})
//
// It is the only package of Weir that imports River.
package scheduler
