package checks

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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

// The command finds the same by go vet, to which packages are known by their facts, and by itself.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := module(t)
	weirvet := filepath.Join(t.TempDir(), "weirvet")
	if out, err := command(t, "..", "go", "build", "-o", weirvet, "."); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, args := range map[string][]string{
		"go vet":  {"go", "vet", "-vettool=" + weirvet, "./names/..."},
		"alone":   {weirvet, "./names/..."},
		"by name": {"go", "vet", "-vettool=" + weirvet, "-weirname", "./names/..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := command(t, dir, args...)
			if err == nil {
				t.Error("the status is 0")
			}
			for _, want := range []string{
				`both.go:5:2: the limit "uploads" is defined twice`,
				`two.go:16:13: the limit "messages" is defined twice`,
			} {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q: %s", want, out)
				}
			}
		})
	}
	t.Run("left out", func(t *testing.T) {
		t.Parallel()
		args := []string{"go", "vet", "-vettool=" + weirvet, "-weirname=false", "./names/..."}
		if out, err := command(t, dir, args...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("help", func(t *testing.T) {
		t.Parallel()
		out, err := command(t, dir, weirvet, "help")
		for _, a := range Analyzers() {
			if err != nil || !strings.Contains(out, a.Name) {
				t.Errorf("%v: %s", err, out)
			}
		}
	})
}

func command(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	if dir != ".." {
		cmd.Env = append(os.Environ(), "GOWORK=off")
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
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
	mod = append(mod, "\nrequire "+rpclimitPath+" v0.0.0\n\nreplace "+rpclimitPath+" => ./rpclimit\n"...)
	sum, err := os.ReadFile("../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	stub := []byte("module " + rpclimitPath + "\n\ngo 1.25.0\n")
	for file, text := range map[string][]byte{"go.mod": mod, "go.sum": sum, "rpclimit/go.mod": stub} {
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
