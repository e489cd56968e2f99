package main

import (
	"fmt"
	"strings"

	"github.com/weir-go/weir/internal/shardsim"
)

// simulated are two tables: of shards for callers, and of tokens for shards.
func simulated() string {
	play := func(shards, callers, processes int, counts, load float64) shardsim.Report {
		return shardsim.Play(shardsim.Crowd{
			Shards: shards, Callers: callers, Processes: processes, Load: load, Takes: 20_000, Seed: 1,
			Capacity: counts * shardsim.MeanCount * float64(shards),
		})
	}
	percent := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	var b strings.Builder
	b.WriteString("| callers | 1 shard | 4 shards | 16 shards | 64 shards | 128 shards |\n|---|---|---|---|---|---|\n")
	for _, callers := range callerNumbers {
		fmt.Fprintf(&b, "| %d |", callers)
		for _, shards := range append(shardNumbers, 128) {
			one, many := play(shards, callers, 1, 8, 0.9), play(shards, callers, callers, 8, 0.9)
			fmt.Fprintf(&b, " %s, %s |", percent(one.Share(one.Met)), percent(many.Share(many.Met)))
		}
		b.WriteString("\n")
	}
	b.WriteString("\nTakes that had to wait for another transaction, at 90 % load: of callers of one process, and of as many processes as callers.\nA shard has eight times the mean count.\n\n")
	b.WriteString("| a shard has | load 50 % | 90 % | 99 % | without looking: 50 % | 90 % | 99 % |\n|---|---|---|---|---|---|---|\n")
	for _, counts := range []float64{2, 4, 8, 16} {
		fmt.Fprintf(&b, "| %v times the mean count |", counts)
		var looked, blind strings.Builder
		for _, load := range []float64{0.5, 0.9, 0.99} {
			one, many := play(32, 16, 1, counts, load), play(32, 16, 16, counts, load)
			fmt.Fprintf(&looked, " %s, %s |", percent(one.Share(one.Looked)), percent(many.Share(many.Looked)))
			fmt.Fprintf(&blind, " %s, %s |", percent(one.Share(one.Blind)), percent(many.Share(many.Blind)))
		}
		b.WriteString(looked.String() + blind.String() + "\n")
	}
	b.WriteString("\nTakes of 16 callers from 32 shards that had to look at all of them, again of one process and of sixteen; and, in the right\nhalf, those that would have been denied falsely if a take stood or fell with the shard that it chose.\n")
	return b.String()
}
