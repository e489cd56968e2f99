package checks

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
)

var weirName = &analysis.Analyzer{
	Name: "weirname",
	Doc: `report names of limits that are defined twice

Two limits of one name share their rows, also if their numbers differ. Each call then uses the
numbers of its own definition. Define each limit once, in a package variable, and import that.

The check covers all packages of a program. It reports the second definition, or the import that
brings two definitions together. It knows names that are constants, and skips test files.
A ratelimit.Shadow may have the name of the limit that it tries out. Two definitions in one function
may be branches of it, and are not reported.`,
	URL:       "https://pkg.go.dev/" + weirPath + "/cmd/weirvet/checks",
	Requires:  []*analysis.Analyzer{inspect.Analyzer},
	FactTypes: []analysis.Fact{new(names)},
	Run:       runName,
}

// names are the limits that a package defines, and the limits of all packages that it imports.
type names struct{ Defined []definition }

// definition is one call that defines a name.
type definition struct {
	Kind  string // "limit" or "limit of slots": one name may be used for both
	Name  string
	Pkg   string
	Where string // file and line
}

// AFact makes it a fact about a package.
func (*names) AFact() {}

func (n *names) String() string {
	var s []string
	for _, d := range n.Defined {
		s = append(s, fmt.Sprintf("%q", d.Name))
	}
	slices.Sort(s)
	return "defines " + strings.Join(s, ", ")
}

// site is a definition of the package that is looked at.
type site struct {
	definition
	call *ast.CallExpr
	in   *ast.FuncDecl // nil: the variable of a package
}

func runName(pass *analysis.Pass) (any, error) {
	all := imported(pass)
	for _, s := range defined(pass) {
		for _, other := range all {
			if other.Name != s.Name || other.Kind != s.Kind || sameFunction(other, s) {
				continue
			}
			at := other.Pkg + ", " + other.Where
			if other.Pkg == s.Pkg {
				at = other.Where
			}
			pass.ReportRangef(s.call, "the %s %q is defined twice, and both share their rows: "+
				"the other is in %s", s.Kind, s.Name, at)
			break
		}
		all = append(all, s)
	}
	if len(all) > 0 && pass.Pkg.Name() != "main" { // nobody imports a program
		fact := new(names)
		for _, s := range all {
			fact.Defined = append(fact.Defined, s.definition)
		}
		slices.SortFunc(fact.Defined, compare)
		pass.ExportPackageFact(fact)
	}
	return nil, nil
}

func sameFunction(a, b site) bool { return a.in != nil && a.in == b.in }

func compare(a, b definition) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Pkg, b.Pkg), cmp.Compare(a.Where, b.Where))
}

// imported are the definitions of imported packages. It reports two of one name, unless one import
// has both: then they were reported there.
func imported(pass *analysis.Pass) []site {
	var all []site
	var facts [][]definition
	seen := map[definition]bool{}
	for _, p := range pass.Pkg.Imports() {
		var fact names
		if !pass.ImportPackageFact(p, &fact) {
			continue
		}
		for _, d := range fact.Defined {
			if seen[d] {
				continue
			}
			seen[d] = true
			for _, other := range all {
				if other.Kind == d.Kind && other.Name == d.Name &&
					!together(facts, other.definition, d) &&
					!slices.Contains(fact.Defined, other.definition) {
					reportImport(pass, p, other.definition, d)
					break
				}
			}
			all = append(all, site{definition: d})
		}
		facts = append(facts, fact.Defined)
	}
	return all
}

// together tells whether one import has both.
func together(facts [][]definition, a, b definition) bool {
	for _, f := range facts {
		if slices.Contains(f, a) && slices.Contains(f, b) {
			return true
		}
	}
	return false
}

func reportImport(pass *analysis.Pass, p *types.Package, a, b definition) {
	for _, file := range pass.Files {
		for _, spec := range file.Imports {
			if strings.Trim(spec.Path.Value, "`\"") == p.Path() && !inTest(pass, spec.Pos()) {
				pass.ReportRangef(spec, "the %s %q is defined twice, and both share their rows: "+
					"in %s, %s, and in %s, %s", a.Kind, a.Name, a.Pkg, a.Where, b.Pkg, b.Where)
				return
			}
		}
	}
}

// defined are the definitions of this package, in the order of its files.
func defined(pass *analysis.Pass) []site {
	var all []site
	for c, call := range calls(pass, program) {
		kind, name := defines(pass, call)
		if name == "" {
			continue
		}
		at := pass.Fset.Position(call.Pos())
		all = append(all, site{
			definition: definition{
				Kind: kind, Name: name, Pkg: pass.Pkg.Path(),
				Where: fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line),
			},
			call: call,
			in:   declaration(c),
		})
	}
	return all
}

// defines is the name that a call defines, or "".
func defines(pass *analysis.Pass, call *ast.CallExpr) (kind, name string) {
	fn := callee(pass.TypesInfo, call)
	switch {
	case isFunc(fn, ratelimitPath, "Define", "MustDefine"),
		isFunc(fn, fairPath, "Define", "MustDefine"):
		kind = "limit"
	case isFunc(fn, slotsPath, "Define", "MustDefine"):
		kind = "limit of slots"
	default:
		return "", ""
	}
	if len(call.Args) == 0 {
		return "", ""
	}
	value := pass.TypesInfo.Types[call.Args[0]].Value
	if value == nil || value.Kind() != constant.String {
		return "", ""
	}
	name = constant.StringVal(value)
	for _, arg := range call.Args[1:] {
		option, ok := arg.(*ast.CallExpr)
		switch {
		case ok && isFunc(callee(pass.TypesInfo, option), ratelimitPath, "Shadow"):
			name += " (shadow)"
		case !ok && isOptions(pass.TypesInfo.TypeOf(arg)):
			return "", "" // it cannot be seen whether one is Shadow
		}
	}
	return kind, name
}

func isOptions(t types.Type) bool {
	if s, ok := t.Underlying().(*types.Slice); ok {
		t = s.Elem()
	}
	return isNamed(t, ratelimitPath, "Option")
}
