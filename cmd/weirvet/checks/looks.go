package checks

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/edge"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
)

// looks is what code finds out from a Result.
type looks uint8

const (
	whether looks = 1 << iota // the call was granted
	when                      // the work may run

	nothing    looks = 0
	everything       = whether | when // also if the Result is passed on
)

// kept is where the answer of a call goes.
type kept struct {
	dropped bool       // it goes nowhere
	by      *types.Var // it goes into this variable
	in      ast.Node   // the AssignStmt or ValueSpec that assigns it
}

// keeps tells where the first result of a call goes. If it is neither dropped nor in a variable, it
// is passed on, or the code says with blanks only that it does not want it.
func keeps(pass *analysis.Pass, c inspector.Cursor) kept {
	for c.ParentEdgeKind() == edge.ParenExpr_X {
		c = c.Parent()
	}
	switch parent := c.Parent().Node().(type) {
	case *ast.ExprStmt, *ast.GoStmt, *ast.DeferStmt:
		return kept{dropped: true}
	case *ast.AssignStmt:
		if len(parent.Rhs) == 1 {
			return into(pass, parent, parent.Lhs)
		}
	case *ast.ValueSpec:
		if len(parent.Values) == 1 {
			left := make([]ast.Expr, len(parent.Names))
			for i, n := range parent.Names {
				left[i] = n
			}
			return into(pass, parent, left)
		}
	}
	return kept{}
}

func into(pass *analysis.Pass, in ast.Node, left []ast.Expr) kept {
	id, ok := left[0].(*ast.Ident)
	switch {
	case !ok:
		return kept{}
	case id.Name != "_":
		v, _ := pass.TypesInfo.ObjectOf(id).(*types.Var)
		return kept{by: v, in: in}
	}
	for _, other := range left[1:] {
		if id, ok := other.(*ast.Ident); !ok || id.Name != "_" {
			return kept{dropped: true}
		}
	}
	return kept{}
}

// looksAt tells what the code finds out from the variable between the assignment at c and the next
// one, on any path. If it cannot tell, it says everything.
func looksAt(pass *analysis.Pass, c inspector.Cursor, k kept) looks {
	if k.by == nil || k.by.IsField() || k.by.Parent() == pass.Pkg.Scope() {
		return everything
	}
	var body *ast.BlockStmt // of the function that assigns
	var outermost inspector.Cursor
	for f := range c.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		typ, b := function(f.Node())
		if typ.Results != nil && within(typ.Results, k.by.Pos()) {
			return everything // a named result: it is returned
		}
		if body == nil {
			body = b
		}
		outermost = f
	}
	if body == nil {
		return everything
	}

	uses := map[token.Pos]looks{}
	captured := nothing // what closures find out, which may run at any time
	for id := range outermost.Preorder((*ast.Ident)(nil)) {
		if pass.TypesInfo.Uses[id.Node().(*ast.Ident)] != k.by {
			continue
		}
		uses[id.Node().Pos()] = look(pass, id)
		for f := range id.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
			if _, b := function(f.Node()); b != body {
				captured |= uses[id.Node().Pos()]
			}
			break // the innermost decides
		}
	}
	if !within(body, k.by.Pos()) { // it belongs to an outer function, which may look later
		for _, l := range uses {
			captured |= l
		}
		return captured
	}
	return captured | follow(pass, body, k, uses)
}

func function(n ast.Node) (*ast.FuncType, *ast.BlockStmt) {
	if f, ok := n.(*ast.FuncDecl); ok {
		return f.Type, f.Body
	}
	f := n.(*ast.FuncLit)
	return f.Type, f.Body
}

func within(n ast.Node, at token.Pos) bool { return n.Pos() <= at && at < n.End() }

// follow collects the uses that can be reached from the assignment before the next assignment.
func follow(pass *analysis.Pass, body *ast.BlockStmt, k kept, uses map[token.Pos]looks) looks {
	graph := cfg.New(body, func(*ast.CallExpr) bool { return true })
	var found looks
	seen := map[*cfg.Block]bool{}
	var walk func(b *cfg.Block, from int)
	walk = func(b *cfg.Block, from int) {
		for _, n := range b.Nodes[from:] {
			for at, l := range uses {
				if within(n, at) {
					found |= l
				}
			}
			if assigns(pass, n, k.by) {
				return
			}
		}
		for _, next := range b.Succs {
			if !seen[next] {
				seen[next] = true
				walk(next, 0)
			}
		}
	}
	for _, b := range graph.Blocks {
		for i, n := range b.Nodes {
			if n == k.in {
				walk(b, i+1)
				return found
			}
		}
	}
	return everything
}

func assigns(pass *analysis.Pass, n ast.Node, v *types.Var) bool {
	a, ok := n.(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, l := range a.Lhs {
		if id, ok := l.(*ast.Ident); ok && pass.TypesInfo.ObjectOf(id) == v {
			return true
		}
	}
	return false
}

// look tells what one use of a variable with an answer finds out.
func look(pass *analysis.Pass, c inspector.Cursor) looks {
	switch parent := c.Parent().Node().(type) {
	case *ast.AssignStmt:
		if c.ParentEdgeKind() == edge.AssignStmt_Lhs {
			return nothing
		}
	case *ast.CallExpr: // GiveBack does nothing for a denial
		if fn := callee(pass.TypesInfo, parent); ofWeir(fn) && fn.Name() == "GiveBack" {
			return nothing
		}
	case *ast.SelectorExpr:
		return lookAt(pass, c.Parent(), parent.Sel.Name)
	}
	return everything
}

// lookAt tells what a field or a method of an answer says.
func lookAt(pass *analysis.Pass, c inspector.Cursor, name string) looks {
	switch name {
	case "OK", "Err", "RetryAt", "RetryAfter", "Limit", "Key", "Jobs":
		return whether
	case "RunAt":
		return when
	case "At", "Decided":
		return nothing
	case "Job": // nil if it was denied
		if c.ParentEdgeKind() == edge.SelectorExpr_X {
			return nothing
		}
		return whether
	case "Reservation":
		if settles(pass, c.Parent()) {
			return nothing
		}
		return when // its takes have a RunAt
	}
	return everything
}

// settles tells whether c, a call, is an argument of Settle or Release.
func settles(pass *analysis.Pass, c inspector.Cursor) bool {
	if c.ParentEdgeKind() != edge.CallExpr_Args {
		return false
	}
	fn := callee(pass.TypesInfo, c.Parent().Node().(*ast.CallExpr))
	return ofWeir(fn) && (fn.Name() == "Settle" || fn.Name() == "Release")
}
