package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-go/weir/shard"
)

// Consecutive shards have different homes, as many as there are, and a row that is no shard has
// none.
func TestShardsHaveDifferentHomes(t *testing.T) {
	t.Parallel()
	for generation, name := range []string{"hot", "name", "api"} {
		l := shard.Layout{Shards: shard.Homes, Generation: generation}
		homes := map[string]bool{}
		for i := range l.Shards {
			nr, ok := shard.HomeOf(name, l.Row(i))
			if !ok || !strings.HasPrefix(shard.Home(nr), shard.Reserved) {
				t.Fatalf("shard %d of %s: %d, %v", i, name, nr, ok)
			}
			homes[shard.Home(nr)] = true
		}
		if len(homes) != shard.Homes {
			t.Errorf("%d shards of %s have %d homes", l.Shards, name, len(homes))
		}
		for _, row := range []int32{-1, 0} {
			if nr, ok := shard.HomeOf(name, row); ok {
				t.Errorf("row %d of %s has home %d", row, name, nr)
			}
		}
	}
}

// Rows are found by their homes, so those stay as they are.
func ExampleHomeOf() {
	two := shard.Layout{Shards: 2, Generation: 1}
	for i := range two.Shards {
		nr, _ := shard.HomeOf("hot", two.Row(i))
		fmt.Printf("%d %q\n", nr, shard.Home(nr))
	}
	// Output:
	// 16 "\x01weir fmn"
	// 17 "\x01weir pgg"
}
