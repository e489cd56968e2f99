package riverjob

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ReckonEach is Reckon outside of transactions. If a worker of Citus is down, it asks for the jobs
// of each node by themselves. Jobs whose balances it cannot read keep their times.
func (c *Client) ReckonEach(
	ctx context.Context, q Querier, jobs []*Waiter,
) (now time.Time, err error) {
	for _, w := range jobs {
		w.Unread = nil
	}
	if now, err = c.Reckon(ctx, q, jobs); !IsDown(err) {
		return now, err
	}
	c.Warn(err, "jobs whose limits could not be read keep their times")
	parts, other := c.byNode(ctx, q, jobs)
	if other != nil {
		return now, errors.Join(err, other)
	}
	for _, part := range parts {
		at, failed := c.Reckon(ctx, q, part)
		switch {
		case failed == nil:
			now, err = at, nil
		case !IsDown(failed):
			return now, failed
		default:
			for _, w := range part {
				w.Due, w.Unread = w.At, failed
			}
		}
	}
	return now, err // none if some were read
}

// nodesSQL tells on which nodes of Citus keys are.
//
// $1 keys $2 the table of balances
const nodesSQL = `SELECT k.key, (SELECT p.groupid FROM pg_catalog.pg_dist_placement p
	WHERE p.shardid OPERATOR(pg_catalog.=) pg_catalog.get_shard_id_for_distribution_column($2::text::regclass, k.key))
FROM pg_catalog.unnest($1::text[]) AS k (key)`

// byNode divides jobs by the nodes that have their keys. A limit without keys may be on several
// nodes, and its jobs are a part of their own.
func (s Store) byNode(
	ctx context.Context, q Querier, jobs []*Waiter,
) (parts map[string][]*Waiter, err error) {
	nodes := map[string]int{} // of keys
	for _, w := range jobs {
		for _, r := range w.Ticket.Rows() {
			nodes[r[1]] = 0
		}
	}
	var key string
	var node int
	args := []any{slices.Collect(maps.Keys(nodes)), s.Limiter.Table()}
	err = s.Query(ctx, q, nodesSQL, args, func() { nodes[key] = node }, &key, &node)
	parts = map[string][]*Waiter{}
	for _, w := range jobs {
		of := map[string]bool{}
		for _, r := range w.Ticket.Rows() {
			if r[1] == "" {
				of["limit "+r[0]] = true
			} else {
				of[fmt.Sprint("node ", nodes[r[1]])] = true
			}
		}
		part := fmt.Sprint(of) // which sorts them
		parts[part] = append(parts[part], w)
	}
	return parts, err
}
