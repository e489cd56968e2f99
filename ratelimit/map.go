package ratelimit

// A map of this package, in the order in which to read it. A test holds it to the files that there
// are. Words with a meaning of their own here stand at its end.
//
// What callers see:
//
//	doc.go           the package page: what the limiter does, and the ways to call it
//	rule.go          TokenBucket and FixedWindow: a limit's numbers
//	limit.go         Define: names, and the options of a definition
//	request.go       what one call asks of one limit; checks it, and makes calls of requests
//	request_json.go  a request as a value that goes through JSON
//	result.go        the answer: granted, granted for later, or denied until RetryAt
//	errors.go        errors to branch on, and what each says
//	limiter.go       Config, New, and the verbs in a transaction of pgx
//	consume.go       RateLimit for those who want an error and no Result
//	intx.go          InTx: a transaction that runs again when it meets another one
//	send_batch.go    SendBatch: BEGIN, take, the caller's batch and COMMIT in one round trip
//	receiver.go      Verbs, and In: the same verbs for code that need not know how it is called
//	sql.go           InSQL: the verbs for database/sql
//	sql_tx.go        InSQLTx: InTx for database/sql
//	autocommit.go    the verbs without a transaction
//	observe.go       what an Observer is told of decisions and transactions
//	shadow.go        limits that decide and deny nobody
//	table.go         the name of the table of balances
//
// The arithmetic, without a database:
//
//	algebra.go       refill, windows, RetryAt and RunAt of one balance
//	decide.go        Decide: what a request meets in a balance
//	foretell.go      Foretell: the same for a call of several limits
//	line.go          who waits behind whom, and when work may run after a change
//
// One call of one limit, in one row:
//
//	protocol.go      take, look, take again: how a call is decided; why it is two statements
//	take_sql.go      the texts that take
//	give_sql.go      the texts that give back, charge, settle and reset
//	pause_sql.go     the texts that pause and resume
//	look_sql.go      the texts that read balances and write layouts
//	queue_sql.go     the texts with which transactions queue for rows
//	statements.go    makes the final texts of them; testdata/statements.sql has each
//	statement.go     a text with its arguments and the row that it answers with
//	execute.go       sends them in a transaction of pgx, and remembers what the connection knows
//	postgres.go      what an error of the database means
//	denials.go       who is expected to be denied, so that a flood of denials only reads
//
// What is done to rows without a decision:
//
//	verbs.go         reset, pause, resume, give back
//	pause.go         Pause and Resume
//	homes.go         the keys under which rows are stored on Citus
//	rows.go          finds all rows of a limit, and those that a change of shards has left
//	reset_key.go     all limits of a key at once
//	prune.go         deletes rows that are full again
//	prune_portable.go  the same, key by key
//	lines.go         reads how the lines stand in which work waits
//
// Reservations:
//
//	reservation.go   what a call took, as a value that goes through JSON
//	settle.go        Settle, Release and Renew: once, and in the caller's transaction
//	wait.go          reserve, and sleep until then
//	do.go            the same, then the work, then the settlement
//
// A transaction of InTx:
//
//	begin.go         BEGIN goes out with the first take
//	contention.go    rows that were lost to others, and the queue for them
//	txn.go           the pgx.Tx that the callback is given
//	two_phase.go     on Citus: tokens and tables of the coordinator commit together
//	failed.go        its answers after BEGIN has failed
//	answers.go       keeps what a batch has answered until COMMIT
//
// Several calls decided as one:
//
//	batch.go         RateLimitMany, for those who hold many calls at once
//	coalesce.go      Coalesce: calls of many goroutines, decided together
//	lane.go          the queue of calls, and who decides the next
//	together.go      one round of that: looks, takes and answers
//	together_put.go  decides on rows that are locked, and writes what is left
//	many.go          the statements over many rows
//	held.go          calls whose rows other transactions hold
//	alone.go         calls that cannot be decided together with others
//	trip.go          the connection and the time that a round may take
//	gives.go         gives back what was granted to callers who have left
//
// A limit of several shards:
//
//	book.go          what this process knows of the shards of each key
//	sharded.go       the protocol where a limit has shards
//	aim.go           which shard, or which of them, a call takes from
//	look_shards.go   reads all shards, and gives a limit those that it is to have
//	whole.go         the shards of a key seen as one balance
//	parts.go         how a count is divided over shards
//	reshard.go       another number of shards, with every token kept
//	hot.go           tells that a limit wants more shards
//
// Tokens in memory:
//
//	lease.go         Lease: blocks of tokens that a process hands out by itself
//	lease_hand.go    what is in hand, and how much of it may still be handed out
//	lease_fetch.go   when the next block is fetched, and who waits for it
//	lease_back.go    what is given back
//	lease_tx.go      tokens in hand, taken in a transaction
//
// Without the database:
//
//	failopen.go      lets calls through in an outage, for a while
//	health.go        finds out whether there is an outage
//	spares.go        decides from memory meanwhile
//
// # Words
//
//   - balance: the tokens of one limit and key; a row, or one row for each shard
//   - take, look: the statement that grants, and the one that only reads
//   - call: a request whose limit, key and numbers were checked
//   - executor: where statements go: a transaction of pgx or of database/sql, or a pool
//   - trip: statements sent together, and their answers
//   - line: work that was granted for later, in the order in which its tokens come
//   - ahead: how far ahead of its tokens a call may be granted
//   - layout: how many shards a balance is divided into; a change closes the rows of the old one
//   - head: the row that says which layout is in force
//   - book: what a process knows of the shards without asking
//   - hand: the tokens of a lease that this process may give out
