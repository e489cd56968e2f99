package checks

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// What the checks know of Weir. A test holds the names to the packages themselves.
const (
	weirPath      = "github.com/weir-go/weir"
	ratelimitPath = weirPath + "/ratelimit"
	schedulerPath = weirPath + "/scheduler"
	fairPath      = weirPath + "/fair"
	slotsPath     = weirPath + "/slots"
	lockoutPath   = weirPath + "/lockout"
	httplimitPath = weirPath + "/httplimit"

	pgxPath     = "github.com/jackc/pgx/v5"
	pgxpoolPath = pgxPath + "/pgxpool"
	riverPath   = "github.com/riverqueue/river"
	sqlPath     = "database/sql"
)

// verbs answer with a Result, or with a struct that embeds one, and with an error. A denial is no
// error of theirs. Wait is none of them: it returns an error for whatever must not run. An interface
// or a wrapper of the user's that has one of these names is a verb, too, if it returns the same.
var verbs = map[string]bool{
	"RateLimit":      true,
	"CheckRateLimit": true,
	"RateLimitMany":  true,
	"SendBatch":      true,
	"Take":           true,
	"TakeInTx":       true,
	"InsertTx":       true,
	"InsertManyTx":   true,
	"InsertMany":     true,
}

// mayRunLater are the verbs whose Result says that the work has to wait. InsertTx and its relatives
// make the job wait themselves.
var mayRunLater = map[string]bool{"RateLimit": true, "SendBatch": true}

// callee is the function or method that is called, or nil.
func callee(info *types.Info, call *ast.CallExpr) *types.Func {
	fn, ok := typeutil.Callee(info, call).(*types.Func)
	if !ok {
		return nil
	}
	return fn.Origin()
}

// isVerb tells whether fn answers with a Result that has to be looked at.
func isVerb(fn *types.Func) bool {
	if fn == nil || !verbs[fn.Name()] {
		return false
	}
	results := fn.Signature().Results()
	return results.Len() >= 2 && isAnswer(results.At(0).Type()) && isError(results.At(results.Len()-1).Type())
}

func isAnswer(t types.Type) bool {
	return isNamed(t, ratelimitPath, "Result") || isNamed(t, schedulerPath, "Inserted", "InsertedMany")
}

func isError(t types.Type) bool { return types.Identical(t, types.Universe.Lookup("error").Type()) }

func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

// isNamed tells whether t, or what it points to, is one of the named types of the package.
func isNamed(t types.Type, path string, names ...string) bool {
	at, name := typeName(t)
	if at != path {
		return false
	}
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// typeName is the package and the name of t, or of what it points to.
func typeName(t types.Type) (path, name string) {
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return "", ""
	}
	return named.Obj().Pkg().Path(), named.Obj().Name()
}

// isFunc tells whether fn is one of the functions, not methods, of the package.
func isFunc(fn *types.Func, path string, names ...string) bool {
	if fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != path || fn.Signature().Recv() != nil {
		return false
	}
	for _, n := range names {
		if n == fn.Name() {
			return true
		}
	}
	return false
}

// isMethod tells whether fn is one of the methods of the type.
func isMethod(fn *types.Func, path, typ string, names ...string) bool {
	if fn == nil || fn.Signature().Recv() == nil || !isNamed(fn.Signature().Recv().Type(), path, typ) {
		return false
	}
	for _, n := range names {
		if n == fn.Name() {
			return true
		}
	}
	return false
}

// ofWeir tells whether fn is declared in one of Weir's packages.
func ofWeir(fn *types.Func) bool {
	return fn != nil && fn.Pkg() != nil &&
		(fn.Pkg().Path() == weirPath || strings.HasPrefix(fn.Pkg().Path(), weirPath+"/"))
}

// receiver is what a method is called on, or nil.
func receiver(call *ast.CallExpr) ast.Expr {
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		return sel.X
	}
	return nil
}
