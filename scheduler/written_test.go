package scheduler_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// writesJobs finds what writes to the table of jobs.
var writesJobs = regexp.MustCompile(
	`(?i)\b(UPDATE(\s+ONLY)?|INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE|COPY)\s+(\{river\})?"?river_job\b`)

// textOf is the text of a string, or of several that are added up.
func textOf(n ast.Node) string {
	var text strings.Builder
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, _ := strconv.Unquote(lit.Value)
			text.WriteString(s)
		}
		return true
	})
	return text.String()
}

// writers are the names of the statements of a file that write to river_job. One without a name is
// called by its place.
func writers(t *testing.T, path string) (names []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, value := range n.Values {
				if writesJobs.MatchString(textOf(value)) {
					names = append(names, n.Names[i].Name)
				}
			}
			return false
		case *ast.BasicLit:
			if writesJobs.MatchString(textOf(n)) {
				names = append(names, files.Position(n.Pos()).String())
			}
		}
		return true
	})
	return names
}

// The package page lists each statement that writes to river_job, and no other.
func TestThePackagePageListsWhatWritesToJobs(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, root := range []string{".", "../internal/jobs"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				for _, name := range writers(t, path) {
					found[name] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "// # What it writes\n")
	section, _, ends := strings.Cut(section, "\n// # ")
	if !ok || !ends {
		t.Fatal("the package page has no section that says what is written")
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^//   - (\w+)`).FindAllStringSubmatch(section, -1) {
		listed[m[1]] = true
	}
	if len(found) == 0 || !maps.Equal(found, listed) {
		t.Errorf("%v write to river_job, and the package page lists %v",
			slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(listed)))
	}
}
