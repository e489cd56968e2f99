package names

import (
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A source is the text of a statement in a Go file. In braces stands what the program puts in as it
// runs.
type source struct {
	at   token.Position
	text string
}

// isSQL matches the texts that begin with a statement which may call something by its name.
var isSQL = regexp.MustCompile(`^[\s(]*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|MERGE INTO|` +
	`VALUES|EXPLAIN|CREATE TABLE|CALL|COPY)\s`)

// sources finds the statements in the Go files of a directory, with constants put together.
func sources(dir string) ([]source, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	known := named(files)
	var found []source
	for _, file := range files {
		formats, partOf := map[ast.Node]bool{}, map[ast.Node]bool{}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Sprintf" {
					formats[n.Args[0]] = true
				}
			case *ast.BasicLit, *ast.BinaryExpr:
				text, ok := render(set, known, n.(ast.Expr), 0)
				isPrivilege := strings.HasPrefix(text, "SELECT ON ")
				if ok && !partOf[n] && isSQL.MatchString(text) && !isPrivilege {
					if formats[n] {
						text = verb.ReplaceAllString(text, "{$0}")
					}
					found = append(found, source{set.Position(n.Pos()), text})
					return false
				}
				if sum, is := n.(*ast.BinaryExpr); is && ok {
					partOf[sum.X], partOf[sum.Y] = true, true
				}
			}
			return true
		})
	}
	return found, nil
}

// named are the constants and variables that get a value once, by their names. Those of a name that
// several have are nil.
func named(files []*ast.File) map[string]ast.Expr {
	known := map[string]ast.Expr{}
	name := func(id *ast.Ident, to ast.Expr) {
		if _, twice := known[id.Name]; twice {
			to = nil
		}
		known[id.Name] = to
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					name(n.Names[i], value)
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if id, ok := to.(*ast.Ident); ok && n.Tok == token.DEFINE &&
						len(n.Rhs) == len(n.Lhs) {
						name(id, n.Rhs[i])
					}
				}
			}
			return true
		})
	}
	return known
}

// render is the string that an expression makes, if it is made of any literal.
func render(set *token.FileSet, known map[string]ast.Expr, e ast.Expr, depth int) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s, true
		}
	case *ast.ParenExpr:
		return render(set, known, e.X, depth)
	case *ast.BinaryExpr:
		left, some := render(set, known, e.X, depth)
		right, others := render(set, known, e.Y, depth)
		return left + right, e.Op == token.ADD && (some || others)
	case *ast.Ident:
		if to := known[e.Name]; to != nil && depth < 10 {
			if s, ok := render(set, known, to, depth+1); ok {
				return s, true
			}
		}
	}
	var text strings.Builder
	_ = format.Node(&text, set, e)
	return "{" + text.String() + "}", false
}

// hole is a place where a text is put in. It is not one of Postgres' arrays, which stand in quotes.
var hole = regexp.MustCompile(`(^|[^'])(\{[^{}]*\})`)

// verb is one of fmt.
var verb = regexp.MustCompile(`%(\[\d\])?[a-z]`)

// made reports that text is what becomes of a source once its holes are filled.
func (s source) made(text string) bool {
	last := 0
	for _, at := range hole.FindAllStringSubmatchIndex(s.text, -1) {
		_, after, found := strings.Cut(text, strings.TrimSpace(s.text[last:at[4]]))
		if !found {
			return false
		}
		text, last = after, at[5]
	}
	return strings.HasSuffix(text, s.text[last:])
}

// Directories are those below root whose Go files have statements.
func Directories(root string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		base := d.Name()
		isOther := strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules"
		if path != root && isOther {
			return filepath.SkipDir
		}
		texts, err := sources(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(texts) > 0 {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			found = append(found, filepath.ToSlash(rel))
		}
		return nil
	})
	return found, err
}
