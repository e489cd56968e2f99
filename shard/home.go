package shard

import (
	"hash/fnv"
	"strings"
)

// Citus spreads rows over nodes by a hash of their key. All rows of a limit without keys would be
// on one node. So its shards are stored there under keys that no caller uses: their homes.

// Reserved is how the keys begin under which Citus has the shards of limits without keys. No
// caller's key may begin so.
const Reserved = "\x01weir "

// homes are the rest of these keys. They are chosen by the hash that Postgres and Citus compute of
// a key. Citus gives each node every n-th range of hashes. Every second key hashes to the
// complement of the one before it. So with two nodes, or four, each gets the same number of shards,
// however many ranges there are.
var homes = strings.Fields(`
	nqc xqp fig bap xxy viy rvj hgm ybo coe xwk buz qlg cgd ntw euw
	fmn pgg dps qra nok fqy owy gqq vtr oth jxc hwr xzl akg dcv vwi
	eyv wlw eye gts bys ybb ibk tdl zeq ohu yzh drz jvn pzg cem dhn
	atz vvk cpw mbd uih biw ima mfu eyw bnc jmi nrf ktl nfg alc tyv`)

// Homes is how many keys of their own the shards of a limit without keys have on Citus.
const Homes = 64

// Beside is the number of a home that hashes nearly like the empty key. With up to 32 ranges of
// hashes, which is Citus' default, the rows of both are on one node.
const Beside = 20

// Home returns one of these keys. They repeat after [Homes].
func Home(nr int) string { return Reserved + homes[nr%Homes] }

// HomeOf returns the number of the home of a row. Row 0 and the head, which are not shards, have
// none: they are stored without a key. The shards of a layout take the homes in turn, and each
// limit starts with a different one.
func HomeOf(name string, row int32) (nr int, ok bool) {
	if row <= 0 {
		return 0, false
	}
	_, i := Address(row)
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return (4*int(h.Sum32()%(Homes/4)) + i) % Homes, true
}
