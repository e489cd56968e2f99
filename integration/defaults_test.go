package integration

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The table of operations.md has the figures of the code.
func TestTheDefaultsAreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(read(t, "../docs/operations.md"), "## What the defaults bound")
	table, _, ok := strings.Cut(rest, "\n## ")
	row := regexp.MustCompile("(?m)^\\|.*\\| ([0-9][^|]*) \\| `([a-z/]+)\\.([A-Za-z]+)` \\|$")
	rows := row.FindAllStringSubmatch(table, -1)
	if !ok || len(rows) < 15 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	packages := map[string]*types.Scope{}
	for _, row := range rows {
		if packages[row[2]] == nil {
			packages[row[2]] = constants(t, "../"+row[2])
		}
		c, ok := packages[row[2]].Lookup(row[3]).(*types.Const)
		if !ok {
			t.Errorf("package %s has no constant %s", row[2], row[3])
			continue
		}
		if want, _ := constant.Int64Val(constant.ToInt(c.Val())); figure(t, row[1]) != want {
			t.Errorf("%s.%s is %v, and in the table %s", row[2], row[3], c.Val(), row[1])
		}
	}
}

// figure reads 1,000 and 30 s.
func figure(t *testing.T, text string) int64 {
	t.Helper()
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(strings.ReplaceAll(number, ",", ""), 10, 64)
	of, ok := map[string]time.Duration{"": 1, "s": time.Second, "min": time.Minute, "days": 24 * time.Hour}[unit]
	if err != nil || !ok {
		t.Errorf("%q is no figure", text)
	}
	return n * int64(of)
}

// constants is the scope of a package, of which only constants are sure to have types.
func constants(t *testing.T, dir string) *types.Scope {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(names) == 0 {
		t.Fatal(dir, err)
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	cfg := types.Config{Error: func(error) {}, IgnoreFuncBodies: true}
	cfg.Importer = onlyTime{importer.ForCompiler(set, "source", nil)}
	p, _ := cfg.Check(dir, set, files, nil)
	return p.Scope()
}

// onlyTime imports nothing else.
type onlyTime struct{ types.Importer }

func (i onlyTime) Import(path string) (*types.Package, error) {
	if path != "time" {
		return nil, errors.New("not needed")
	}
	return i.Importer.Import(path)
}
