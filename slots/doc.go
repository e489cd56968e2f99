// Package slots lets at most n work at once per key, over all processes, with slots that live in your own Postgres and free
// themselves when their process dies.
//
//	var Exports = slots.MustDefine("exports", 3) // at once, for each tenant
//
//	err := s.Do(ctx, func(ctx context.Context) error {
//		return export(ctx, tenant)
//	}, Exports.For(tenant))
//
// A limit of package ratelimit says how often something may begin; this says how much of it may be under way. Within one
// process golang.org/x/sync/semaphore does that without a database.
//
// # Hold
//
// [Slots.Do] waits for a slot, runs the work, and gives the slot back. [Slots.TryAcquire] does not wait: if all are held it
// fails with an error that matches [ErrFull]. [Slots.Acquire] waits, and both return a [Hold] that is to be released. With
// several requests a call holds a slot of each, or of none.
//
// # Die
//
// While a process lives it renews its slots, all in one statement, three times in [Config.TTL]. If it dies they are free TTL
// after the last renewal. If it cannot renew, as its database is away, say, then the [Hold.Context] of the work ends, with
// [ErrLost] as its cause, before the database gives the slot to somebody else.
//
// # What is guaranteed, and by what
//
// The slots of a key are numbered 0 to n-1, and the table's primary key keeps two holders out of one: never more than n are
// held by the database's books. That no more than n work holds as long as work ends when its context does, the process is not
// suspended for longer than TTL, and the database's clock does not jump ahead. For what must not happen even then, give the
// [Slot.Token] along: its resource can refuse whoever comes with an older one.
//
// A slot is no part of a transaction, so there are no verbs for those: it is taken and given back in transactions of its own.
package slots
