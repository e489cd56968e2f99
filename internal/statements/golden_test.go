package statements

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
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
	"give":             "gives back what is left of a take, as if it had been smaller",
	"pause":            "closes a balance for a while",
	"resume":           "ends a pause early",
	"charge":           "takes whatever it leaves, ahead of those who wait",
	"settle":           "one row for the first who settles a reservation, and none after",
	"reset":            "fills a balance",
	"look":             "reads a balance: a denial rests on it",
	"lookShards":       "reads the layout of a key and all of its shards",
	"lookSpread":       "lookShards of a limit without keys, on Citus",
	"head":             "locks the row that says how many shards a key has",
	"put":              "writes a row whatever stands there, under the lock of the head",
	"closedLine":       "locks rows of a former layout, and reads when the pause of their limit ends",
	"pauseClosed":      "pauses rows of a former layout, in which somebody waits",
	"resumeClosed":     "ends their pause early",
	"resetKey":         "fills all balances of a key, of whatever limits",
	"twoPhase":         "has a transaction of the caller's own commit in two phases, on Citus",
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
	"prune":            "deletes a page of idle balances",
	"pruneSlots":       "deletes a page of slots that nobody holds",
	"pruneSettled":     "deletes a page of settlements that nobody can repeat any more",
	"lines":            "reads how the lines stand in which takes wait",
	"many.take":        "grants calls of many rows, skipping those that others have locked",
	"many.make":        "many.take that also inserts the rows that do not exist",
	"many.look":        "reads many balances",
	"many.lock":        "locks many rows, skipping those that others hold",
	"many.wait":        "waits for one row that another transaction holds",
	"many.put":         "writes what takes have left of rows that are locked",
	"many.new":         "writes what takes have left of rows that do not exist",
}

// Every statement over balances, as it is sent to the schema "public", stands in a file that can be
// read and compared: a change of a placeholder somewhere shows there as what it does to each text.
func TestGoldenFileHasEveryStatement(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	textsOf(texts, "", reflect.ValueOf(New("public", false)))
	textsOf(texts, "portable many.", reflect.ValueOf(New("public", true).Many))

	var b strings.Builder
	b.WriteString("-- The statements of package statements, as they are sent to the schema \"public\".\n" +
		"-- Made by go test ./internal/statements -run GoldenFile -update\n")
	left := maps.Clone(purposes)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		key := name
		for _, kind := range []string{"bucket.", "window.", "portable "} {
			key = strings.TrimPrefix(key, kind)
		}
		purpose, ok := purposes[key]
		if !ok {
			t.Errorf("what is the statement %s for? Say so in purposes", key)
		}
		delete(left, key)
		fmt.Fprintf(&b, "\n-- %s: %s\n%s;\n", name, purpose, texts[name])
	}
	for name := range left {
		t.Errorf("there is no statement %s any more: take it out of purposes", name)
	}
	for _, open := range []string{"{", "}"} {
		if strings.Contains(b.String(), open) {
			t.Errorf("a statement has a placeholder left: %s", open)
		}
	}

	file := filepath.Join("testdata", "statements.sql")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, got := strings.Split(string(golden), "\n"), strings.Split(b.String(), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("%s:%d differs from what is sent:\n%s\nIf that is meant: go test ./internal/statements -run GoldenFile -update, and read the diff",
				file, i+1, strings.Join(got[min(i, len(got)):min(i+3, len(got))], "\n"))
		}
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
