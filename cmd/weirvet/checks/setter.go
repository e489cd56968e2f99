package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/edge"
)

var weirSetter = &analysis.Analyzer{
	Name: "weirsetter",
	Doc: `report methods whose only effect is their result, where that is dropped

A Request never changes. Its methods return changed copies, so this asks for one token, not five:

	request := Uploads.For(user)
	request.Count(5) // no effect
	err := limiter.Consume(ctx, tx, request)

Assign the result: request = request.Count(5). The check also covers the methods of Limit, Result,
Reservation, Take, slots.Request, httplimit.Ask and rpclimit.Ask.`,
	URL:      "https://pkg.go.dev/" + weirPath + "/cmd/weirvet/checks",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      runSetter,
}

// values are the types whose methods have no effect but their results, except those with pointer
// receivers.
var values = map[string][]string{
	ratelimitPath: {"Limit", "Request", "Result", "Reservation", "Take"},
	slotsPath:     {"Limit", "Request"},
	httplimitPath: {"Ask"},
	rpclimitPath:  {"Ask"},
}

func runSetter(pass *analysis.Pass) (any, error) {
	for c, call := range calls(pass, anywhere) {
		for c.ParentEdgeKind() == edge.ParenExpr_X {
			c = c.Parent()
		}
		if c.ParentEdgeKind() != edge.ExprStmt_X {
			continue
		}
		fn := callee(pass.TypesInfo, call)
		if !isPure(fn) {
			continue
		}
		_, typ := typeName(fn.Signature().Recv().Type())
		results := fn.Signature().Results()
		if fn.Name() == "Err" && typ == "Result" {
			pass.ReportRangef(call, "the error of Err is dropped: it is the denial")
			continue
		}
		if results.Len() != 1 ||
			!types.Identical(results.At(0).Type(), fn.Signature().Recv().Type()) {
			pass.ReportRangef(call, "the result of %s is dropped, and the call has no other effect",
				fn.Name())
			continue
		}
		pass.Report(analysis.Diagnostic{
			Pos: call.Pos(), End: call.End(),
			Message: "the result of " + fn.Name() + " is dropped: it is a changed copy, and the " +
				typ + " itself never changes",
			SuggestedFixes: assignsIt(pass, call),
		})
	}
	return nil, nil
}

// isPure tells whether fn is a method that has no effect but its results.
func isPure(fn *types.Func) bool {
	if fn == nil || fn.Pkg() == nil || fn.Signature().Recv() == nil {
		return false
	}
	recv := fn.Signature().Recv().Type()
	if _, ok := recv.(*types.Pointer); ok {
		return false
	}
	return isNamed(recv, fn.Pkg().Path(), values[fn.Pkg().Path()]...)
}

// assignsIt changes `r.Count(5).OrReserve()` to `r = r.Count(5).OrReserve()`, if r is a variable.
func assignsIt(pass *analysis.Pass, call *ast.CallExpr) []analysis.SuggestedFix {
	of := pass.TypesInfo.TypeOf(call)
	for e := ast.Expr(call); ; {
		switch x := e.(type) {
		case *ast.CallExpr:
			on := receiver(x)
			if on == nil || !types.Identical(pass.TypesInfo.TypeOf(on), of) {
				return nil
			}
			e = on
		case *ast.Ident:
			if v, ok := pass.TypesInfo.Uses[x].(*types.Var); !ok || v.Parent() == pass.Pkg.Scope() {
				return nil
			}
			return []analysis.SuggestedFix{{
				Message: "Assign the result to " + x.Name,
				TextEdits: []analysis.TextEdit{{
					Pos: call.Pos(), End: call.Pos(), NewText: []byte(x.Name + " = "),
				}},
			}}
		default:
			return nil
		}
	}
}
