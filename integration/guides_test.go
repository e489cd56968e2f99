package integration

import (
	"io/fs"
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

// Whatever Go stands in a guide stands in a file of this repository, which is compiled and mostly
// run: a part of it in one piece, or in several pieces between which there are empty lines.
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
