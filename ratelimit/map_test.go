package ratelimit

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The map in map.go has each file of the package once, and no other.
func TestTheMapHasAllFiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("map.go")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f != "map.go" && !strings.HasSuffix(f, "_test.go") {
			want = append(want, f)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(\S+\.go) +\S`).FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the map has\n%s\nand the package\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
