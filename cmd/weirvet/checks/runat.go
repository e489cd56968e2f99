package checks

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
)

var weirRunAt = &analysis.Analyzer{
	Name: "weirrunat",
	Doc: `report reservations whose RunAt nobody looks at

A request with OrReserve or Within may be granted for later: then Result.OK is true, and
Result.RunAt says when the work may run. Code that looks only at OK runs the work at once, before
its tokens exist. Wait until RunAt, schedule the work for then, call Wait instead, or remove
OrReserve.

The check also reports calls of Consume with such a request: Consume always refuses it.`,
	URL:      "https://pkg.go.dev/" + weirPath + "/cmd/weirvet/checks",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      runRunAt,
}

func runRunAt(pass *analysis.Pass) (any, error) {
	for c, call := range calls(pass, examples) {
		fn := callee(pass.TypesInfo, call)
		switch {
		case ofWeir(fn) && fn.Name() == "Consume":
			if reserves(pass, call) {
				pass.ReportRangef(call, "Consume refuses a request that may be granted for later: "+
					"call RateLimit and look at RunAt, or call Wait")
			}
		case isVerb(fn) && mayRunLater[fn.Name()] && reserves(pass, call):
			k := keeps(pass, c)
			if k.by == nil {
				continue
			}
			if l := looksAt(pass, c, k); l&whether != 0 && l&when == 0 {
				pass.ReportRangef(call, "the code never looks at %s.RunAt: the request may be "+
					"granted for later, and the work must not run before", k.by.Name())
			}
		}
	}
	return nil, nil
}

// reserves tells whether one of the call's requests may be granted for later, as far as the code of
// the function shows.
func reserves(pass *analysis.Pass, call *ast.CallExpr) bool {
	for _, arg := range call.Args {
		if mayWait(pass, arg, 0) {
			return true
		}
	}
	return false
}

func mayWait(pass *analysis.Pass, e ast.Expr, depth int) bool {
	if depth > 20 {
		return false
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		fn := callee(pass.TypesInfo, e)
		if fn == nil || !isMethod(fn, ratelimitPath, "Request", fn.Name()) {
			return false
		}
		switch fn.Name() {
		case "OrReserve":
			return true
		case "Within":
			d := pass.TypesInfo.Types[e.Args[0]].Value
			return d == nil || constant.Compare(d, token.NEQ, constant.MakeInt64(0))
		}
		return mayWait(pass, receiver(e), depth+1)
	case *ast.CompositeLit: // of requests
		for _, r := range e.Elts {
			if mayWait(pass, r, depth+1) {
				return true
			}
		}
	case *ast.Ident:
		if value := onlyValue(pass, e); value != nil {
			return mayWait(pass, value, depth+1)
		}
	}
	return false
}

// onlyValue is the value of a local variable that is assigned once, and whose address nobody takes.
func onlyValue(pass *analysis.Pass, id *ast.Ident) ast.Expr {
	v, ok := pass.TypesInfo.Uses[id].(*types.Var)
	if !ok || v.IsField() || v.Pkg() != pass.Pkg || v.Parent() == pass.Pkg.Scope() {
		return nil
	}
	var value ast.Expr
	times := 0
	for _, file := range pass.Files {
		if !within(file, v.Pos()) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					if left, ok := l.(*ast.Ident); ok && pass.TypesInfo.ObjectOf(left) == v {
						times++
						if len(n.Rhs) == len(n.Lhs) {
							value = n.Rhs[i]
						}
					}
				}
			case *ast.UnaryExpr:
				if x, ok := n.X.(*ast.Ident); ok && n.Op == token.AND &&
					pass.TypesInfo.Uses[x] == v {
					times = 2
				}
			}
			return true
		})
	}
	if times != 1 {
		return nil
	}
	return value
}
