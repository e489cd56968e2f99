package checks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// What testdata imports, so that go.mod requires it.
var _ = [...]any{httplimit.Global, lockout.New, slots.New, (*river.Client[pgx.Tx])(nil)}

// Every method that returns a Result and an error is known, as a verb or as something else.
func TestEveryVerbIsKnown(t *testing.T) {
	t.Parallel()
	notVerbs := map[string]bool{"Wait": true, "ReserveTx": true} // their errors cover what must not run
	found := map[string]bool{}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*ratelimit.Limiter](),
		reflect.TypeFor[*ratelimit.Autocommit](),
		reflect.TypeFor[*ratelimit.Coalesced](),
		reflect.TypeFor[*ratelimit.FailOpen](),
		reflect.TypeFor[*ratelimit.Lease](),
		reflect.TypeFor[ratelimit.Verbs](),
		reflect.TypeFor[*scheduler.Jobs](),
		reflect.TypeFor[*scheduler.SQLJobs](),
		reflect.TypeFor[*fair.Limit](),
	} {
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			if m.Type.NumOut() < 2 || m.Type.Out(m.Type.NumOut()-1) != reflect.TypeFor[error]() {
				continue
			}
			switch m.Type.Out(0) {
			case reflect.TypeFor[ratelimit.Result](),
				reflect.TypeFor[*scheduler.Inserted](),
				reflect.TypeFor[*scheduler.InsertedMany]():
				found[m.Name] = true
				if !verbs[m.Name] && !notVerbs[m.Name] {
					t.Errorf("%v.%s returns a Result: add it to verbs, or to notVerbs", typ, m.Name)
				}
			}
		}
	}
	for name := range verbs {
		if !found[name] {
			t.Errorf("no type has the verb %s any more", name)
		}
	}
}

// docs/testing.md lists the checks, and shows a message that result.go of testdata has.
func TestTheGuideListsEveryCheck(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("testdata/result/result.go")
	if err != nil {
		t.Fatal(err)
	}
	_, message, _ := strings.Cut(string(guide), "\nupload.go:31:15: ")
	message, _, shown := strings.Cut(message, "\n")
	if !shown || !strings.Contains(string(code), "`"+message+"`") {
		t.Errorf("docs/testing.md shows the message %q, which no test brings about", message)
	}
	for _, a := range Analyzers() {
		if !strings.Contains(string(guide), "\n| `"+a.Name+"` | ") {
			t.Errorf("docs/testing.md does not list %s", a.Name)
		}
	}
}

// Every field and method of a Result is known: what does it say of whether the call was granted,
// and of when its work may run?
func TestEveryPartOfAResultIsKnown(t *testing.T) {
	t.Parallel()
	known := map[string]bool{ // to lookAt
		"OK": true, "RunAt": true, "RetryAt": true, "At": true, "Limit": true, "Key": true,
		"Outcomes": true, "Decided": true, "Err": true, "Reservation": true, "RetryAfter": true,
	}
	typ := reflect.TypeFor[ratelimit.Result]()
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() && !known[f.Name] {
			t.Errorf("lookAt does not know the field %s", f.Name)
		}
	}
	for i := range typ.NumMethod() {
		if m := typ.Method(i); !known[m.Name] {
			t.Errorf("lookAt does not know the method %s", m.Name)
		}
	}
}

// setters are the exported types of the tree's packages that have a method which returns a changed
// copy, by the path of the package.
func setters(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	tree := os.DirFS("../../..")
	err := fs.WalkDir(tree, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() {
			if file != "." && (name[0] == '.' || name == "internal" || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		code, err := fs.ReadFile(tree, file)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, code, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := weirPath + "/" + path.Dir(file)
		for _, d := range parsed.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || parsed.Name.Name == "main" || fn.Recv == nil || !fn.Name.IsExported() {
				continue
			}
			typ, ok := fn.Recv.List[0].Type.(*ast.Ident) // and not a pointer
			if !ok || !typ.IsExported() || fn.Type.Results.NumFields() != 1 {
				continue
			}
			result, ok := fn.Type.Results.List[0].Type.(*ast.Ident)
			if ok && result.Name == typ.Name && !slices.Contains(found[pkg], typ.Name) {
				found[pkg] = append(found[pkg], typ.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Every type is known that has a method which returns a changed copy, in whichever module it is.
func TestEverySetterIsKnown(t *testing.T) {
	t.Parallel()
	found := setters(t)
	for pkg, types := range found {
		for _, typ := range types {
			if !slices.Contains(values[pkg], typ) {
				t.Errorf("%s.%s has a method that returns a changed copy: add it to values", pkg, typ)
			}
		}
	}
	for _, pkg := range []string{ratelimitPath, slotsPath, httplimitPath, rpclimitPath} {
		if len(found[pkg]) == 0 {
			t.Errorf("%s has no setters any more, or they are not found", pkg)
		}
	}
}
