package main

var ofTools = []mutant{
	// on Citus
	{"citus: looks go by the clock of another node", "ratelimit/citus.go",
		"s.answer.at = *s.here", "_ = s.here", "OnCitusTheClock", core, true},
	{"citus: the clock is read before the takes", "ratelimit/citus.go",
		"case s.here == nil:\n\t\t\tat = nil", "case s.here == nil:", "OnCitusTheClock", core, true},

	// the command
	{"weir: changes what is elsewhere unasked", "cmd/weir/session.go",
		"if s.e.yes || s.e.local(", "if !s.e.yes || s.e.local(", "AnotherMachine", command, false},
	{"weir: prints what pgx says of a connection string", "cmd/weir/session.go",
		"return usagef(\"%s\", \"the connection string", "return usagef(\"%v%.3s\", err, \"the connection string", "PasswordsAreNot", command, false},
	{"weir: connects to what a password has split", "cmd/weir/session.go",
		"if err != nil || splitsPassword(text, cfg) {", "if err != nil {", "PercentEncoded", command, false},
	{"weir: repeats half of a password", "cmd/weir/env.go",
		"`(?s)://.*@`", "`(?s)://.*?@`", "PasswordsAreNot", command, false},
	{"weir: resets by a rule of its own", "cmd/weir/change.go",
		"ratelimit.Shards(b.Shards)", "ratelimit.Shards(b.Shards + 1)", "ChangesOfABalance", command, false},
	{"weir: says that what was interrupted is done", "cmd/weir/prune.go",
		"	return err\n}\n", "	return nil\n}\n", "Interrupted", command, false},
	{"weir: control characters reach the terminal", "cmd/weir/text.go",
		"if !unicode.IsPrint(r) {", "if !unicode.IsPrint(r) && r > 127 {", "Shown", command, false},
	{"weir: the doctor is content with few pages", "cmd/weir/doctor_tables.go",
		"if pages < fewestPages && !p.citus {", "if pages < 0*fewestPages {", "DoneToTheTables", command, false},
	{"weir: the doctor forgets a privilege of fair lines", "cmd/weir/doctor_tables.go",
		"{&line, \"DELETE\", \"\", ofLines},", "{&line, \"DELETE\", \"\", ofLines[1:]},", "MayNotUseFairLines", command, false},
	{"weir: the doctor waits for longer lines", "cmd/weir/doctor_activity.go",
		"if n < 2*samples {", "if n < 200*samples {", "HotKeys", command, false},

	// the vet tool
	{"vet: a bare return drops a named result", "cmd/weirvet/checks/looks.go",
		"return everything // a named result", "continue // a named result", "Checks/weirresult", vet, false},
	{"vet: a look at the next Result counts", "cmd/weirvet/checks/looks.go",
		"if assigns(pass, n, k.by) {", "if false && assigns(pass, n, k.by) {", "Checks/weirresult", vet, false},
	{"vet: whoever settles has looked", "cmd/weirvet/checks/looks.go",
		"if settles(pass, c.Parent()) {", "if false && settles(pass, c.Parent()) {", "Checks/weirrunat", vet, false},
	{"vet: a request is not followed to its variable", "cmd/weirvet/checks/runat.go",
		"if value := onlyValue(pass, e); value != nil {", "if value := onlyValue(pass, e); value == nil && false {", "Checks/weirrunat", vet, false},
	{"vet: a function for after COMMIT belongs to the callback", "cmd/weirvet/checks/intx.go",
		"return n == t.lit || c.ParentEdgeKind() == edge.CallExpr_Fun", "return true || c.ParentEdgeKind() == edge.CallExpr_Fun", "Checks/weirintx", vet, false},
	{"vet: another database may not be read", "cmd/weirvet/checks/intx.go",
		"isDatabase(typ) && types.ExprString(e) == t.db", "isDatabase(typ)", "Checks/weirintx", vet, false},
	{"vet: names of imported packages are forgotten", "cmd/weirvet/checks/name.go",
		"all = append(all, site{definition: d})", "_ = d", "Checks/weirname", vet, false},
	{"vet: a shadow is the limit that it tries out", "cmd/weirvet/checks/name.go",
		"name += \" (shadow)\"", "name += \"\"", "Checks/weirname", vet, false},
}
