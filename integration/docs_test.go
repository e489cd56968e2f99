package integration

import (
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

// So is the client of an API.
func TestTheClientOfTheReadmeIsTheExample(t *testing.T) {
	t.Parallel()
	_, rest, ok := strings.Cut(read(t, "../README.md"), "return &http.Client{")
	code, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("README.md has no client")
	}
	code = strings.ReplaceAll("\n"+strings.TrimSpace("return &http.Client{"+code), "\n", "\n\t")
	if !strings.Contains(read(t, "../upstream/example_test.go"), code) {
		t.Errorf("upstream/example_test.go does not have the README's client:\n%s", code)
	}
}

// The table of promises names tests that exist.
func TestThePromisesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	var tests string
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "../*/*_test.go", "../dashboard/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			tests += read(t, f)
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(named) < 20 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !strings.Contains(tests, "func "+m[1]+"(") {
			t.Errorf("README.md names %s, which does not exist", m[1])
		}
	}
}
