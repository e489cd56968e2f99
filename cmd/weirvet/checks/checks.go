// Package checks has the analyzers of the command weirvet, for programs that run analyzers
// themselves: a multichecker of your own, or a linter that takes plugins.
//
// The checks report only what is almost certainly wrong. A Result that is passed on, returned or
// stored counts as looked at. Tests often take tokens without looking, or break the rules of InTx
// on purpose. So in test files only weirsetter covers everything, and weirname covers nothing.
// The other checks cover examples there.
//
// If a dropped Result is what you want, say so with blanks only:
//
//	_, _ = limits.RateLimit(ctx, Seen.For(user)) // only counts
package checks

import (
	"go/ast"
	"go/token"
	"iter"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzers returns all checks.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{weirResult, weirRunAt, weirSetter, weirInTx, weirName}
}

// scope is which calls a check is about.
type scope int

const (
	program  scope = iota // those outside of test files
	examples              // those and the examples in test files, which people copy
	anywhere
)

// calls are the calls of a package.
func calls(pass *analysis.Pass, in scope) iter.Seq2[inspector.Cursor, *ast.CallExpr] {
	root := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
	return func(yield func(inspector.Cursor, *ast.CallExpr) bool) {
		for c := range root.Preorder((*ast.CallExpr)(nil)) {
			if in != anywhere && inTest(pass, c.Node().Pos()) && (in == program || !inExample(c)) {
				continue
			}
			if !yield(c, c.Node().(*ast.CallExpr)) {
				return
			}
		}
	}
}

func inTest(pass *analysis.Pass, at token.Pos) bool {
	return strings.HasSuffix(pass.Fset.File(at).Name(), "_test.go")
}

func inExample(c inspector.Cursor) bool {
	f := declaration(c)
	return f != nil && strings.HasPrefix(f.Name.Name, "Example")
}

// declaration is the function that c is in, or nil.
func declaration(c inspector.Cursor) *ast.FuncDecl {
	for f := range c.Enclosing((*ast.FuncDecl)(nil)) {
		return f.Node().(*ast.FuncDecl)
	}
	return nil
}
