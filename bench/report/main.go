// The program report compares Weir with other rate limiters, on a Postgres and a Redis of its own,
// and writes what docs/benchmarks.md shows:
//
//	go run ./report -docs ../docs
//
// It takes about twenty minutes. Everything on the page is of one run, except what -durable
// measures by itself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/bench/internal/page"
)

// quick is a run that shows only that everything works.
var quick = config{warm: 10 * time.Millisecond, length: 30 * time.Millisecond,
	audit: 100 * time.Millisecond, rounds: 1, keys: 200}

func main() {
	log.SetFlags(log.Ltime)
	c := config{}
	docs := flag.String(
		"docs", "", "the folder of benchmarks.md and its pictures; none: print the tables",
	)
	flag.DurationVar(&c.length, "for", 2*time.Second,
		"how long each contender is measured in each setting, in each round")
	flag.DurationVar(&c.warm, "warm", 500*time.Millisecond, "how long it is called before")
	flag.DurationVar(&c.audit, "audit", 3*time.Second,
		"how long its grants are counted, in each round")
	flag.IntVar(&c.rounds, "rounds", 3, "of which the median counts")
	flag.IntVar(&c.keys, "keys", 100_000, "that are many")
	smoke := flag.Bool("quick", false,
		"measure for so short a time that the figures mean nothing, whatever the other flags say")
	flag.BoolVar(&c.durableOnly, "durable", false,
		"measure only what synchronous_commit = on costs")
	flag.Parse()
	if *smoke {
		only := c.durableOnly
		c = quick
		c.durableOnly = only
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, c, *docs)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func (c config) check() error {
	if c.length <= 0 || c.warm < 0 || c.audit <= 0 || c.rounds < 1 || c.keys < 1 {
		return errors.New("-for, -audit, -rounds and -keys must be above 0, and -warm not below")
	}
	return nil
}

func run(ctx context.Context, c config, docs string) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	r, err := newRig(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	m, err := newMachine(ctx, r.at(1))
	if err != nil {
		return err
	}
	began := time.Now()
	b := &bench{config: c, rig: r}
	d, err := b.durable(ctx, contenders())
	if err != nil {
		return err
	}
	if c.durableOnly {
		return show(docs, map[string]string{"durable": d.part(c)})
	}
	f, err := b.measure(ctx, contenders())
	if err != nil {
		return err
	}
	log.Printf("done in %v", time.Since(began).Round(time.Second))
	parts := f.parts()
	parts["machine"] = m.String()
	parts["run"] = c.String() + f.emptyText()
	parts["durable"] = d.part(c)
	if err := show(docs, parts); err != nil || docs == "" {
		return err
	}
	return f.draw(docs)
}

// show writes the parts into the page, or prints them if there are no docs.
func show(docs string, parts map[string]string) error {
	if docs != "" {
		return page.Fill(filepath.Join(docs, "benchmarks.md"), parts)
	}
	for _, name := range []string{"machine", "run", "short", "contenders", "many", "one", "durable",
		"audit", "loses"} {
		if part, ok := parts[name]; ok {
			fmt.Printf("%s\n", part)
		}
	}
	return nil
}
