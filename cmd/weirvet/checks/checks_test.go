package checks

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// Each analyzer reports what its package below testdata says, and nothing else. The packages are
// compiled with those of this tree.
func TestChecks(t *testing.T) {
	t.Parallel()
	dir := module(t)
	for _, c := range []struct {
		analyzer *analysis.Analyzer
		packages string
	}{
		{weirResult, "./result"},
		{weirRunAt, "./runat"},
		{weirSetter, "./setter"},
		{weirInTx, "./intx"},
		{weirName, "./names/..."},
	} {
		t.Run(c.analyzer.Name, func(t *testing.T) {
			t.Parallel()
			analysistest.Run(t, dir, c.analyzer, c.packages)
		})
	}
}

// What -fix changes is in the golden files.
func TestFixes(t *testing.T) {
	t.Parallel()
	dir := module(t)
	for _, c := range []struct {
		analyzer *analysis.Analyzer
		packages string
	}{
		{weirResult, "./resultfix"},
		{weirSetter, "./setterfix"},
	} {
		t.Run(c.analyzer.Name, func(t *testing.T) {
			t.Parallel()
			analysistest.RunWithSuggestedFixes(t, dir, c.analyzer, c.packages)
		})
	}
}

// module makes a module of testdata, with what this one requires.
func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod = regexp.MustCompile(`(?m)^(module|replace) .*$`).ReplaceAll(mod, nil)
	mod = append(mod, "\nmodule example.com\n\nreplace github.com/weir-go/weir => "+root+"\n"...)
	sum, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{"go.mod": mod, "go.sum": sum} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
