package checks

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// What the checks know of Weir. Tests compare the names with the packages.
const (
	weirPath      = "github.com/weir-go/weir"
	ratelimitPath = weirPath + "/ratelimit"
	schedulerPath = weirPath + "/scheduler"
	fairPath      = weirPath + "/fair"
	slotsPath     = weirPath + "/slots"
	lockoutPath   = weirPath + "/lockout"
	httplimitPath = weirPath + "/httplimit"
	rpclimitPath  = weirPath + "/rpclimit"

	pgxPath     = "github.com/jackc/pgx/v5"
	pgxpoolPath = pgxPath + "/pgxpool"
	riverPath   = "github.com/riverqueue/river"
	sqlPath     = "database/sql"
)

// verbs return a Result, or a struct that embeds one, and an error, which is nil for a denial.
// Wait and ReserveTx are not among them: they return an error if the work must not run. A method of
// the user's own types is a verb, too, if it has one of these names and returns the same.
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

// mayRunLater are the verbs whose callers have to wait until RunAt. InsertTx and its relatives make
// the job wait.
var mayRunLater = map[string]bool{"RateLimit": true, "SendBatch": true}

// callee is the function or method that is called, or nil.
func callee(info *types.Info, call *ast.CallExpr) *types.Func {
	fn, ok := typeutil.Callee(info, call).(*types.Func)
	if !ok {
		return nil
	}
	return fn.Origin()
}

// isVerb tells whether fn returns a Result that the caller has to look at.
func isVerb(fn *types.Func) bool {
	if fn == nil || !verbs[fn.Name()] {
		return false
	}
	results := fn.Signature().Results()
	return results.Len() >= 2 && isAnswer(results.At(0).Type()) &&
		isError(results.At(results.Len()-1).Type())
}

func isAnswer(t types.Type) bool {
	return isNamed(t, ratelimitPath, "Result") ||
		isNamed(t, schedulerPath, "Inserted", "InsertedMany")
}

func isError(t types.Type) bool {
	return types.Identical(t, types.Universe.Lookup("error").Type())
}

func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

// isNamed tells whether t, or what it points to, is one of the named types of the package.
func isNamed(t types.Type, path string, names ...string) bool {
	at, name := typeName(t)
	return at == path && slices.Contains(names, name)
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
	return fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == path &&
		fn.Signature().Recv() == nil && slices.Contains(names, fn.Name())
}

// isMethod tells whether fn is one of the methods of the type.
func isMethod(fn *types.Func, path, typ string, names ...string) bool {
	return fn != nil && fn.Signature().Recv() != nil &&
		isNamed(fn.Signature().Recv().Type(), path, typ) && slices.Contains(names, fn.Name())
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
