package main

import "fmt"

// drawRows draws where the balance of one limit and key is, and who holds which lock, for a plain
// limit, one with shards, and a lease.
func drawRows() (string, error) {
	c := &canvas{width: 920, height: 400,
		title: "Rows and locks of a plain limit, of a limit with four shards, and of a lease"}
	const left, middle, right = 20.0, 325.0, 630.0
	panel := func(x float64, title string, lines ...string) {
		c.rect("page", x, 10, 270, 380)
		c.text("strong", "middle", x+135, 34, title)
		for i, s := range lines {
			c.text("small", "middle", x+135, 330+float64(i)*18, s)
		}
	}
	calls := func(x float64, names ...string) {
		for i, s := range names {
			c.box("box", x+float64(i)*92, 60, 84, 44, "small", s, fmt.Sprintf("call %d", i+1))
		}
	}

	panel(left, "plain: one row", "The first call locks the row until its",
		"COMMIT. The others wait for it, and", "then decide on what it has left.")
	calls(left, "transaction", "transaction", "transaction")
	c.box("held", left+60, 236, 150, 56, "small", "row, locked by call 1", "1,000 tokens")
	c.path("edge", left+42, 104, left+100, 236)
	c.path("waits", left+134, 104, left+135, 236)
	c.path("waits", left+226, 104, left+170, 236)

	panel(middle, "Shards(4): four rows", "Each call takes from a row that nobody",
		"has locked. A count that no row has", "alone is gathered from several.")
	calls(middle, "transaction", "transaction", "transaction")
	for i := range 4 {
		class, state := "held", "locked"
		if i == 3 {
			class, state = "box", "free"
		}
		c.box(class, middle+float64(i)*69, 236, 64, 56, "small", state, "250")
	}
	for i := range 3 {
		c.path("edge", middle+42+float64(i)*92, 104, middle+32+float64(i)*69, 236)
	}

	panel(right, "lease: tokens in memory", "Calls take from memory, with no lock.",
		"Each block is committed before any of", "it is handed out. A crash loses it.")
	calls(right, "goroutine", "goroutine", "goroutine")
	c.box("answer", right+45, 146, 180, 44, "small", "the process holds a block", "100 tokens")
	for i := range 3 {
		c.path("edge", right+42+float64(i)*92, 104, right+85+float64(i)*50, 146)
	}
	c.box("box", right+60, 236, 150, 56, "small", "row, locked briefly", "900 tokens")
	c.path("edge", right+135, 236, right+135, 190)
	c.text("small", "start", right+143, 218, "a block, now and then")
	return c.svg()
}
