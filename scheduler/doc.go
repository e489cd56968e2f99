// Package scheduler enqueues work together with the tokens that it needs: the take, the reservation and the River job
// commit in the caller's transaction, or none of them does.
//
// Work that is granted at once is available as soon as the transaction commits; work that is granted ahead of time starts
// when its tokens exist, plus jitter; work that is denied is not enqueued, and nothing is taken for it.
//
//	sched := scheduler.New(limiter, scheduler.Config{})
//	riverClient, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{Queues: queues, Workers: workers}))
//	jobs := sched.Jobs(riverClient)
//
//	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		in, err := jobs.InsertTx(ctx, tx, GenerateReply{ID: id}, nil, ChatTokens.For(org).Count(1200).OrReserve())
//		if err != nil {
//			return err
//		}
//		return in.Err() // a *ratelimit.DeniedError if more than MaxReserved would be owed
//	})
//
// It is the only package of Weir that imports River.
//
// # On time
//
// River starts a job that was inserted with a time at its leader's next tick, every 5 s, and after its client's cooldown, of
// 100 ms: some seconds late, and many of them together. A client whose configuration comes from [Scheduler.Configure] takes
// reserved jobs from their queue 2.5 s before they are due, into a queue of its own beside it (weir_ and the queue's name),
// and holds each of them until it is due by the database's clock. By BenchmarkStartLateness half of all jobs start within 2 ms
// of their time, and none before it. It depends on no leader.
//
// What it costs: two small queries for each of River's fetches, that is four a second for an idle queue, and one more a second; while jobs are being
// reserved for the next seconds, one every 10 ms; while jobs are held, one every 50 ms; and for each reserved job three
// updates of its row more than River's, most of them for many jobs at once. A job that waits occupies no worker of its queue.
//
// Clients that are not configured so, of another service or another release, see ordinary scheduled jobs in their queue and
// start them in River's time, never early. Clients with PollOnly, or behind a PgBouncer that keeps notifications from them,
// are on time with what was inserted more than 5 s before it is due, and up to 2.5 s late with the rest.
//
// What becomes of a job when its client ends: a client that is stopped puts the jobs that it holds back, as they were. From
// one that is killed others take them back after 30 s. Jobs that it had begun to work are River's to rescue, as ever. If no
// client so configured is left, what stands in a queue weir_... is put back by
//
//	UPDATE river_job SET queue = substr(queue, 6), scheduled_at = to_timestamp((metadata->'weir'->>'due')::float8 / 1e6)
//	WHERE queue LIKE 'weir\_%' AND state = 'available'
//
// It reads and writes the columns state, queue, scheduled_at, attempt and metadata of River's table river_job, and reads
// paused_at of river_queue; it was tested with River v0.41 and v0.51. Metadata has what a job waits for, under the key "weir".
//
// # Settle
//
// A job carries what it has taken: [ReservationOf] returns it, for [ratelimit.Limiter.Settle] in the transaction that completes
// the job. What it gives back moves up the jobs that wait behind. Those that are next are brought forward at once by the
// clients so configured, those far ahead as their time comes nearer; of a queue in which more than 1,000 jobs are due earlier,
// a job is brought forward when it is among the next 1,000.
//
// Each attempt pays, if [JobArgsWithPays] does not say otherwise. [Jobs.CancelTx] gives back what has not started.
//
// # Late
//
// What could not start when it was due, as its queue was full or no client was there, starts when it can; if it is more than
// three seconds late it is charged anew for what it had waited for, and paced, ahead of those who wait and in its order: the tokens of its own time have
// flowed by and are the bucket's, which gives them to whoever comes. Jobs that two clients have at hand at the same moment may
// pass each other. So no more than the bucket holds starts at once, or three seconds' worth, and the rate is kept.
//
// # Limits of workers, pauses
//
// [Limit] limits a worker, whoever inserts its jobs. [PauseError] closes limits when the API that a worker calls says so, and
// puts off what waits for them. [Explain] and [Jobs.Waiting] tell why a job waits.
package scheduler
