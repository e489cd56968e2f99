package checks

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
)

var weirInTx = &analysis.Analyzer{
	Name: "weirintx",
	Doc: `report callbacks of InTx that do what a rollback does not undo

If the transaction of InTx conflicts with another one, it is rolled back and the callback runs
again. So the callback must use the ctx and the tx that it is given, and must do nothing that a
rollback does not undo. The check covers the callbacks of InTx and its variants, and of SendBatch.
It reports:

  - HTTP requests and mails;
  - sends to a channel that was made outside of the callback;
  - appends to an outer variable that the callback never resets;
  - an outer context, another transaction, and the pool or connection that InTx was given;
  - writes to another database;
  - takes from an Autocommit, a Coalesced, a FailOpen or a Lease, which commit by themselves;
  - jobs that River inserts outside of the transaction;
  - Commit and Rollback of the callback's own transaction.

Do such things after InTx has returned. The check does not look into functions that the callback
calls by name, or passes to others.`,
	URL:      "https://pkg.go.dev/" + weirPath + "/cmd/weirvet/checks",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      runInTx,
}

func runInTx(pass *analysis.Pass) (any, error) {
	seen := map[*ast.FuncLit]bool{} // one may be the callback of several calls
	for c, call := range calls(pass, examples) {
		fn := callee(pass.TypesInfo, call)
		if !ofWeir(fn) || !fn.Exported() {
			continue
		}
		for _, arg := range call.Args {
			if id, ok := arg.(*ast.Ident); ok {
				arg = onlyValue(pass, id)
			}
			lit, ok := arg.(*ast.FuncLit)
			if !ok || seen[lit] {
				continue
			}
			seen[lit] = true
			t := &callback{
				pass: pass, lit: lit, db: begunOn(pass, call),
				grows: map[*types.Var]*ast.CallExpr{},
			}
			if at, ok := c.Inspector().Root().FindNode(lit); ok && t.begins(fn) {
				t.check(at)
			}
		}
	}
	return nil, nil
}

// callback is a function that may run more than once, each time in another transaction.
type callback struct {
	pass *analysis.Pass
	lit  *ast.FuncLit
	tx   *types.Var // its own, if it has a name
	db   string     // what the transaction is begun on

	grows map[*types.Var]*ast.CallExpr // outer variables that it appends to
	set   []*types.Var                 // outer variables that it sets
}

// begunOn is the call's first argument that is a pool or a connection, as it is written.
func begunOn(pass *analysis.Pass, call *ast.CallExpr) string {
	for _, arg := range call.Args {
		if isDatabase(pass.TypesInfo.TypeOf(arg)) {
			return types.ExprString(arg)
		}
	}
	return ""
}

// begins tells whether the function literal is the callback of a transaction.
func (t *callback) begins(fn *types.Func) bool {
	params := t.pass.TypesInfo.TypeOf(t.lit).(*types.Signature).Params()
	if params.Len() == 2 && isContext(params.At(0).Type()) && isTx(params.At(1).Type()) {
		t.tx = params.At(1)
		return true
	}
	return isMethod(fn, ratelimitPath, "Limiter", "SendBatch") &&
		params.Len() == 1 && isNamed(params.At(0).Type(), pgxPath, "Batch")
}

func (t *callback) check(c inspector.Cursor) {
	c.Inspect(nil, func(c inspector.Cursor) bool {
		switch n := c.Node().(type) {
		case *ast.FuncLit: // others may call it after COMMIT
			return n == t.lit || c.ParentEdgeKind() == edge.CallExpr_Fun
		case *ast.CallExpr:
			t.call(n)
		case *ast.SendStmt:
			if t.outer(n.Chan) != nil {
				t.report(n, "sends to the channel %s: a rollback does not undo that",
					types.ExprString(n.Chan))
			}
		case *ast.AssignStmt:
			t.assign(n)
		}
		return true
	})
	for v, at := range t.grows {
		if !slices.Contains(t.set, v) {
			t.report(at, "appends to %s without resetting it: what an earlier run appended stays",
				v.Name())
		}
	}
}

func (t *callback) report(at ast.Node, format string, args ...any) {
	t.pass.ReportRangef(at, "the callback may run more than once, and "+format, args...)
}

// outside reports a transaction, a connection or a pool that is not the callback's.
func (t *callback) outside(at ast.Node, name string) {
	t.pass.ReportRangef(at, "the callback uses %s, which is not its transaction: "+
		"use the tx that it is given", name)
}

// outer is the variable that an expression begins with, if it is declared outside of the callback.
func (t *callback) outer(e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			if v, ok := t.pass.TypesInfo.Uses[x.Sel].(*types.Var); ok && !v.IsField() {
				return v // of another package
			}
			e = x.X
		case *ast.Ident:
			v, ok := t.pass.TypesInfo.Uses[x].(*types.Var)
			if !ok || within(t.lit, v.Pos()) {
				return nil
			}
			return v
		default:
			return nil
		}
	}
}

// assign remembers the outer variables that an assignment sets or appends to.
func (t *callback) assign(n *ast.AssignStmt) {
	for i, l := range n.Lhs {
		id, ok := l.(*ast.Ident)
		if !ok {
			continue
		}
		v := t.outer(id)
		if v == nil {
			continue
		}
		if len(n.Rhs) == len(n.Lhs) && n.Tok == token.ASSIGN {
			if call, ok := n.Rhs[i].(*ast.CallExpr); ok && t.appendsTo(call, v) {
				t.grows[v] = call
				continue
			}
		}
		t.set = append(t.set, v)
	}
}

func (t *callback) appendsTo(call *ast.CallExpr, v *types.Var) bool {
	fun, ok := call.Fun.(*ast.Ident)
	if !ok || t.pass.TypesInfo.Uses[fun] != types.Universe.Lookup("append") {
		return false
	}
	to, ok := call.Args[0].(*ast.Ident)
	return ok && t.pass.TypesInfo.Uses[to] == v
}

func (t *callback) call(call *ast.CallExpr) {
	fn := callee(t.pass.TypesInfo, call)
	if fn == nil {
		return
	}
	on := receiver(call)
	if fn.Signature().Recv() == nil {
		on = nil // a package
	}
	switch {
	case sends(fn):
		t.report(call, "calls %s: a rollback does not undo that", fn.FullName())
		return
	case on != nil && t.isOwn(on) && (fn.Name() == "Commit" || fn.Name() == "Rollback"):
		t.pass.ReportRangef(call, "the callback calls %s of its transaction: "+
			"return nil to commit, or an error to roll back", fn.Name())
		return
	case on != nil && t.onOuter(call, fn, on):
		return
	}
	if t.tx == nil { // the batch of SendBatch
		return
	}
	t.arguments(call, fn)
}

// isOwn tells whether e is the transaction that the callback is given.
func (t *callback) isOwn(e ast.Expr) bool {
	id, ok := ast.Unparen(e).(*ast.Ident)
	return ok && t.tx != nil && t.pass.TypesInfo.Uses[id] == t.tx
}

// isOther tells whether e is another transaction, or what this one is begun on. Another pool may be
// another database, which the callback may well read.
func (t *callback) isOther(e ast.Expr) bool {
	typ := t.pass.TypesInfo.TypeOf(e)
	return t.outer(e) != nil && (isTx(typ) || isDatabase(typ) && types.ExprString(e) == t.db)
}

// onOuter reports a method of an outer variable that works outside of the transaction.
func (t *callback) onOuter(call *ast.CallExpr, fn *types.Func, on ast.Expr) bool {
	if t.outer(on) == nil {
		return false
	}
	name := types.ExprString(on)
	typ := t.pass.TypesInfo.TypeOf(on)
	switch {
	case t.isOther(on) && statements[fn.Name()]:
		t.outside(call, name)
	case isDatabase(typ) && writes[fn.Name()]:
		t.report(call, "calls %s.%s: a rollback does not undo that", name, fn.Name())
	case commits(typ, fn):
		t.report(call, "%s.%s commits by itself: use a method that takes the callback's tx",
			name, fn.Name())
	case isNamed(typ, riverPath, "Client") && inserts[fn.Name()]:
		t.report(call, "%s.%s inserts outside of its transaction: call %[2]sTx", name, fn.Name())
	default:
		return false
	}
	return true
}

// arguments reports outer contexts, transactions and pools that the callback passes on.
func (t *callback) arguments(call *ast.CallExpr, fn *types.Func) {
	if fn.Pkg() != nil && fn.Pkg().Path() == "log/slog" || reads(fn) {
		return
	}
	params := fn.Signature().Params()
	doesIO := ofWeir(fn) || params.Len() > 0 && isContext(params.At(0).Type())
	for _, arg := range call.Args {
		switch {
		case isContext(t.pass.TypesInfo.TypeOf(arg)):
			if t.outerContext(arg) && !isFunc(fn, "context", "WithoutCancel") {
				t.pass.ReportRangef(arg, "the callback uses the outer context %s: "+
					"use the ctx that it is given", types.ExprString(arg))
			}
		case doesIO && t.isOther(arg):
			t.outside(arg, types.ExprString(arg))
		}
	}
}

// reads tells whether fn probably only reads a value of a context: it takes nothing else, returns no
// other context, and cannot fail.
func reads(fn *types.Func) bool {
	for v := range fn.Signature().Params().Variables() {
		if !isContext(v.Type()) {
			return false
		}
	}
	for v := range fn.Signature().Results().Variables() {
		if isContext(v.Type()) || types.Identical(v.Type(), types.Universe.Lookup("error").Type()) {
			return false
		}
	}
	return fn.Signature().Results().Len() > 0
}

// outerContext tells whether a context comes from outside: a variable, or that of a request.
func (t *callback) outerContext(e ast.Expr) bool {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok {
		return isMethod(callee(t.pass.TypesInfo, call), "net/http", "Request", "Context") &&
			t.outer(receiver(call)) != nil
	}
	return t.outer(e) != nil
}
