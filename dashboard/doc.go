// Package dashboard shows in the browser what limits do. It changes nothing: no URL writes, and it
// reads in read-only transactions. However many viewers there are, it reads each list or balance
// about once a second.
//
//	decisions := &dashboard.Decisions{}
//	limiter, err := ratelimit.New(ratelimit.Config{Observer: decisions})
//	...
//	page, err := dashboard.New(pool, dashboard.Config{Decisions: decisions})
//	...
//	mux.Handle("/weir/", onlyOperators(http.StripPrefix("/weir", page)))
//
// It shows the limits that have rows, their keys, and a picture of one key: the balance over time,
// debt, pauses, when it will be full, and the jobs that are reserved. All of that comes from the
// table (see package inspect), whichever process wrote it. Denials write no row: [Decisions] counts
// them, in the process that serves the page.
//
// # Who may see it
//
// A [Dashboard] has no authentication. Keys are often personal data, so put it behind your own, as
// onlyOperators does above. [Config.HideKeys] shows eight digits in place of each key.
//
// # What it needs
//
// It needs USAGE on the schema, SELECT on weir_balance, and at most two connections of the pool.
// The page is plain HTML, CSS and JavaScript from the program. It loads nothing from anywhere else:
// its Content-Security-Policy forbids that.
package dashboard
