package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"
)

// config is how long a run takes.
type config struct {
	warm, length, audit time.Duration
	rounds, keys        int
	durableOnly         bool
}

// bench measures all contenders in slices of time, over and over, as only what was measured at the
// same time can be compared on a machine that does other things as well: in each round all
// contenders follow each other in each setting, and each round begins with another.
type bench struct {
	config
	rig  *rig
	open map[string]map[setting]limiter
	many []string
}

func (b *bench) measure(ctx context.Context, all []contender) (f *figures, err error) {
	f, b.many, b.open = newFigures(all), numbered(b.keys), map[string]map[setting]limiter{}
	defer func() {
		for _, bySetting := range b.open {
			for _, l := range bySetting {
				err = errors.Join(err, l.close())
			}
		}
	}()
	for _, c := range all {
		b.open[c.name] = map[setting]limiter{}
		for s := range f.cells[c.name] {
			l, err := c.open(ctx, b.rig.at(s.callers), limitOf[s.workload])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			b.open[c.name][s] = l
		}
	}
	log.Println("keys")
	if err := b.fill(ctx, all); err != nil {
		return nil, err
	}
	for round := range b.rounds {
		for _, w := range workloads {
			for _, n := range callers {
				log.Printf("round %d of %d: %s, %s", round+1, b.rounds, w, callersText(n))
				for i := range all {
					if err := b.slice(ctx, f, all[(i+round*len(all)/b.rounds)%len(all)],
						setting{w, n}); err != nil {
						return nil, err
					}
				}
			}
		}
		log.Printf("round %d of %d: most are denied", round+1, b.rounds)
		for i := range all {
			if err := b.auditOf(ctx, f, all[(i+round*len(all)/b.rounds)%len(all)],
				round); err != nil {
				return nil, err
			}
		}
		s, err := load{1, b.many, b.warm, b.length}.run(ctx, nothing{})
		if err != nil {
			return nil, err
		}
		f.empty.add(s)
	}
	return f, nil
}

// fill makes the rows of the many keys, which a program that runs for long has.
func (b *bench) fill(ctx context.Context, all []contender) error {
	done := map[string]bool{"": true}
	for _, c := range all {
		if done[c.table] || c.oneKey {
			continue
		}
		done[c.table] = true
		if err := touch(ctx, b.open[c.name][setting{manyKeys, 64}], b.many, 64); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if _, err := b.rig.at(1).pool.Exec(ctx, "VACUUM ANALYZE "+c.table); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) slice(ctx context.Context, f *figures, c contender, s setting) error {
	cell, ok := f.cells[c.name][s]
	if !ok {
		return nil
	}
	keys := b.many
	if s.workload == oneKey {
		keys = []string{fmt.Sprintf("%s, %d callers", c.name, s.callers)}
	}
	did, err := load{s.callers, keys, b.warm, b.length}.run(ctx, b.open[c.name][s])
	if err != nil {
		return fmt.Errorf("%s, %s, %s: %w", c.name, s.workload, callersText(s.callers), err)
	}
	if did.granted < did.all { // the figures would be those of something else
		return fmt.Errorf("%s, %s, %s: an ample limit has denied %d of %d calls", c.name,
			s.workload, callersText(s.callers),
			did.all-did.granted, did.all)
	}
	cell.add(did)
	return nil
}

func (b *bench) auditOf(ctx context.Context, f *figures, c contender, round int) error {
	l, err := c.open(ctx, b.rig.at(auditors), denying)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	did, err := load{auditors, []string{fmt.Sprintf("%s, audit %d", c.name, round)}, 0,
		b.audit}.run(ctx, l)
	if err = errors.Join(err, l.close()); err != nil {
		return fmt.Errorf("%s, most are denied: %w", c.name, err)
	}
	f.audits[c.name].add(did, denying)
	return nil
}
