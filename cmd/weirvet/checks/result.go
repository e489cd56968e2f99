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

A denial is a Result and not an error. So this code never limits anybody:

	if _, err := limiter.RateLimit(ctx, tx, Uploads.For(user)); err != nil {

Look at Result.OK or Result.Err, or call Consume, which returns a denial as an error. The check
covers RateLimit, CheckRateLimit, RateLimitMany and SendBatch in each way of calling, Take and
TakeInTx of a Lease, and InsertTx, InsertManyTx and InsertMany of scheduler.Jobs.

It also reports Lockout.Attempt if its first result is dropped, as its error is nil for a wrong
password, and Acquire and TryAcquire of package slots if the Hold is dropped, as nobody can then
release it.`,
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
				pass.ReportRangef(call, "the first result of Attempt is dropped: "+
					"for a wrong password it is false, and the error is nil")
			}
		case isMethod(fn, slotsPath, "Slots", "Acquire", "TryAcquire"):
			if keeps(pass, c).dropped {
				pass.ReportRangef(call, "the Hold of %s is dropped: its slots are never released",
					fn.Name())
			}
		case isVerb(fn):
			answer(pass, c, call, fn)
		}
	}
	return nil, nil
}

// answer reports a call of a verb if its Result is dropped, or nobody looks whether it was granted.
func answer(pass *analysis.Pass, c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	k := keeps(pass, c)
	switch {
	case k.dropped && fn.Name() == "RateLimitMany" && keepsEach(c):
	case k.dropped && mayConsume(pass, call, fn):
		pass.Report(analysis.Diagnostic{
			Pos: call.Pos(), End: call.End(),
			Message: "the Result of RateLimit is dropped, and for a denial the error is nil: " +
				"look at Result.OK, or call Consume",
			SuggestedFixes: consumes(c, call),
		})
	case k.dropped:
		pass.ReportRangef(call, "the Result of %s is dropped, and for a denial the error is nil: "+
			"look at Result.OK", fn.Name())
	case k.by != nil && looksAt(pass, c, k)&whether == 0:
		pass.ReportRangef(call, "the code never looks at %s.OK: if %s is denied, it is false "+
			"and the error is nil", k.by.Name(), fn.Name())
	}
}

// keepsEach tells whether the second result of RateLimitMany is kept: it is nil for a denial.
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
