// Package scheduler inserts River jobs together with the tokens that they need. It is the only
// package, with dashboard/ahead, that links River.
//
// # What it guarantees
//
// The take, the reservation and the job commit in the caller's transaction, or none of them does. A
// job whose tokens are there is available at COMMIT. A job that is reserved starts when its tokens
// exist, and never earlier according to the database's clock, whichever client works it. A job that
// is denied is not inserted, and nothing is taken for it.
//
//	sched := scheduler.New(limiter, scheduler.Config{})
//	riverClient, err := river.NewClient(riverpgxv5.New(pool),
//		sched.Configure(pool, &river.Config{Queues: queues, Workers: workers}))
//	jobs := sched.Jobs(riverClient)
//
//	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := jobs.ReserveTx(ctx, tx, GenerateReply{ID: id}, nil, ChatTokens.For(org).Count(1200))
//		return err // a *ratelimit.DeniedError if more than MaxReserved would be owed
//	})
//
// With [Jobs.InsertTx] each request says whether it may reserve, and a denial is not an error.
// [Jobs.InsertManyTx] and [Jobs.InsertMany] insert many jobs with their tokens in as many round
// trips as one job: all of them, or none.
//
// # On time
//
// A reserved job waits in its own queue as an ordinary River job, and River's own fetch gives it to
// a worker that is free. So priorities, MaxWorkers, paused queues and unique jobs work as River
// documents them, and a job that waits occupies no worker. River alone starts scheduled jobs a few
// seconds late: its leader looks every 5 s. Clients that [Scheduler.Configure] sets up do more:
//
//   - The process that inserted a job notifies River's clients at the moment when the job is due.
//   - Once a second, and up to four times while jobs end, one of the working clients does a round:
//     it looks at the next 1,000 jobs that wait, and at 2,000 of the others in turn. It makes the
//     next 600 available if they are due within 25 s, moves those whose time has changed, and
//     notifies River of those that are due, in case the process that inserted them has died.
//   - When a job starts, its client looks at the limits once more. If the job must wait after all,
//     for example because of a pause, the client puts it off: it snoozes the job. To a worker's own
//     middleware, which runs around this look, a put-off is a snooze. If workers hold all
//     connections of the pool, the client opens one more for the look.
//
// While nothing waits, each client makes one round trip a second, however many queues it has:
// one statement, and up to three at the client that does the rounds. That one makes one more a
// minute. Config.Lines adds up to two, Config.Slots one, and two at one of the clients. Jobs
// that start together cost one query. While jobs become due, each process sends at most 100
// notifications a second on average. A job due within 25 s is inserted as available, so River
// notifies in the caller's transaction: each client at most once per queue in its FetchCooldown.
// A reserved job has as many row versions as a scheduled job of River's, unless it is moved or
// put off. A queue saturated with immediate jobs has 1.4 to 1.5 times River's throughput
// (BenchmarkBusyWorkers). Lateness, in three benchmark runs on two cores:
//
//	                                              p50         p90         p99
//	idle workers (BenchmarkStartLateness)         3-5 ms                  7-17 ms, none early
//	  River alone                                 0.4-4.5 s               4.7-4.9 s
//	workers 75 % busy (BenchmarkBusyWorkers)      4 ms        5-6 ms      77-370 ms
//	  River alone                                 223-240 ms  0.6-0.8 s   2.5-3.5 s
//
// The most that a job starts late while a worker is free depends on which clients are configured:
//
//	inserting client   working client    late
//	configured         configured        milliseconds
//	not configured     configured        about a second: the next round finds the job
//	configured         not configured    100 ms, River's FetchCooldown, if the job was due within
//	                                     25 s of its insert; else 5 s, as River promotes it
//	not configured     not configured    5 s, as with River alone
//
//	other cases, both configured         late
//	PollOnly, or no notifications        the FetchPollInterval, 1 s by default
//	River's leader is killed             nothing more: rounds make jobs available 25 s ahead
//	the inserting process is killed      up to a second: a round or River's poll finds its jobs
//	a queue is added to a running client up to 100 ms, unless its QueueConfig has a FetchCooldown
//
// Rounds, and the first look at a fair line or for free slots after nothing waited, come when a
// client fetches. With a FetchPollInterval above a second, they may be that much later. A working
// client that is not configured does not look again: it starts jobs even during a pause that began
// later, and late ones together.
//
// # The row of a job
//
//	                                     state       scheduled_at
//	inserted, granted at once            available   as InsertOpts say
//	queued, until its turn               scheduled   in the year 2200
//	waiting for a slot                   scheduled   in the year 2200
//	given a slot                         available   as before it waited
//	reserved, due within 25 s            available   when it is due, in the future
//	reserved, due later                  scheduled   when it is due
//	promoted by a round or by River      available   unchanged
//	moved up or moved back               either      its new time
//	put off at its start (a snooze)      either      its new time; counts in snoozes, uses no attempt
//	fetched                              running     unchanged
//	done                                 completed   unchanged
//	cancelled                            cancelled   unchanged; its tokens are given back
//
// Ahead of time at most 600 jobs of each inserting client are available, the 600 due next, and
// within 25 s granted turns and the backlog of a limited worker. Each fetch passes over all of
// them. If more are due in a second, later rounds or River promote the rest, up to 5 s late.
//
// # What it writes
//
// River inserts, fetches, completes and cancels jobs, and writes what the package asks it to: the
// mark that an attempt has begun (MetadataSet), and each put-off. Besides, six statements write to
// river_job, none of them to a row that is running:
//
//   - moveSQL changes scheduled_at, state and the key "weir" of metadata, of rows that are
//     available or scheduled. It skips locked rows, and writes at most 1,000 in a statement. Rounds
//     send it. It is also sent for jobs that wait for the same balances as one that was put off,
//     for the backlog of a limited worker, and for late jobs.
//   - freedSQL changes the key "weir" of metadata of a cancelled row, when its tokens are given
//     back: in the caller's transaction for [Jobs.CancelTx], otherwise in a transaction of a round.
//   - grantSQL changes scheduled_at, state and the key "weir" of metadata of queued jobs whose turn
//     it is, at most 500 in a statement.
//   - givenSQL changes scheduled_at, state and the key "weir_slot" of a job that is given a slot.
//     It and grantSQL write rows that were locked first. Rows that others lock are passed over.
//   - lostSQL makes jobs available that were put off while they ran: River writes a put-off again
//     if it got no answer. A round sends it once a minute. It skips locked rows.
//   - completingSQL locks the job that [Scheduler.CompleteTx] completes, in the worker's
//     transaction. It has a job run that was rescued meanwhile, so that River completes it.
//
// The package also reads river_queue. A row of weir_slot says which client does the rounds, for
// three seconds at a time. The role of a working client needs SELECT, INSERT and UPDATE on that
// table. The tests were run with River v0.41 and v0.51; none runs with River Pro, whose partitions,
// sequences and concurrency limits see ordinary jobs in their own queues.
//
// # Settle, pay, cancel
//
// [Scheduler.CompleteTx] completes a job, and settles what it has taken, in the worker's
// transaction. [Scheduler.CompleteSQLTx] does so in one of database/sql. [ReservationOf] returns
// what a job has taken, for [ratelimit.Limiter.Settle]. When a settlement gives tokens back, the
// jobs behind it move up when their new time comes near. The same happens when a job is cancelled
// before its attempt has begun: see [Jobs.CancelTx]. An attempt that has begun has paid, even if a
// stop of its client interrupts it. Further attempts pay again, except as [JobArgsWithPays] says.
//
// # Late jobs, changed rates
//
// A job that starts more than 3 s late, because all workers were busy or the database was away,
// pays again, once. Its tokens were for the time at which it was due, and many late jobs that start
// together would exceed the limit. Late jobs pay ahead of all waiting jobs; those that reach
// workers together pay in their own order. So after an outage jobs start at the limit's rate. A job
// that has paid may be put off again by late jobs that pay after it: about once for each other
// client, or once if other workers of its own client are slow. Each time costs two row versions.
// Jobs that a fair line has granted do not pay again for being late.
//
// The process that looks at waiting jobs applies the rule that it has defined for their limit, from
// one second after the definition. If a process defines a name again, the newest definition counts.
// A rule that came with a request ([ratelimit.Request.Rule]) stays.
//
// # Limits of workers, pauses
//
// [Limit] limits a worker, whichever program inserts its jobs. A worker returns a [PauseError] when
// its API asks it to wait. [ratelimit.Limiter.Pause] does the same by hand, and
// [ratelimit.Limiter.Resume] ends a pause early: the jobs that it has put off come forward within a
// second or two. [Explain] and [Jobs.Waiting] tell why a job waits.
//
// # Fair lines
//
// Where many tenants share a limit, [Jobs.QueueTx] inserts jobs that wait for their turn. It takes
// nothing. When tokens come, the tenant that has had the least goes next, by start-time fair
// queueing: see [Line], [Tenant] and docs/fair-lines.md of the repository. [Jobs.SettleTx] charges
// a tenant for what its job has used.
//
// While such a job waits, it has a row in weir_turn. The client that holds the line's row in
// weir_line, for three seconds at a time, grants the turns: one transaction takes the tokens, gives
// the jobs their times (grantSQL) and deletes their rows. It locks the jobs before it takes, and
// waits for no job that somebody else has locked. The role of a working client needs SELECT,
// INSERT, UPDATE and DELETE on weir_line, weir_line_tenant and weir_turn. The role of a client that
// queues jobs needs SELECT and INSERT on weir_turn. [Jobs.InLine] lists the jobs of a line in the
// order of their turns, and why.
//
// # At most n at once
//
// [AtOnce] bounds how many jobs run at once. A job that waits for a slot has a row in weir_turn.
// The job that frees a slot gives it to the first of them in the same transaction: the row goes,
// the job is available at its old scheduled_at (givenSQL), and the slot's row names it for five
// seconds. One of the clients with Config.Slots gives away other free slots once a second. The role
// needs SELECT, INSERT, UPDATE and DELETE on weir_turn, and SELECT on river_queue. Jobs that are
// due and ask for the same key are put in line together, by moveSQL. [Jobs.WaitingForSlot] lists
// the jobs that wait, in their order.
//
// # Removing Weir
//
// Jobs that wait are River's: without Configure, River starts them at their scheduled_at. Jobs in
// fair lines and in line for slots are scheduled for the year 2200: docs/fair-lines.md of the
// repository has the statement that makes River start them. The key "weir" of their metadata may
// stay. Versions before the first release moved jobs to a queue named weir_ and the name of their
// own. Once no client of such a version runs, this statement puts them back. Rows that are running
// change their queue only, and River rescues them as after any crash.
//
//	UPDATE river_job SET queue = substr(queue, 6), scheduled_at = CASE WHEN state = 'available'
//		THEN coalesce(to_timestamp((metadata->'weir'->>'due')::float8 / 1e6), scheduled_at)
//		ELSE scheduled_at END
//	WHERE queue LIKE 'weir\_%' AND state IN ('available', 'running', 'retryable', 'scheduled')
package scheduler
