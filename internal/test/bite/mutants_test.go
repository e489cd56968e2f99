package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a mutant breaks stands in one place.
func TestEveryMutantFindsItsPlace(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range mutants {
		if _, _, err := m.place("../../.."); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if names[m.name] {
			t.Errorf("two mutants have the name %q", m.name)
		}
		names[m.name] = true
	}
}

// A call that is broken into lines is found, and broken as a whole.
func TestAPlaceIsFoundHoweverItsLinesAreBroken(t *testing.T) {
	t.Parallel()
	m := mutant{from: "f(a, func() { g() })", to: "h()"}
	for _, source := range []string{
		"x = f(a, func() { g() })\n",
		"x = f(\n\ta,\n\tfunc() {\n\t\tg()\n\t},\n)\n",
	} {
		if got := string(m.broken([]byte(source))); got != "x = h()\n" {
			t.Errorf("%q becomes %q", source, got)
		}
	}
}

// A line that has moved is found wherever it stands in its module, as long as it stands once.
func TestAPlaceIsFoundWhereItHasMoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  string // or the error
	}{
		"where it was":             {map[string]string{"a/a.go": "x := 1", "b/b.go": "x := 1"}, "a/a.go"},
		"moved":                    {map[string]string{"a/a.go": "", "b/b.go": "x := 1"}, "b/b.go"},
		"its file is gone":         {map[string]string{"b/b.go": "x := 1"}, "b/b.go"},
		"twice where it was":       {map[string]string{"a/a.go": "x := 1; x := 1"}, "a/a.go has 2 places"},
		"moved to two":             {map[string]string{"b/b.go": "x := 1", "c/c.go": "x := 1"}, "b/b.go, c/c.go do"},
		"twice in one":             {map[string]string{"b/b.go": "x := 1; x := 1"}, "b/b.go, b/b.go do"},
		"a test":                   {map[string]string{"b/b_test.go": "x := 1"}, "nowhere"},
		"another module":           {map[string]string{"b/go.mod": "", "b/b.go": "x := 1"}, "nowhere"},
		"another kind of file":     {map[string]string{"b/b.txt": "x := 1"}, "nowhere"},
		"what lists the mutants":   {map[string]string{"internal/test/bite/m.go": "x := 1"}, "nowhere"},
		"broken into lines":        {map[string]string{"a/a.go": "", "b/b.go": "x :=\n\t1"}, "b/b.go"},
		"gone":                     {map[string]string{"a/a.go": ""}, "nowhere"},
		"a module of its own":      {map[string]string{"a/go.mod": "", "a/b/b.go": "x := 1"}, "a/b/b.go"},
		"and not that of the root": {map[string]string{"a/go.mod": "", "b/b.go": "x := 1"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range c.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, source, err := mutant{file: "a/a.go", from: "x := 1"}.place(root)
			switch {
			case err != nil && !strings.Contains(err.Error(), c.want):
				t.Errorf("%v, want %s", err, c.want)
			case err == nil && got != filepath.FromSlash(c.want):
				t.Errorf("in %s, want %s", got, c.want)
			case err == nil && string(source) != c.files[got]:
				t.Errorf("it reads %q", source)
			}
		})
	}
}
