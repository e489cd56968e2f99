package checks

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"
)

// TestChecks runs each analyzer over its package below testdata, which says what is to be reported
// where. They are compiled with the real packages of this tree.
func TestChecks(t *testing.T) {
	t.Parallel()
	dir := module(t)
	for _, c := range []struct {
		analyzer *analysis.Analyzer
		packages []string
	}{
		{weirResult, []string{"./result"}},
		{weirRunAt, []string{"./runat"}},
		{weirSetter, []string{"./setter"}},
		{weirInTx, []string{"./intx"}},
		{weirName, []string{"./names/..."}},
	} {
		t.Run(c.analyzer.Name, func(t *testing.T) {
			t.Parallel()
			run := analysistest.Run
			if _, err := os.Stat(filepath.Join(dir, c.packages[0], filepath.Base(c.packages[0])+".go.golden")); err == nil {
				run = analysistest.RunWithSuggestedFixes
			}
			run(t, dir, c.analyzer, c.packages...)
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
