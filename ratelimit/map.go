package ratelimit

// A map of this package, in the order in which to read it. A test checks that it lists every file.
// At its end are the words that have a special meaning in this package.
//
// If something is wrong, begin with the table of faults in CONTRIBUTING.md: for each it names the
// files to look at, here and in other packages. The recipes for a new verb and for a new column are
// there, too.
//
// What callers see:
//
//	doc.go           the package page: what the limiter does, and the ways to call it
//	rule.go          TokenBucket and FixedWindow: a limit's numbers
//	limit.go         Define: names, and the options of a definition
//	request.go       Request: what is asked of one limit; checks requests and turns them into calls
//	request_json.go  requests as JSON
//	result.go        the answer: granted, granted for later, or denied until RetryAt; its id
//	errors.go        the errors that callers can branch on
//	limiter.go       Config, New, and the verbs in a pgx transaction
//	intx.go          InTx: a transaction that runs again after a conflict
//	send_batch.go    SendBatch: BEGIN, take, the caller's batch and COMMIT in one round trip
//	receiver.go      Verbs: each verb once, in a transaction or over a pool; In
//	sql.go           InSQL: the verbs for database/sql
//	sql_tx.go        InSQLTx: InTx for database/sql
//	autocommit.go    Autocommit: the verbs over a pool, each call in a transaction of its own
//	observe.go       Observer: gets each decision and transaction
//	shadow.go        Shadow: limits that decide and report, but never deny
//
// The arithmetic, without a database, is package internal/limits/algebra. Where a RetryAt comes from
// is in the first rows of CONTRIBUTING's table. These files are the public side of the arithmetic:
//
//	decide.go        Decide: the outcome of a request for a State
//	foretell.go      Foretell: the same for a call of several limits; Receipts, with which weirtest
//	                 settles in memory
//	line.go          compares reservations: does one wait behind another, and when may it run if the
//	                 rule has changed since; package scheduler asks this
//
// How one call is decided. The texts of the statements are in package internal/limits/statements:
//
//	protocol.go      the steps: take; if that fails, look; if there were tokens, take again, in
//	                 decide of sharded.go, which serves all limits. Why it needs two statements
//	statement.go     one statement: its text, its arguments and its answer
//	execute.go       the executor: where statements go; how they are sent in a pgx transaction
//	citus.go         on Citus: which node's clock counts; under which key a row is stored, with
//	                 shard/home.go; two-phase commit in a caller's own transaction
//	postgres.go      what an error of the database means: may the call run again, and was a COMMIT
//	                 rolled back, or is that unknown
//	denials.go       if a row has just denied a call, looks before it takes: so a flood of denied
//	                 calls writes nothing. With RememberDenials, some are answered from memory
//
// Changes of rows without a decision:
//
//	verbs.go         reset, pause, resume, give back, all limits of a key at once
//	rows.go          runs a change on all rows of a limit, or on those that a call took from, and
//	                 follows closed rows; then notes the new balances
//	back.go          where tokens of a shard go back to after a change of the number of shards
//	excess.go        which shards are charged if more was used than reserved
//	prune.go         deletes rows that are full again
//	prune_portable.go  the same, key by key
//	lines.go         Lines: reads the states of balances for which work waits, also by how much
//	                 pauses have delayed it
//
// Reservations:
//
//	receipt.go       what a call has taken, row by row, and what giving back or settling does there
//	reservation.go   Reservation: what a call took, for settling; when its work may run, until when
//	                 and under which key it is settled; its JSON
//	settle.go        Settle and Release: once for each reservation; Renew: charges it again. All in
//	                 the caller's transaction
//	wait.go          Wait: reserves, and sleeps until the work may run
//	do.go            Do: waits, runs the work, and settles what it has used
//
// A transaction of InTx:
//
//	begin.go         sends BEGIN together with the first take; sends COMMIT, on Citus in two phases
//	                 if needed. Confirms a denial that was read before BEGIN
//	pass_on.go       the pgx.Tx that the callback gets: passes on what is sent there
//	attempt.go       one run of a transaction: the rows for which it queues, and those on which it
//	                 conflicts with others; what can be sent before BEGIN
//
// Several calls decided as one. If coalesced calls are slow, see the table in CONTRIBUTING.md:
//
//	batch.go         RateLimitMany: many calls of one caller, granted all or none
//	coalesce.go      Coalesce: decides calls of many goroutines together
//	lane.go          the queues of calls, and the goroutines that decide them
//	together.go      decides one batch: takes, looks and answers
//	together_put.go  decides the calls that together.go could not: those of several limits,
//	                 reservations, and those for which there were too few tokens. It locks their
//	                 rows, and writes the new balances
//	many.go          the statements over many rows: their arguments and answers
//	known_ranges.go  on Citus: the keys whose calls one statement can decide together
//	held.go          calls that wait for rows locked by other transactions
//	alone.go         calls that cannot be decided together with others
//	trip.go          round trips of a batch: connection and time-outs
//	gives.go         gives back tokens of coalesced callers whose context has ended
//
// A limit of several shards. Package internal/limits/spread is the arithmetic: what the shards
// grant as one limit, RetryAt, and how a count is divided over them. Package internal/limits/book
// remembers what a process knows of the shards:
//
//	sharded.go       decide: takes and looks until all calls are granted or one is denied, with shards
//	                 or without. Notes what a take has left in each shard; denies a call if others
//	                 took the tokens after the last look
//	aim.go           chooses the shard or shards that a call takes from
//	look_shards.go   reads limits, with all shards or the only row; adds shards that are missing
//	whole.go         the shards of a limit, as they were read, and calls for single shards
//	reshard.go       changes the number of shards, and keeps every token
//
// Tokens in memory. Package internal/limits/inhand is the arithmetic: how much of a block may be
// handed out or given back, and the proof of that. If a lease loses tokens, look at lease_hand.go
// and lease_fetch.go first:
//
//	lease.go         Lease: blocks of tokens that a process hands out by itself; Close
//	lease_hand.go    what a lease holds, and puts back; when it gives back
//	lease_fetch.go   fetches blocks, and queues the takes that wait for them; if a fetch fails
//	                 although it was committed, its block is lost
//	lease_back.go    gives back what was not used
//	lease_tx.go      TakeInTx: takes tokens from memory; a rollback puts them back
//
// Without the database:
//
//	failopen.go      FailOpen: what happens to calls in an outage, and for how long
//	health.go        finds out whether the database is away, or only one call is slow
//	spares.go        decides calls in an outage by balances in memory
//
// # Words
//
// In package scheduler and in internal/jobs, line, attempt and hand are other things: the line of
// tenants or of jobs, River's attempt at a job, and the handing on of a slot.
//
//   - balance: the tokens of one limit and key; a row, or one row for each shard
//   - take, look: the statement that takes tokens if it grants, and the one that only reads
//   - call: a request that was checked, for one limit and key. A call of RateLimit over several
//     limits has one for each
//   - receipt: what a call has taken from one row; change: what giving back or settling does there
//   - executor: where statements go: a pgx or database/sql transaction, or a pool
//   - trip: a round trip: statements sent together, and their answers
//   - line: the queue of work that was granted for later, in the order in which its tokens come
//   - delay: by how long pauses have put off the work that waits for a row; moved: by how many tokens
//     settlements have moved its line up
//   - ahead: how far ahead of its tokens a call may be granted
//   - layout: into how many shards a balance is divided; a change closes the old layout's rows
//   - head: the row that says which layout is in force; closed: a row of an old layout
//   - book: what a process remembers of the shards of a limit and key
//   - aim: from which shards one call takes next
//   - lane: calls that are decided one batch after the other
//   - scheme: the plan for one batch
//   - standing: one row of a scheme, with its calls and what the database said about the row
//   - held: calls that wait for rows that other transactions have locked
//   - attempt: one run of a transaction of InTx
//   - hand: the tokens of a lease that this process may give out
