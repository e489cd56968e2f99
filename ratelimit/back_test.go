package ratelimit

import (
	"slices"
	"testing"

	"github.com/weir-go/weir/shard"
)

// The closed rows say which layouts a limit had between two others, and in which order. Rows of
// earlier and later layouts do not count, and neither do rows that no layout has.
func TestClosedRowsTellTheLayouts(t *testing.T) {
	t.Parallel()
	layout := func(generation, shards int) shard.Layout { return shard.Layout{Shards: shards, Generation: generation} }
	odd := int32(1<<20 - 1)
	if shard.IsRow(odd) {
		t.Fatal("it is a row")
	}
	l := look{shards: []int32{0, layout(3, 5).Row(4), layout(1, 4).Row(0), odd, layout(2, 8).Row(1), layout(2, 8).Row(7),
		layout(4, 2).Row(0), layout(5, 3).Row(2)}}
	for _, c := range []struct {
		from, to shard.Layout
		want     []int
	}{
		{layout(1, 4), layout(4, 2), []int{4, 8, 5, 2}},
		{shard.Single, layout(3, 5), []int{1, 4, 8, 5}},
		{layout(2, 8), layout(3, 5), []int{8, 5}},
		{layout(3, 5), shard.Single, []int{5, 1}}, // it was pruned, and begins anew
	} {
		if got := l.layouts(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("from %v to %v: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
