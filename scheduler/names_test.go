package scheduler_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// Rounds go by the newest rule that the process has defined for a limit's name. So a name belongs
// to one test: with that of another its jobs would wait by the other's rule.
func TestNoTwoTestsDefineALimitOfOneName(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	owner, names := map[string]string{}, 0
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range file.Decls {
			of := path
			if f, ok := d.(*ast.FuncDecl); ok {
				of += " " + f.Name.Name
			}
			ast.Inspect(file.Decls[i], func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				define, ok := call.Fun.(*ast.SelectorExpr)
				name, literal := call.Args[0].(*ast.BasicLit)
				if !ok || !literal || define.Sel.Name != "MustDefine" {
					return true
				}
				names++
				if first, known := owner[name.Value]; known && first != of {
					t.Errorf("%s is defined in %s and in %s", name.Value, first, of)
				}
				owner[name.Value] = of
				return true
			})
		}
	}
	if names < 100 {
		t.Errorf("only %d definitions were found", names)
	}
}
