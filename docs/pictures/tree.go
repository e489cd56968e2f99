package main

// choice is a question of the decision tree, and what to use if the answer is yes. If then is set,
// the yes leads to another question, with an answer each for yes and no.
type choice struct {
	ask                string
	then, use, yes, no []string
}

// choices are asked from the top. The last one is for all that is left.
var choices = []choice{
	{ask: "Can an attacker guess it: a password, a PIN, a code?", use: []string{"lockout"}},
	{ask: "Is it a request to your HTTP server?", use: []string{"httplimit"}},
	{ask: "Do you limit how many run at once?", use: []string{"slots"}},
	{ask: "Is it the start of a River job?",
		then: []string{"Must the code that inserts it learn",
			"when it runs, or that it is denied?"},
		yes: []string{"reserve:", "jobs.ReserveTx"},
		no:  []string{"limit the worker: scheduler.Limit"}},
	{ask: "Does it belong to writes in Postgres?",
		then: []string{"May Weir begin the transaction?"},
		yes:  []string{"limiter.InTx"}, no: []string{"limiter.Consume(ctx, tx, ...)"}},
	{ask: "Can the caller wait for its turn?",
		use: []string{"Autocommit.Wait", "upstream.Transport"}},
	{ask: "Do many goroutines call at the same time?",
		then: []string{"Is a round trip too much for each?"},
		yes:  []string{"limiter.Lease"}, no: []string{"limiter.Coalesce"}},
}

// rest is for those who have answered no to all.
const rest = "limiter.Autocommit"

func drawTree() (string, error) {
	c := &canvas{width: 920, height: 722, title: "A decision tree: which way to call"}
	const x, w = 20.0, 360.0
	y := 20.0
	for _, q := range choices {
		h := 44.0
		c.box("box", x, y, w, h, "", q.ask)
		middle := y + h/2
		c.path("edge", x+w, middle, x+w+50, middle)
		c.text("small faint", "middle", x+w+22, middle-6, "yes")
		next := y + 74
		if q.then == nil {
			c.box("answer", x+w+50, y, 200, h, "code", q.use...)
		} else {
			next = y + 114
			c.box("box", x+w+50, y, 260, h, "", q.then...)
			c.path("edge", x+w+180, y+h, x+w+180, y+h+26)
			c.text("small faint", "start", x+w+186, y+h+16, "no")
			c.box("answer", x+w+50, y+h+26, 260, 34, "code", q.no...)
			c.path("edge", x+w+310, middle, x+w+350, middle)
			c.text("small faint", "middle", x+w+328, middle-6, "yes")
			c.box("answer", x+w+350, y, 170, h, "code", q.yes...)
		}
		c.path("edge", x+w/2, y+h, x+w/2, next)
		c.text("small faint", "start", x+w/2+6, y+h+16, "no")
		y = next
	}
	c.box("answer", x, y, w, 44, "code", rest)
	return c.svg()
}
