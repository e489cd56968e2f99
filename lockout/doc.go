// Package lockout guards sign-ins: however many guesses come at once, and to however many processes, no more than a few are
// checked before the account has to wait, twice as long each time, and its owner is not locked out for ever by a stranger.
//
//	guard, err := lockout.New(limiter, pool, lockout.Config{}) // one for the whole program
//
//	ok, err := guard.Attempt(ctx, lockout.Who{Account: name, Address: address}, func(ctx context.Context) (bool, error) {
//		return accounts.check(ctx, name, password) // slow, as it should be; it holds no connection and no row
//	})
//	var locked *lockout.LockedError
//	switch {
//	case errors.As(err, &locked): // 429, with locked.RetryAfter() rounded up as Retry-After
//	case err != nil: // 503: no answer lets nobody in
//	case !ok: // 401
//	}
//
// # Charge, check, give back
//
// To look whether there have been too many failures, and to count a failure when it has happened, lets all pass who guess at
// the same time: they all look before any has failed. So an attempt is charged as a failure and committed before anything is
// checked, and a right one gives its charge back. Whoever crashes in between has failed, and no failure rolls back with
// anything. [Lockout.Attempt] does that around a callback. Where the check is no callback, or something is to be written
// together with the success, [Lockout.Begin] charges and [Attempt.Succeeded] gives back in a transaction of the caller's.
//
// # Locks
//
// Five failures lock an account for a minute. Then there are five attempts again; five more failures lock it for two minutes,
// then four, and so on up to an hour. A lockout is forgotten a day later, one each day, and time stands still for that while a
// lock lasts. Meanwhile failures are forgotten, too, five in each hour. All of these are fields of [Config].
//
// The lock is set together with the charge of the last attempt, before that is checked: a crash, or a guess beside it, finds no
// gap. If that attempt is right, it lifts the lock. While a lock lasts attempts are denied at once: they are not checked, cost
// nothing, and do not make it longer, unless Config.ExtendWhileLocked says so.
//
// # Addresses
//
// An address, of IPv6 a /64, has ten times as many failures, whatever the accounts, as many people may share one. A success
// gives it back its own attempt and nothing more: or else an attacker would sign in to an account of his own now and then and
// guess on. It is locked, by the same ladder, when an attempt comes and nothing is left. An attempt that one of the two denies
// costs the other nothing.
//
// # The owner
//
// Whoever has many addresses can keep an account locked: its owner has to come before he does when a lock ends, once in an hour.
// With [Devices] that touches only those who come from a device that nobody has signed in from. A browser that has keeps a
// token; attempts with it have a balance of their own, with a ladder of its own, and the locks of the account and of the address
// are nothing to them. A token that was stolen is worth five tries a lock, as anybody has without.
//
// # When the database is away
//
// Nobody gets in. An attempt that cannot be charged is an error, and nothing is checked: a guard
// that opens when it is hit hard enough is no guard. [New] takes a [ratelimit.Limiter], which never
// fails open. It cannot be given a [ratelimit.FailOpen].
//
// # What is stored
//
// No tables but those of package schema. The name of an account is stored as its SHA-256: a row costs the same however long the
// name, and what people type into that field, a password now and then, does not stand there in the clear. Accounts that do not
// exist are counted as all others, so that a lock does not tell whether there is one.
package lockout
