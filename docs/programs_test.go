// Package docs_test runs the programs of the guides.
package docs_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// guides are those that show a program, by its name.
var guides = map[string]string{
	"start":            "../README.md",
	"llm":              "llm.md",
	"third-party-apis": "third-party-apis.md",
	"sign-ups":         "sign-ups.md",
	"webhooks":         "webhooks.md",
	"logins":           "logins.md",
	"tenants":          "tenants.md",
	"fair-lines":       "fair-lines.md",
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A guide shows the whole of its program, which the linters have seen and which is short enough to be read.
func TestTheGuidesShowTheirProgramsWhole(t *testing.T) {
	t.Parallel()
	programs, err := filepath.Glob("programs/*/main.go")
	if err != nil || len(programs) != len(guides) {
		t.Fatalf("%d programs of %d guides: %v", len(programs), len(guides), err)
	}
	for name, guide := range guides {
		code := program(t, guide)
		if code != read(t, "programs/"+name+"/main.go") {
			t.Errorf("%s does not show programs/%s/main.go as it is", guide, name)
		}
		if n := strings.Count(code, "\n"); n > 80 {
			t.Errorf("programs/%s/main.go has %d lines, want 80 at the most", name, n)
		}
	}
}

// printed is what a program prints by its guide, line by line.
func printed(t *testing.T, guide string) []string {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, guide), "It prints\n\n```\n")
	text, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatalf("%s does not tell what its program prints", guide)
	}
	return strings.Split(text, "\n")
}

// The program that stands in a guide works in a folder that has nothing else: no file of this repository, and only what go.mod of
// this module brings. It ends by itself, on a fresh database and again on the one that it has left, and prints what the guide says,
// but for the order of lines.
func TestTheProgramsOfTheGuidesWorkInAnEmptyFolder(t *testing.T) {
	t.Parallel()
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for name, guide := range guides {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"main.go": program(t, guide),
				"go.sum":  read(t, "../go.sum"), // so that little need be asked of the network
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			goTool(t, dir, "mod", "init", "try")
			goTool(t, dir, "mod", "edit", "-require=github.com/weir-go/weir@v0.0.0", "-replace=github.com/weir-go/weir="+repo)
			goTool(t, dir, "mod", "tidy")
			goTool(t, dir, "build", "-o", "try", ".")
			// On a machine that stalls for seconds a program may print something else: not each of three times.
			want := slices.Sorted(slices.Values(printed(t, guide)))
			for round := 1; ; round++ {
				url := pgtest.URL(t, pgtest.Bare(t))
				got := run(t, filepath.Join(dir, "try"), url)
				if slices.Equal(got, want) {
					got = run(t, filepath.Join(dir, "try"), url)
				}
				if slices.Equal(got, want) {
					return
				}
				t.Logf("it prints\n%s\nand by the guide it is\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				if round == 3 {
					t.FailNow()
				}
			}
		})
	}
}

// program is the code of a guide that is a whole program.
func program(t *testing.T, guide string) string {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, guide), "in an empty folder:\n\n```go\n")
	code, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatalf("%s has no program", guide)
	}
	return code
}

// run runs a program, and returns the lines that it has printed, sorted.
func run(t *testing.T, program, url string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	return slices.Sorted(strings.SplitSeq(strings.TrimRight(stdout.String(), "\n"), "\n"))
}

// goTool runs the go command by its own flags, whatever this module is built with. What it asks of
// the network may fail once.
func goTool(t *testing.T, dir string, args ...string) {
	t.Helper()
	for try := 1; ; try++ {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err == nil {
			return
		}
		t.Logf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		if try == 3 {
			t.FailNow()
		}
		time.Sleep(time.Second)
	}
}
