// Package lockout guards sign-ins. Only a few guesses are checked before the account has to wait,
// twice as long each time. That holds for parallel guesses and over all processes, and a stranger
// cannot lock the owner out for ever.
//
//	guard, err := lockout.New(limiter, pool, lockout.Config{}) // one for the whole program
//
//	ok, err := guard.Attempt(ctx, lockout.Who{Account: name, Address: address}, func(ctx context.Context) (bool, error) {
//		return accounts.check(ctx, name, password) // slow, as it should be; it holds no connection and no row
//	})
//	if !guard.Pass(w, r, ok, err) {
//		return // it has answered: 429 if locked, 401 if wrong, 503 if there is no answer
//	}
//
// Without HTTP, or for answers of your own, a lock is an error:
//
//	var locked *lockout.LockedError
//	switch {
//	case errors.As(err, &locked): // come again after locked.RetryAfter()
//	case err != nil: // no answer lets nobody in
//	case !ok: // wrong
//	}
//
// # Charge, check, give back
//
// A guard that first looks for failures, and counts a failure after it has happened, lets all
// parallel guesses pass: they all look before any has failed. So package lockout charges each
// attempt as a failure, and commits that, before anything is checked. A successful attempt gets its
// charge back. A crash in between counts as a failure, and a failure never rolls back.
// [Lockout.Attempt] does that around a callback. If the check cannot be a callback, or you want to
// write something together with the success, use [Lockout.Begin] to charge and [Attempt.Succeeded]
// to give back in your own transaction.
//
// # Locks
//
// Five failures lock an account for a minute. Then there are five attempts again; five more
// failures lock it for two minutes, then four, and so on up to an hour. One lockout is forgotten
// each day, not counting the time of locks. Failures are forgotten too, five in each hour. All of
// these numbers are fields of [Config].
//
// The lock is set together with the charge of the last attempt, before that attempt is checked. So
// neither a crash nor a parallel guess finds a gap. If that attempt is right, it lifts the lock.
// While a lock lasts attempts are denied at once: they are not checked, cost nothing, and do not
// make it longer, unless Config.ExtendWhileLocked says so.
//
// # Addresses
//
// An address (for IPv6 a /64) may have ten times as many failures, over all accounts, as many
// people may share it. A success gives it back only its own attempt: otherwise an attacker could
// sign in to an account of their own now and then, and go on guessing. The address is locked, for
// the same times as an account, when an attempt finds no tokens left. An attempt that the account
// denies costs the address nothing, and the other way round.
// Proxies.ClientAddr of package httplimit returns the address of a request, also behind a proxy.
//
// # The owner
//
// An attacker with many addresses can keep an account locked: the owner has to be first when a lock
// ends, once an hour. With [Devices] that affects only sign-ins from unknown devices. A browser
// that has signed in before keeps a token. Attempts with the token have a balance and locks of
// their own; the account and address locks do not apply to them. A stolen token gives five tries
// per lock, as without a token.
//
// # When the database is away
//
// Nobody gets in. An attempt that cannot be charged is an error, and nothing is checked: an
// attacker must not be able to disable the guard by overloading the database. [New] takes a
// [ratelimit.Limiter], which never fails open. It cannot be given a [ratelimit.FailOpen].
//
// # What is stored
//
// Package lockout uses the tables of package schema. The name of an account is stored as its
// SHA-256. So a row has the same size whatever the name, and a password that somebody types into
// the wrong field is not stored in the clear. Accounts that do not exist are counted like all
// others, so that a lock does not tell whether an account exists.
package lockout
