package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/inspect"
)

// balances looks at the first keys of each limit.
func (p *patient) balances(ctx context.Context) error {
	look, err := p.reader()
	if err != nil {
		return err
	}
	names, err := look.Names(ctx)
	if err != nil {
		return err
	}
	var odd, ahead, idle []string
	looked := 0
	for _, name := range names {
		found, next, err := look.Keys(ctx, name,
			inspect.Page{Most: min(1000, max(50, 20_000/len(names)))})
		if err != nil {
			return err
		}
		full := 0
		for _, b := range found {
			looked++
			of := printable(b.Limit) + " of " + printable(b.Key)
			switch {
			case b.Problem != "":
				odd = append(odd, of+": "+b.Problem)
			case b.WrittenAt.Sub(b.At) > time.Minute:
				ahead = append(ahead, of+" by "+lasting(b.WrittenAt.Sub(b.At)))
			case b.FullAt.IsZero() && b.PausedUntil.IsZero() &&
				b.At.Sub(b.WrittenAt) > 24*time.Hour:
				full++
			}
		}
		if next == "" || 2*full < len(found) {
			continue
		}
		l, err := look.Limit(ctx, name)
		if errors.Is(err, inspect.ErrNoBalance) {
			continue // pruned meanwhile
		}
		if err != nil {
			return err
		}
		if l.Keys >= 10_000 {
			idle = append(
				idle, fmt.Sprintf("%s (about %s keys)", printable(name), number(float64(l.Keys))),
			)
		}
	}
	if len(odd) > 0 {
		p.find(wrong,
			"Somebody has written to the table by hand. Reset them by a program that defines the limits. If that fails, delete all rows of the key.",
			"%d keys make no balance: %s", len(odd), few(odd))
	}
	if len(ahead) > 0 {
		p.find(wrong,
			`The clock was set back. "weir reset LIMIT KEY" brings a key back to the present.`,
			"%d keys were written in the future, and gain nothing until then: %s", len(ahead),
			few(ahead))
	}
	if len(idle) > 0 {
		p.find(note, `Run "weir prune", once a day.`,
			"most keys have been full for more than a day, of %s", few(idle))
	}
	if len(odd)+len(ahead)+len(idle) == 0 {
		p.find(fine, "", "%s of %s", several(int64(looked), "key"),
			several(int64(len(names)), "limit"))
	}
	return nil
}

// few are the first of many.
func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, "; ")
	}
	return fmt.Sprintf("%s; and %d more", strings.Join(all[:most], "; "), len(all)-most)
}

// settlements finds out whether the oldest can be deleted.
func (p *patient) settlements(ctx context.Context) error {
	const most = 1000
	var over int
	if err := p.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx,
			`SELECT count(*) FROM (
				SELECT until FROM `+p.table("weir_settled")+` ORDER BY id LIMIT $1::integer) s
			WHERE until <= pg_catalog.clock_timestamp()`, most).Scan(&over)
	}); err != nil {
		return err
	}
	if over == most {
		p.find(note, `Run "weir prune", once a day.`,
			"weir_settled has at least %d rows that are no longer needed", most)
	}
	return nil
}
