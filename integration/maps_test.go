package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = ".."

// A package comment that lists the files of its package, as ratelimit's map does, has each once,
// and no other.
func TestAListOfFilesHasAllOfThem(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^//\t(\S+\.go) +\S`)
	lists := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var got, want []string
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			got = append(got, m[1])
		}
		if len(got) == 0 {
			return nil
		}
		lists++
		files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.go"))
		for _, f := range files {
			own := f == path && (d.Name() == "map.go" || d.Name() == "doc.go") // has nothing else
			if !own && !strings.HasSuffix(f, "_test.go") {
				want = append(want, filepath.Base(f))
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s lists\n%s\nand the package has\n%s", path, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return err
	})
	if err != nil || lists < 7 {
		t.Errorf("%d lists, %v", lists, err)
	}
}

// Where CONTRIBUTING's tables say what to look at, the files are there, and have the names in parentheses
// behind them.
func TestWhatToLookAtIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile("`([a-z/_]+/[a-z_/]+(?:\\.(?:go|js))?)`(?: \\(([^)]*)\\))?")
	name := regexp.MustCompile("`(\\w+)(?:\\.\\w+)?`")
	files, names := 0, 0
	for row := range strings.Lines(string(text)) {
		if !strings.HasPrefix(row, "| ") {
			continue
		}
		for _, m := range place.FindAllStringSubmatch(row, -1) {
			path := filepath.Join(root, m[1])
			info, err := os.Stat(path)
			if err != nil {
				t.Error(err)
				continue
			}
			files++
			if info.IsDir() {
				continue
			}
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range name.FindAllStringSubmatch(m[2], -1) {
				names++
				if !strings.Contains(string(source), n[1]) {
					t.Errorf("%s has no %s", m[1], n[1])
				}
			}
		}
	}
	if files < 100 || names < 60 {
		t.Errorf("%d files and %d names", files, names)
	}
}
