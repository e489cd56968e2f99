package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	fenced  = regexp.MustCompile("(?s)```.*?\n```")
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	named   = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z]*)`")
)

func pages(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.md")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d guides: %v", len(files), err)
	}
	return append(files, "../README.md")
}

// anchors are the headings of a page as GitHub links to them.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return all
}

// A link within the repository leads to a file that there is, and to a heading of it.
func TestTheLinksOfTheGuidesLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, file := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, file), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", file, m[1], err)
				continue
			}
			if anchor != "" && !anchors(read(t, target))[anchor] {
				t.Errorf("%s: %s: there is no such heading", file, m[1])
			}
		}
	}
}

// What the guides claim by a test or a benchmark has that test.
func TestTheGuidesNameTestsThatExist(t *testing.T) {
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
	n := 0
	for _, file := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, file), -1) {
			if n++; !strings.Contains(tests.String(), "func "+m[1]+"(") {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d are named", n)
	}
}

// The index has every guide.
func TestTheIndexHasEveryGuide(t *testing.T) {
	t.Parallel()
	index := read(t, "README.md")
	for _, file := range pages(t) {
		if !strings.Contains(file, "README") && !strings.Contains(index, "]("+file+")") {
			t.Errorf("README.md has no link to %s", file)
		}
	}
}
