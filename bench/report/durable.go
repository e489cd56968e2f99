package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"
)

// durableSettings are measured with synchronous_commit off and on.
var durableSettings = []setting{{manyKeys, 1}, {manyKeys, 64}, {oneKey, 64}}

// durables have what was measured on Postgres with synchronous_commit off and on, by the
// contender's name.
type durables struct {
	contenders []contender
	cells      map[string]map[setting]*[2]cell
	began      time.Time
}

// durable measures the contenders on Postgres. For each setting it measures the two ways right
// after each other, and each round begins with the other one.
func (b *bench) durable(ctx context.Context, all []contender) (*durables, error) {
	d := &durables{cells: map[string]map[setting]*[2]cell{}, began: time.Now()}
	keys, done := numbered(min(b.keys, 10_000)), map[string]bool{"": true}
	for _, c := range all {
		if c.family != weir && c.family != postgres {
			continue
		}
		d.contenders = append(d.contenders, c)
		d.cells[c.name] = map[setting]*[2]cell{}
		for _, s := range durableSettings {
			if s.workload == oneKey || !c.oneKey {
				d.cells[c.name][s] = &[2]cell{}
			}
		}
		if done[c.table] || c.oneKey {
			continue
		}
		done[c.table] = true
		err := b.with(ctx, c, b.rig.at(64), manyKeys, func(l limiter) error {
			return touch(ctx, l, keys, 64)
		})
		if err != nil {
			return nil, err
		}
	}
	for round := range b.rounds {
		for _, s := range durableSettings {
			log.Printf("round %d of %d: %s, %s, synchronous_commit off and on", round+1, b.rounds,
				s.workload, callersText(s.callers))
			for _, c := range d.contenders {
				for i := range 2 {
					if err := b.durableSlice(ctx, d, c, s, (i+round)%2, keys); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return d, nil
}

// durableSlice measures one way, where on is 1 for synchronous_commit = on.
func (b *bench) durableSlice(
	ctx context.Context, d *durables, c contender, s setting, on int, keys []string,
) error {
	cells, ok := d.cells[c.name][s]
	if !ok {
		return nil
	}
	if s.workload == oneKey {
		keys = []string{c.name + ", durable"}
	}
	at := b.rig.at(s.callers)
	if on == 1 {
		at = b.rig.durableAt(s.callers)
	}
	return b.with(ctx, c, at, s.workload, func(l limiter) error {
		did, err := load{s.callers, keys, b.warm, b.length}.run(ctx, l)
		if err == nil && did.granted < did.all {
			err = fmt.Errorf("an ample limit has denied %d of %d calls", did.all-did.granted,
				did.all)
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", s.workload, callersText(s.callers), err)
		}
		cells[on].add(did)
		return nil
	})
}

// with opens a contender for as long as fn runs.
func (b *bench) with(ctx context.Context, c contender, at place, w workload,
	fn func(limiter) error) error {
	l, err := c.open(ctx, at, limitOf[w])
	if err == nil {
		err = errors.Join(fn(l), l.close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// part is the part of the page.
func (d *durables) part(c config) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, s := range durableSettings {
		for _, mode := range []string{"off", "on"} {
			fmt.Fprintf(&b, " %s, %s: %s |", s.workload, callersText(s.callers), mode)
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", 2*len(durableSettings)) + "\n")
	for _, c := range d.contenders {
		fmt.Fprintf(&b, "| %s |", c.name)
		for _, s := range durableSettings {
			cells, ok := d.cells[c.name][s]
			if !ok {
				b.WriteString(" - | - |")
				continue
			}
			for i := range cells {
				cell := &cells[i]
				fmt.Fprintf(&b, " %s (%s, %s) |", thousands(cell.rate()),
					duration(median(cell.p50)), duration(median(cell.p99)))
			}
		}
		b.WriteString("\n")
	}
	rounds := "one round"
	if c.rounds > 1 {
		rounds = fmt.Sprintf("the median of %d rounds", c.rounds)
	}
	return b.String() + "\n" +
		wrap(fmt.Sprintf("Measured on %s: %s of %v. The machine was shared with other programs, so compare "+
			"only the two figures beside each other.", d.began.UTC().Format(time.DateOnly), rounds,
			c.length), "") + "\n"
}
