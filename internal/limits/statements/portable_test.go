package statements

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/test/engines"
)

// Nothing creeps into the statements of Config.Portable that other engines do not take.
func TestPortableStatementsKeepToWhatOtherEnginesTake(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	textsOf(texts, "", reflect.ValueOf(New("", true)))
	other := map[string]bool{ // that Portable does not send, and why the list would refuse them
		"bucket.takeOwn": true, "bucket.takeShard": true, "bucket.takeShardWithin": true,
		"window.takeOwn": true, "window.takeShard": true, "window.takeShardWithin": true,
		"bucket.takeParts": true, "window.takeParts": true,
		"bucket.giveShard": true, "window.giveShard": true, "chargeShard": true,
		"prune": true, "pruneSlots": true, "resetKey": true,
		"twoPhaseIf": true, "ranges": true, // for Citus
		"inRange.take": true, "inRange.lock": true,
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		problems := engines.Problems(texts[name])
		switch {
		case other[name] && len(problems) == 0:
			t.Errorf("%s is not for Portable, and the list finds nothing in it: it does not bite", name)
		case !other[name] && len(problems) > 0:
			t.Errorf("%s has %s", name, strings.Join(problems, "; "))
		}
	}
	for name := range other {
		if texts[name] == "" {
			t.Errorf("there is no statement %s any more", name)
		}
	}
}

// Those for Citus keep to other rules, but each parameter has a type there, too: see
// [engines.Untyped]. A statement over many rows that is for plain Postgres alone shows that the list
// bites.
func TestParametersHaveTypes(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	textsOf(texts, "", reflect.ValueOf(New("public", false)))
	textsOf(texts, "portable many.", reflect.ValueOf(New("public", true).Many))
	for name, sql := range texts {
		if untyped := engines.Untyped(sql); len(untyped) > 0 {
			t.Errorf("%s has no type for the parameters %v", name, untyped)
		}
	}
	if found := engines.Problems(texts["many.make"]); !slices.ContainsFunc(found, func(s string) bool {
		return strings.HasPrefix(s, "two changes of ")
	}) {
		t.Errorf("many.make inserts and updates, and the list finds %q in it", found)
	}
}
