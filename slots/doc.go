// Package slots bounds how much work runs at once: at most n per key, over all processes. Slots are
// rows in your own Postgres, and expire when their process dies.
//
//	var Exports = slots.MustDefine("exports", 3) // at once, for each tenant
//
//	err := s.Do(ctx, func(ctx context.Context) error {
//		return export(ctx, tenant)
//	}, Exports.For(tenant))
//
// A limit of package ratelimit bounds how much work starts in a period; this package bounds how
// much runs at once. Within one process use golang.org/x/sync/semaphore instead.
//
// # Hold
//
// [Slots.Do] waits for a slot, runs the work, and releases the slot. [Slots.TryAcquire] does not
// wait: if all slots are held it fails with an error that matches [ErrFull]. [Slots.Acquire] waits.
// Both return a [Hold], which the caller releases. With several requests a call holds a slot of
// each, or of none.
//
// # Die
//
// While a process lives it renews its slots, all in one statement, three times in each
// [Config.TTL]. On Citus it renews those of each key by themselves, so a node that is down fails
// only its own keys. If the process dies, the slots become free one TTL after the last renewal. If
// it cannot renew them, because the database is away for example, the [Hold.Context] of the work
// ends, with [ErrLost] as its cause, before the database grants the slot to another process.
//
// # What is guaranteed, and by what
//
// The slots of a key are numbered 0 to n-1, and the table's primary key allows one holder each: the
// database never has more than n holders. No more than n run, as long as work ends when its context
// does, the process is not suspended for longer than TTL, and the database's clock does not jump
// ahead. If more must not run even then, pass the [Slot.Token] on: the resource can refuse a caller
// with an older token.
//
// A slot is not part of your transaction: it is taken and released in transactions of its own.
package slots
