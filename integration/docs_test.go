package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The first code that a newcomer copies is an Example, which compiles and runs.
func TestTheQuickStartIsTheExample(t *testing.T) {
	t.Parallel()
	_, rest, ok := strings.Cut(read(t, "../README.md"), "```go\n")
	code, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("README.md has no code")
	}
	example := read(t, "../ratelimit/example_test.go")
	for part := range strings.SplitSeq(strings.TrimSpace(code), "\n\n") {
		if !strings.Contains(example, part) {
			t.Errorf("ratelimit/example_test.go does not have this part of the quick start:\n%s", part)
		}
	}
}

// The table of promises names tests that exist.
func TestThePromisesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	if err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, "_test.go") {
			tests.WriteString(read(t, path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !strings.Contains(tests.String(), "func "+m[1]+"(") {
			t.Errorf("README.md names %s, which does not exist", m[1])
		}
	}
}
