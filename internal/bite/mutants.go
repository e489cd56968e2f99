package main

// mutant is one break of the library.
type mutant struct {
	name     string // the invariant that it breaks, and how
	file     string
	from, to string // from stands in the file once
	tests    string // the tests that guard the place
	packages []string
	rapid    bool // the packages know rapid's flags
}

var (
	core  = []string{"./ratelimit"}
	whole = []string{"./integration"}
)

var mutants = []mutant{
	// the statement
	{"over-admission: no WHERE on the upsert", "ratelimit/statements.go",
		"WHERE least($4, b.value + {refill}) - $7 >= $8::float8", "WHERE $8::float8 IS NOT NULL", "Concurrent", whole, true},
	{"over-admission: the last token is left", "ratelimit/statements.go",
		"- $7 >= $8::float8", "- $7 > $8::float8", "Concurrent|Conformance", whole, true},
	{"time: a clock set back takes tokens away", "ratelimit/statements.go",
		"$5 * greatest(0, round(", "$5 * greatest(-1e18, round(", "ClockSetBack", whole, true},
	{"time: windows run backwards", "ratelimit/statements.go",
		"windowRefill = `$5 * greatest(0,", "windowRefill = `$5 * greatest(-1e18,", "ClockSetBack", whole, true},
	{"time: ts moves back and the time counts twice", "ratelimit/statements.go",
		"ts = greatest(b.ts, excluded.ts)", "ts = excluded.ts", "ClockSetBack", whole, true},
	{"time: the transaction's clock in place of the statement's", "ratelimit/statements.go",
		"VALUES ($1::text, $2::text, $3::integer, $4::float8 - $7::float8, coalesce($9::timestamptz, clock_timestamp()),",
		"VALUES ($1::text, $2::text, $3::integer, $4::float8 - $7::float8, coalesce($9::timestamptz, now()),", "ClockAnew|DatabasesClock", whole, true},
	{"credit: no clamp at the capacity", "ratelimit/statements.go",
		"value = least($4, b.value + {refill}) - $7", "value = b.value + {refill} - $7", "Conformance|TakeEffect", whole, true},
	{"first use: the whole capacity whatever is taken", "ratelimit/statements.go",
		"$4::float8 - $7::float8, coalesce", "$4::float8, coalesce", "TwoFirstUses|Concurrent", whole, true},
	{"give back: above the capacity", "ratelimit/statements.go",
		"greatest(b.value, least($4, b.value + $7::float8))", "b.value + $7::float8", "NoGift", whole, true},
	{"give back: lowers a larger balance", "ratelimit/statements.go",
		"greatest(b.value, least($4, b.value + $7::float8))", "least($4, b.value + $7::float8)", "NoGift", whole, true},
	{"give back: a window's tokens outlive it", "ratelimit/statements.go",
		"OR b.ts < $8::timestamptz", "OR true OR b.ts < $8::timestamptz", "NoGift", whole, true},
	{"give back: to the window of the latest take", "ratelimit/protocol.go",
		"s.c.taken = s.balance().ts", "s.c.taken = takes[len(takes)-1].balance().ts", "OwnWindow", whole, true},
	{"give back: what a check saw", "ratelimit/verbs.go",
		"c.taken != 0 && c.indexes", "len(c.indexes) > 0 && c.indexes", "CheckCannot", whole, true},
	{"reset: full only by the rule that was given", "ratelimit/statements.go",
		"float64(full), l.now(), c.originTime()", "c.capacity, l.now(), c.originTime()", "NoGift", whole, true},
	{"schema: reads may scan the table", "schema/migrations/0001_balance.up.sql",
		"SET enable_seqscan = off", "SET enable_seqscan = on", "UnrelatedKeys|WholeTable", whole, true},

	// the protocol
	{"all or none: a partial grant is not given back", "ratelimit/protocol.go",
		"if s.found {\n\t\t\tgives", "if false {\n\t\t\tgives", "AllOrNone", whole, true},
	{"denials: what was waited for is not looked at again", "ratelimit/protocol.go",
		"if err != nil || !res.OK {\n\t\t\treturn", "if res.OK, res.RetryAt = false, res.At; true {\n\t\t\treturn", "WhileWaiting|RollsBack", whole, true},
	{"denials: expected ones take first", "ratelimit/protocol.go",
		"looked := x.fresh() && l.denials.expected(calls)", "looked := false", "ExpectedDenial", whole, true},
	{"denials: LOOK grants", "ratelimit/protocol.go",
		"if err != nil || !res.OK {\n\t\t\t\treturn", "if true {\n\t\t\t\treturn", "OutliveAReset", whole, true},
	{"order: rows are locked as they come", "ratelimit/request.go",
		"\tsortCalls(calls)\n\tmerged", "\tmerged", "Order|Merge|Sort", core, true},

	// the algebra
	{"retry: the closed formula, unsearched", "ratelimit/algebra.go",
		"for step := int64(1); x-step > low; step *= 2 {", "for step := int64(1); false; step *= 2 {", ".", core, true},
	{"retry: from the refilled balance", "ratelimit/decide.go",
		"fromMicro(c.earliest(b.value, b.ts, now, c.count, c.least()))}", "fromMicro(c.earliest(c.at(b, now).value, now, now, c.count, c.least()))}", ".", core, true},
	{"reserve: without a bound", "ratelimit/algebra.go",
		"return -a.debt", "return -full", ".", core, true},
	{"windows: the phase changes with the rule", "ratelimit/limit.go",
		"_, _ = h.Write([]byte(name))", "_, _ = h.Write([]byte(name + string(rune(period))))", ".", core, true},
	{"duplicates: the second is forgotten", "ratelimit/request.go",
		"last.count += c.count", "last.count += 0", "Twice", whole, true},

	// transactions
	{"runner: a conflict is final", "ratelimit/postgres.go",
		`return s == "40001" || s == "40P01"`, `return s == "40P01"`, "RunsTheWhole", whole, true},
	{"runner: a deadlock is final", "ratelimit/postgres.go",
		`return s == "40001" || s == "40P01"`, `return s == "40001"`, "Deadlock", whole, true},
	{"runner: an error commits", "ratelimit/intx.go",
		"return a.verdict(ctx, tx, err)\n\t}\n\tdone = true", "_ = a.commit(ctx, tx)\n\t\treturn a.verdict(ctx, tx, err)\n\t}\n\tdone = true", "RollBack|Tokens", whole, true},
	{"runner: a panic leaves the transaction open", "ratelimit/intx.go",
		"if !done { // an error or a panic", "if !done && err != nil {", "Panic", whole, true},
	{"runner: a connection lost at COMMIT is an error like others", "ratelimit/intx.go",
		"return unknown(err)", "return err", "LostAtCommit", whole, true},
	{"runner: hidden conflicts are not run again", "ratelimit/contention.go",
		"a.conflict = err\n", "", "Hides", whole, true},
	{"runner: nested transactions wait for themselves", "ratelimit/intx.go",
		"return isComparable(db) && ctx", "return false && isComparable(db) && ctx", "SecondConnection", whole, true},
	{"queue: contended rows are fought for", "ratelimit/contention.go",
		"return a != nil && a.level", "return false && a != nil && a.level", "ContendedRowQueue", whole, true},
	{"autocommit: at the server's default level", "ratelimit/autocommit.go",
		`"BEGIN ISOLATION LEVEL READ COMMITTED"`, `"BEGIN"`, "StatesItsIsolation", whole, true},

	// the scheduler
	{"scheduler: a job before its tokens", "scheduler/scheduler.go",
		"o.ScheduledAt = res.RunAt.Add(s.delay(res))", "o.ScheduledAt = res.At.Add(s.delay(res))", "Reserved|PassThrough", []string{"./scheduler"}, false},
	{"scheduler: a refused job is paid for", "scheduler/scheduler.go",
		"_ = j.scheduler.limiter.GiveBack(ctx, tx, res)\n", "_ = ctx\n", "Refuses", []string{"./scheduler"}, false},
	{"scheduler: a duplicate is paid for", "scheduler/scheduler.go",
		"if job.UniqueSkippedAsDuplicate {", "if false {", "Duplicate", []string{"./scheduler"}, false},
	{"scheduler: jitter longer than a period", "scheduler/scheduler.go",
		"most = min(most, o.Period/10)", "_ = o", "Jitter", []string{"./scheduler"}, false},

	// the examples
	{"login: check first, charge after", "examples/login/signin.go",
		"if !charged.OK {\n\t\treturn \"\", charged.Err()\n\t}", "", "Parallel|Address", []string{"./examples/login"}, false},
}
