package statements

import (
	"flag"
	"maps"
	"reflect"
	"strings"
	"testing"

	check "github.com/weir-go/weir/internal/test/names"
)

var update = flag.Bool("update", false, "write testdata/statements.sql anew")

// purposes say when each statement is sent. The names are those of the fields of Statements,
// ForRule and Many, with a small first letter.
var purposes = map[string]string{
	"take":             "grants a call for one row, or answers with no row",
	"takeWithin":       "grants it for later, in a pause too, if it may run in time",
	"takeOrFail":       "take, for SendBatch: fails the transaction in place of no row",
	"takeWithinOrFail": "takeWithin, for SendBatch",
	"takeOwn":          "take, of a shard that nobody else is expected to hold: no row if somebody does",
	"takeShard":        "take, of the first of several shards that no other transaction holds",
	"takeShardWithin":  "takeWithin, of the first of several shards",
	"takeParts":        "takes equal parts of a call from several shards, if no other transaction holds them",
	"give":             "gives back what is left of a take, as if it had been smaller",
	"giveShard":        "give, of a shard: takes prefer others until the transaction ends",
	"pause":            "closes a balance for a while",
	"resume":           "ends a pause early",
	"charge":           "takes tokens even if that leaves a debt, ahead of work that waits",
	"chargeShard":      "charge, of a shard: takes prefer others until the transaction ends",
	"settle":           "notes a settlement; no row if the reservation was settled before",
	"reset":            "fills a balance",
	"look":             "reads a balance: every denial is based on it",
	"lookShards":       "reads the layout of a key and all of its shards",
	"lookSpread":       "lookShards of a limit without keys, on Citus",
	"lookClosed":       "reads which layouts a limit has had",
	"head":             "locks the row that says how many shards a key has",
	"put":              "overwrites a row, under the lock of the head",
	"closedLine":       "locks rows of a former layout, and reads when the pause of their limit ends",
	"pauseClosed":      "pauses rows of a former layout, in which work waits",
	"resumeClosed":     "ends their pause early",
	"resetKey":         "fills the balances of a key in all limits",
	"twoPhase":         "requests two-phase commit for a transaction of the caller's own, on Citus",
	"twoPhaseIf":       "the same at COMMIT, if the transaction has written the coordinator",
	"resetKeyHere":     "resetKey, Portable",
	"page":             "reads a page of balances, and which are idle; Portable, like those that follow",
	"lockKey":          "locks those of a key",
	"countKey":         "counts them",
	"deleteRows":       "deletes some of them",
	"pageSlots":        "reads a page of slots, and which are forgotten",
	"deleteSlot":       "deletes one",
	"pageSettled":      "reads a page of settlements, and which are over",
	"deleteSettled":    "deletes one",
	"ranges":           "reads by which ranges of hashes Citus divides the balances",
	"inRange.take":     "many.take for rows that Citus keeps in one table, as those that follow",
	"inRange.look":     "reads them",
	"inRange.lock":     "locks them, skipping those that others hold",
	"prune":            "deletes a page of idle balances",
	"pruneSlots":       "deletes a page of slots that nobody holds",
	"pruneSettled":     "deletes a page of settlements that nobody can repeat any more",
	"lines":            "reads the balances for which work waits",
	"many.take":        "grants calls of many rows, skipping those that others have locked",
	"many.make":        "many.take that also inserts the rows that do not exist",
	"many.look":        "reads many balances",
	"many.lock":        "locks many rows, skipping those that others hold",
	"many.wait":        "waits for one row that another transaction holds",
	"many.put":         "writes the new balances of rows that are locked",
	"many.new":         "inserts the balances of rows that did not exist",
}

// Every statement over balances, as it is sent, stands in a file.
func TestGoldenFileHasEveryStatement(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	textsOf(texts, "", reflect.ValueOf(New("public", false)))
	textsOf(texts, "portable many.", reflect.ValueOf(New("public", true).Many))
	left := maps.Clone(purposes)
	check.Golden(t, texts, func(name string) string {
		for _, kind := range []string{"bucket.", "window.", "portable "} {
			name = strings.TrimPrefix(name, kind)
		}
		delete(left, name)
		return purposes[name]
	}, *update)
	for name := range left {
		t.Errorf("there is no statement %s any more: take it out of purposes", name)
	}
}

// textsOf collects the texts of a struct by the names of its fields.
func textsOf(texts map[string]string, prefix string, v reflect.Value) {
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Name, v.Field(i)
		name = strings.ToLower(name[:1]) + name[1:]
		switch {
		case name == "names":
		case field.Kind() == reflect.Struct:
			textsOf(texts, prefix+name+".", field)
		case field.String() != "":
			texts[prefix+name] = field.String()
		}
	}
}
