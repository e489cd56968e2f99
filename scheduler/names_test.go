package scheduler_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// Rounds go by the newest rule that the process has defined for a limit's name. So a name belongs
// to one test: with that of another its jobs would wait by the other's rule. Subtests, which run at
// the same time, either define the same rule or put their names into the limit's.
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
				if r, ok := n.(*ast.RangeStmt); ok {
					for _, name := range definedDifferently(r) {
						t.Errorf("%s: subtests define %s by different rules", of, name)
					}
				}
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

// definedDifferently returns the names of limits whose definitions depend on what a loop ranges
// over, or on what its body has computed.
func definedDifferently(loop *ast.RangeStmt) (names []string) {
	changes := map[string]bool{}
	for _, x := range []ast.Expr{loop.Key, loop.Value} {
		if id, ok := x.(*ast.Ident); ok {
			changes[id.Name] = true
		}
	}
	ast.Inspect(loop.Body, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, x := range a.Lhs {
				if id, ok := x.(*ast.Ident); ok {
					changes[id.Name] = true
				}
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) < 2 {
			return true
		}
		define, ok := call.Fun.(*ast.SelectorExpr)
		name, literal := call.Args[0].(*ast.BasicLit)
		if !ok || !literal || define.Sel.Name != "MustDefine" {
			return true
		}
		for _, arg := range call.Args[1:] {
			ast.Inspect(arg, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && changes[id.Name] {
					names = append(names, name.Value)
				}
				return true
			})
		}
		return true
	})
	return names
}
