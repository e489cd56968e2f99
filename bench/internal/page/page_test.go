package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const before = "# Title\n<!-- one -->\nold\n<!-- end -->\nprose\n<!-- two -->\n<!-- end -->\nmore\n"

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFill(t *testing.T) {
	t.Parallel()
	file := write(t, before)
	for range 2 { // again changes nothing
		if err := Fill(file, map[string]string{"one": "new\n", "two": "| a |"}); err != nil {
			t.Fatal(err)
		}
		want := "# Title\n<!-- one -->\n\nnew\n\n<!-- end -->\nprose\n<!-- two -->\n\n| a |\n\n<!-- end -->\nmore\n"
		if got := read(t, file); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFillWritesAllOrNothing(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string]map[string]string{
		before:                      {"one": "new", "three": "new"},
		"<!-- one -->\nno end\n":    {"one": "new"},
		"<!-- end -->\nno begin \n": {"one": "new"},
	} {
		file := write(t, text)
		if err := Fill(file, parts); err == nil || !strings.Contains(err.Error(), "has no mark") {
			t.Errorf("%q was filled: %v", text, err)
		}
		if got := read(t, file); got != text {
			t.Errorf("it became %q", got)
		}
	}
}
