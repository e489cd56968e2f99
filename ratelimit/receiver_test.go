package ratelimit

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
)

// go doc shows the verbs of Autocommit, which are methods of a type that it embeds.
func TestThePageOfAutocommitHasAllVerbs(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range []string{"autocommit.go", "receiver.go"} {
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	page, err := doc.NewFromFiles(fset, files, "ratelimit")
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string]string{}
	for _, typ := range page.Types {
		if typ.Name == "Autocommit" {
			for _, m := range typ.Methods {
				docs[m.Name] = m.Doc
			}
		}
	}
	verbs := reflect.TypeFor[Verbs]()
	for i := range verbs.NumMethod() {
		name := verbs.Method(i).Name
		if want := name + " is [Limiter." + name + "]"; !strings.HasPrefix(docs[name], want) {
			t.Errorf("the comment of Autocommit.%s is %q, want %q", name, docs[name], want)
		}
	}
}
