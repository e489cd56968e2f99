package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// flat is the lines of code, without what places it: indentation and empty lines.
func flat(code string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line)
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Whatever Go stands in a guide stands in a file of this repository, which is compiled and mostly run: a part of it in one piece,
// or in several pieces between which there are empty lines.
func TestTheCodeOfTheGuidesIsCompiled(t *testing.T) {
	t.Parallel()
	var compiled strings.Builder
	if err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !d.IsDir() {
			compiled.WriteString(flat(read(t, path)))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	guides, err := filepath.Glob("../docs/*.md")
	if err != nil || len(guides) == 0 {
		t.Fatal("no guides", err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```")
	for _, guide := range guides {
		for _, m := range block.FindAllStringSubmatch(read(t, guide), -1) {
			for piece := range strings.SplitSeq(strings.TrimSpace(m[1]), "\n\n") {
				if !strings.Contains(compiled.String(), flat(piece)) {
					t.Errorf("%s: no file of the repository has this piece of code:\n%s", guide, piece)
				}
			}
		}
	}
}

// Whatever a page of the repository leads to is there, and has the heading.
func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]*)?\)`)
	pages := 0
	if err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") {
			if d != nil && d.IsDir() && (d.Name() == ".bin" || d.Name() == "node_modules") {
				return fs.SkipDir
			}
			return err
		}
		pages++
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			to := path
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s leads to %s, which is not there", path, m[1])
				continue
			}
			if m[2] == "" || !strings.HasSuffix(to, ".md") {
				continue
			}
			found := false
			for line := range strings.Lines(read(t, to)) {
				found = found || strings.HasPrefix(line, "#") && anchor(line) == m[2][1:]
			}
			if !found {
				t.Errorf("%s leads to %s%s: there is no such heading", path, m[1], m[2])
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if pages < 10 {
		t.Errorf("only %d pages", pages)
	}
}

// anchor is that of a heading.
func anchor(heading string) string {
	text := strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#")))
	return regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ReplaceAll(text, " ", "-"), "")
}
