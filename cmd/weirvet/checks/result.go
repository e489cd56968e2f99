package checks

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

var weirResult = &analysis.Analyzer{
	Name: "weirresult",
	Doc: `report answers of limits that nobody looks at

A denial is a Result and not an error, so code that looks at the error alone is never limited:

	if _, err := limiter.RateLimit(ctx, tx, Uploads.For(user)); err != nil { // never denied

Look at Result.OK or Result.Err, or call Consume, which returns a denial as an error. The check
covers RateLimit and its relatives in each way of calling, takes of a lease, Jobs.InsertTx and its
relatives, Lockout.Attempt, whose error is nil for a wrong password, and the holds of package slots,
which nobody can release if they are dropped.`,
	URL:      "https://pkg.go.dev/" + weirPath + "/cmd/weirvet/checks",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      runResult,
}

func runResult(pass *analysis.Pass) (any, error) {
	for c, call := range calls(pass, examples) {
		fn := callee(pass.TypesInfo, call)
		switch {
		case isMethod(fn, lockoutPath, "Lockout", "Attempt"):
			if keeps(pass, c).dropped {
				pass.ReportRangef(call, "whether the attempt was right is dropped: Attempt returns false and no error for a wrong one")
			}
		case isMethod(fn, slotsPath, "Slots", "Acquire", "TryAcquire"):
			if keeps(pass, c).dropped {
				pass.ReportRangef(call, "the Hold of %s is dropped: its slots are never released", fn.Name())
			}
		case isVerb(fn):
			answer(pass, c, call, fn)
		}
	}
	return nil, nil
}

// answer reports a call of a verb whose Result is dropped, or is never asked whether it was granted.
func answer(pass *analysis.Pass, c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	k := keeps(pass, c)
	switch {
	case k.dropped && fn.Name() == "RateLimitMany" && keepsEach(c):
	case k.dropped && mayConsume(pass, call, fn):
		pass.Report(analysis.Diagnostic{
			Pos: call.Pos(), End: call.End(),
			Message:        "the Result of RateLimit is dropped, and with it a denial, which is no error: look at OK, or call Consume",
			SuggestedFixes: consumes(c, call),
		})
	case k.dropped:
		pass.ReportRangef(call, "the Result of %s is dropped, and with it a denial, which is no error: look at OK", fn.Name())
	case k.by != nil && looksAt(pass, c, k)&whether == 0:
		pass.ReportRangef(call, "whether %s was granted is never looked at: %s.OK is false if it was denied, and the error is nil", fn.Name(), k.by.Name())
	}
}

// keepsEach tells whether the Results of the single calls are kept: there are none if it was denied.
func keepsEach(c inspector.Cursor) bool {
	assign, ok := c.Parent().Node().(*ast.AssignStmt)
	if !ok || len(assign.Lhs) != 3 {
		return false
	}
	id, ok := assign.Lhs[1].(*ast.Ident)
	return !ok || id.Name != "_"
}

// mayConsume tells whether Consume could be called instead.
func mayConsume(pass *analysis.Pass, call *ast.CallExpr, fn *types.Func) bool {
	if fn.Name() != "RateLimit" || reserves(pass, call) {
		return false
	}
	on := receiver(call)
	if on == nil {
		return false
	}
	consume, _, _ := types.LookupFieldOrMethod(pass.TypesInfo.TypeOf(on), true, pass.Pkg, "Consume")
	m, ok := consume.(*types.Func)
	return ok && types.Identical(m.Signature().Params(), fn.Signature().Params())
}

// consumes changes `_, err := x.RateLimit(` to `err := x.Consume(`.
func consumes(c inspector.Cursor, call *ast.CallExpr) []analysis.SuggestedFix {
	assign, ok := c.Parent().Node().(*ast.AssignStmt)
	if !ok || len(assign.Lhs) != 2 || call.Ellipsis.IsValid() {
		return nil
	}
	sel := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	return []analysis.SuggestedFix{{
		Message: "Call Consume",
		TextEdits: []analysis.TextEdit{
			{Pos: assign.Lhs[0].Pos(), End: assign.Lhs[1].Pos()},
			{Pos: sel.Sel.Pos(), End: sel.Sel.End(), NewText: []byte("Consume")},
		},
	}}
}
