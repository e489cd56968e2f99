package slots

import (
	"flag"
	"testing"

	"github.com/weir-go/weir/internal/test/engines"
	"github.com/weir-go/weir/internal/test/names"
)

var update = flag.Bool("update", false, "write testdata/statements.sql anew")

// Every statement over slots, as it is sent, stands in a file. Each parameter has a type, as Citus
// wants it.
func TestGoldenFileHasEveryStatement(t *testing.T) {
	t.Parallel()
	s := newStatements("public")
	purposes := map[string]string{
		"acquire":         "takes a slot, or none if all are held",
		"acquireBound":    "acquire in a transaction of its own, which waits for no row for long",
		"find":            "on Citus, the first half of acquire: finds a number that is free",
		"take":            "on Citus, its second half: takes that number, if nobody else has it",
		"left":            "makes those take turns that count slots left by a larger n",
		"claim":           "takes over a slot that was given to a job",
		"tidy":            "frees the slot of a call whose answer was lost",
		"renewFree":       "renews slots, except those whose rows are locked",
		"renew.several":   "renews slots of several keys",
		"renew.one":       "renews slots of one key",
		"release.several": "frees slots of several keys",
		"release.one":     "frees slots of one key",
		"count.several":   "counts the slots of several keys that are held",
		"count.one":       "counts those of one key",
	}
	texts := map[string]string{
		"acquire": s.acquire, "acquireBound": s.acquireBound, "find": s.find, "take": s.take, "left": s.left, "claim": s.claim,
		"tidy": s.tidy, "renewFree": s.renewFree,
		"renew.several": s.renew.several, "renew.one": s.renew.one,
		"release.several": s.release.several, "release.one": s.release.one,
		"count.several": s.count.several, "count.one": s.count.one,
	}
	for name, sql := range texts {
		if untyped := engines.Untyped(sql); len(untyped) > 0 {
			t.Errorf("%s has no type for the parameters %v", name, untyped)
		}
	}
	names.Golden(t, texts, func(name string) string { return purposes[name] }, *update)
}
