package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/shardload"
)

const capacity = 320

// denials is what limits of different shards have denied under the same load.
type denials map[setting]*denied

type denied struct {
	even, all shardload.Played
	oneRow    float64
}

func measureDenials(
	ctx context.Context, conns []*pgxpool.Conn, looks *shardload.Looks,
) (denials, error) {
	all := denials{}
	for _, callers := range callerNumbers {
		for _, shards := range shardNumbers {
			for _, level := range levels {
				l := shardload.Load{Shards: shards, Capacity: capacity, Conns: conns[:callers],
					Looks: looks, Level: level, Work: 2 * time.Millisecond}
				s, d := setting{callers, shards, level}, &denied{}
				if err := l.Open(ctx, fmt.Sprint(s)); err != nil {
					return nil, err
				}
				even, err := l.Even(ctx)
				if err != nil {
					return nil, fmt.Errorf("%+v: %w", s, err)
				}
				d.even.Add(even)
				d.all.Add(even)
				// what it denies at READ COMMITTED cannot be told right from false
				if level == pgx.Serializable {
					surge, err := l.Surge(ctx)
					if err != nil {
						return nil, fmt.Errorf("%+v: %w", s, err)
					}
					d.all.Add(surge)
				}
				d.oneRow = l.OneRow()
				all[s] = d
			}
		}
	}
	return all, nil
}

func (d denials) table() string {
	var b strings.Builder
	b.WriteString(
		"| callers | shards | false denials | denials | of one row | looks per take | aborts per commit | READ COMMITTED: looks per take |\n",
	)
	b.WriteString("|---|---|---|---|---|---|---|---|\n")
	for _, callers := range callerNumbers {
		for _, shards := range shardNumbers {
			s, r := d[setting{callers, shards, pgx.Serializable}],
				d[setting{callers, shards, pgx.ReadCommitted}]
			fmt.Fprintf(&b, "| %d | %d | %.0f of %.0f | %.3f | %.3f | %.3f | %.3f | %.3f |\n",
				callers, shards,
				s.all.Falsely, s.all.Calls, s.all.Denied/s.all.Calls, s.oneRow/s.all.Calls,
				s.even.Looks/s.even.Calls, s.even.Aborts/s.even.Calls, r.even.Looks/r.even.Calls)
		}
	}
	return b.String()
}
