// Package checks has the analyzers of the command weirvet, for programs that run analyzers
// themselves: a multichecker of your own, or a linter that takes plugins.
//
// They report what is wrong for certain, or nearly so, and are silent where they cannot tell.
// A Result that is passed on, returned or stored counts as looked at. Except weirsetter they skip
// test files, which often take tokens without looking, or break the rules of InTx on purpose.
//
// Where the code is right and a report is wrong, say in the code that it is meant: assign the
// Result to a blank, as in
//
//	_, _ = limits.RateLimit(ctx, Seen.For(user)) // only counts
package checks

import (
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzers returns all checks.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{weirResult, weirRunAt, weirSetter, weirInTx, weirName}
}

// calls are the calls of a package. Those in test files are left out unless tests is set.
func calls(pass *analysis.Pass, tests bool) func(yield func(inspector.Cursor, *ast.CallExpr) bool) {
	root := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
	return func(yield func(inspector.Cursor, *ast.CallExpr) bool) {
		for c := range root.Preorder((*ast.CallExpr)(nil)) {
			call := c.Node().(*ast.CallExpr)
			if !tests && inTest(pass, call.Pos()) {
				continue
			}
			if !yield(c, call) {
				return
			}
		}
	}
}

func inTest(pass *analysis.Pass, at token.Pos) bool {
	return strings.HasSuffix(pass.Fset.File(at).Name(), "_test.go")
}
