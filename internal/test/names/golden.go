package names

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Golden compares statements, as they are sent to the schema "public", with the file
// testdata/statements.sql of the package under test, where they can be read and compared: a change
// of a part that several share shows there as what it does to each text. With update it writes the
// file. purpose says in a few words what a statement is for.
func Golden(t testing.TB, texts map[string]string, purpose func(name string) string, update bool) {
	t.Helper()
	var b strings.Builder
	b.WriteString("-- The statements of this package, as they are sent to the schema \"public\".\n" +
		"-- Made by go test -run GoldenFile -update\n")
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		what := purpose(name)
		if what == "" {
			t.Errorf("what is the statement %s for? Say so where the purposes are", name)
		}
		fmt.Fprintf(&b, "\n-- %s: %s\n%s;\n", name, what, strings.TrimSpace(texts[name]))
	}
	for _, open := range []string{"{", "}"} {
		if rest := strings.ReplaceAll(b.String(), "'{}'", ""); strings.Contains(rest, open) {
			t.Errorf("a statement has a placeholder left: %s", open)
		}
	}

	file := filepath.Join("testdata", "statements.sql")
	if update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil { //nolint:gosec // to be read by all
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
			t.Fatalf("%s:%d differs from what is sent:\n%s\nIf that is meant: go test -run GoldenFile -update, and read the diff",
				file, i+1, strings.Join(got[min(i, len(got)):min(i+3, len(got))], "\n"))
		}
	}
}
