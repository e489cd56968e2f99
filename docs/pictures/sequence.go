package main

// drawSequence draws what happens in which order, from a take to its settlement, and what is
// committed together.
func drawSequence() (string, error) {
	c := &canvas{width: 920, height: 560,
		title: "Take and insert a job in one transaction; the job starts when its tokens exist; settle in the transaction that saves its result"}
	const program, postgres, worker = 160.0, 460.0, 760.0
	for _, l := range []struct {
		x    float64
		name string
	}{{program, "your program"}, {postgres, "Postgres"}, {worker, "River worker"}} {
		c.line("axis", l.x, 50, l.x, 545)
		c.box("box", l.x-80, 16, 160, 34, "strong", l.name)
	}
	step := func(from, to, y float64, label string) {
		c.path("edge", from, y, to, y)
		c.text("code", "middle", (from+to)/2, y-7, label)
	}

	c.rect("held", program-12, 72, postgres-program+24, 150)
	c.text("small strong", "start", program+2, 90, "one transaction")
	step(program, postgres, 120, "BEGIN, take or reserve")
	step(program, postgres, 150, "INSERT your rows")
	step(program, postgres, 180, "insert the job")
	step(program, postgres, 210, "COMMIT")
	c.text("small", "start", postgres+24, 118, "The balance goes down, below zero if")
	c.text("small", "start", postgres+24, 134, "the call reserves: then RunAt says")
	c.text("small", "start", postgres+24, 150, "when the job may start.")
	c.text("small", "start", postgres+24, 196, "A rollback or a crash undoes all of it.")

	c.box("answer", postgres-90, 244, 180, 42, "small", "tokens flow in, until the",
		"job's own tokens exist")
	step(postgres, worker, 310, "the job is due")
	c.box("box", worker-120, 326, 240, 42, "small", "does its work, in no transaction:",
		"it calls the model or the API")

	c.rect("held", postgres-12, 386, worker-postgres+24, 150)
	c.text("small strong", "end", worker-2, 404, "one transaction")
	step(worker, postgres, 434, "BEGIN, save the result")
	step(worker, postgres, 464, "complete the job")
	step(worker, postgres, 494, "settle what was used")
	step(worker, postgres, 524, "COMMIT")
	c.text("small", "end", postgres-24, 464, "Unused tokens go back, and the jobs")
	c.text("small", "end", postgres-24, 480, "behind move up. Tokens beyond the")
	c.text("small", "end", postgres-24, 496, "estimate are owed.")
	return c.svg()
}
