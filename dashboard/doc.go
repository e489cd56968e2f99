// Package dashboard shows in the browser what limits do, and changes nothing: it has no address that does, and reads in read-only
// transactions, each thing about once a second however many people watch.
//
//	decisions := &dashboard.Decisions{}
//	limiter, err := ratelimit.New(ratelimit.Config{Observer: decisions})
//	...
//	page, err := dashboard.New(pool, dashboard.Config{Decisions: decisions})
//	...
//	mux.Handle("/weir/", onlyOperators(http.StripPrefix("/weir", page)))
//
// It shows the limits that have rows, their keys, and of one key a picture: the balance as it falls and refills, debt, pauses, when it
// will be full, and the jobs that are reserved ahead. All of that comes from the rows (see package inspect), whichever process wrote them.
// Which calls are denied leaves no row: that is counted by [Decisions], for the process that serves the page.
//
// # Who may see it
//
// A [Dashboard] asks nobody who they are: keys are people's more often than not, so it belongs behind your own authorisation, as
// onlyOperators is above. [Config.HideKeys] shows eight digits in place of each key.
//
// # What it needs
//
// USAGE on the schema and SELECT on weir_balance, and two connections of the pool at most. The page is one of plain HTML, CSS and
// JavaScript out of the program; it loads nothing from anywhere else, and its Content-Security-Policy forbids it to.
package dashboard
