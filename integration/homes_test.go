package integration

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/shard"
)

// With as many ranges as Citus makes by default, or fewer, rows without a key are in the same one as
// what is settled of them.
func TestWhatIsSettledWithoutAKeyHashesLikeTheEmptyKey(t *testing.T) {
	t.Parallel()
	var empty, home int
	if err := pgtest.Pool(t).QueryRow(t.Context(), `SELECT hashtext('') >> 27, hashtext($1) >> 27`,
		shard.Home(shard.Beside)).Scan(&empty, &home); err != nil {
		t.Fatal(err)
	}
	if empty != home {
		t.Errorf("of 32 ranges the empty key is in number %d, and the home in %d", empty, home)
	}
}

// Citus divides what Postgres' hash of a key may be into ranges, and gives each node every n-th. Of
// two shards in a row, one is as far from the start as the other is from the end: they are on
// different nodes of two. Of two such pairs, none is on the same of four.
func TestShardsInARowHaveComplementaryHashes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var top [shard.Homes]uint32 // the first eight bits
	for nr := range top {
		var hash int32
		if err := pool.QueryRow(t.Context(), `SELECT hashtext($1)`, shard.Home(nr)).Scan(&hash); err != nil {
			t.Fatal(err)
		}
		top[nr] = uint32(int64(hash)+1<<31) >> 24
	}
	for nr := 0; nr < shard.Homes; nr += 4 {
		a, b, c, d := top[nr], top[nr+1], top[nr+2], top[nr+3]
		if a^b != 0xff || c^d != 0xff || a^c != 0x55 && a^c != 0xaa {
			t.Errorf("homes %d to %d begin with %08b %08b %08b %08b", nr, nr+3, a, b, c, d)
		}
	}
	for _, ranges := range []uint32{4, 8, 16, 32, 64, 128, 256} {
		for nodes := uint32(2); nodes <= 4; nodes += 2 {
			for n := int(nodes); n <= shard.Homes; n += int(nodes) {
				on := map[uint32]int{}
				for nr := range n {
					on[top[nr]*ranges/256%nodes]++
				}
				for node := range nodes {
					if on[node] != n/int(nodes) {
						t.Fatalf("%d shards in %d ranges on %d nodes: %v", n, ranges, nodes, on)
					}
				}
			}
		}
	}
}
