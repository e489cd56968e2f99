package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// place finds what the mutant breaks, in the tree at root: in the file that it names, or, if that
// has the text no more, in the only file of the module that has it. So moving a line to another
// file costs nothing. The text must stand there once.
func (m mutant) place(root string) (file string, source []byte, err error) {
	switch n := m.times(root, m.file, &source); {
	case n == 1:
		return m.file, source, nil
	case n > 1:
		return "", nil, fmt.Errorf("%s has %d places that read %q, want 1", m.file, n, m.from)
	}
	module := m.module(root)
	var found []string
	err = filepath.WalkDir(filepath.Join(root, module),
		func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			at, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if d.IsDir() {
				if at != module && (hasModule(path) || strings.HasPrefix(d.Name(), ".") ||
					d.Name() == "testdata" || at == filepath.Join("internal", "test", "bite")) {
					return filepath.SkipDir
				}
				return nil
			}
			if filepath.Ext(at) != filepath.Ext(m.file) || strings.HasSuffix(at, "_test.go") {
				return nil
			}
			var text []byte
			for range m.times(root, at, &text) {
				found = append(found, at)
				source = text
			}
			return nil
		})
	switch {
	case err != nil:
		return "", nil, err
	case len(found) == 0:
		return "", nil, fmt.Errorf("nowhere in the module reads %q, which stood in %s", m.from,
			m.file)
	case len(found) > 1:
		return "", nil, fmt.Errorf("%s reads %q no more, and %s do: name the one that is meant",
			m.file, m.from, strings.Join(found, ", "))
	}
	return found[0], source, nil
}

// times reads a file and counts the text in it: 0 if there is no such file.
func (m mutant) times(root, file string, source *[]byte) int {
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return 0
	}
	*source = b
	return len(m.in(b))
}

// broken is source with what the mutant breaks.
func (m mutant) broken(source []byte) []byte {
	at := m.in(source)[0]
	return slices.Concat(source[:at[0]], []byte(m.to), source[at[1]:])
}

var space = regexp.MustCompile(`\s+`)

// in returns where a source has the text that the mutant breaks: as it is, or else with its lines
// broken elsewhere.
func (m mutant) in(source []byte) [][]int {
	if as := regexp.MustCompile(regexp.QuoteMeta(m.from)).FindAllIndex(source, -1); as != nil {
		return as
	}
	return m.pattern().FindAllIndex(source, -1)
}

// pattern matches the text with other white space where it has some, and within parentheses and
// braces.
func (m mutant) pattern() *regexp.Regexp {
	open := regexp.MustCompile(`\\[({]`)
	shut := regexp.MustCompile(`\\[)}]`)
	text := regexp.QuoteMeta(m.from)
	text = shut.ReplaceAllString(open.ReplaceAllString(text, `$0\s*`), `,?\s*$0`)
	return regexp.MustCompile(space.ReplaceAllLiteralString(text, `\s+`))
}

// module is the folder of the module that the mutant's file is in: the root's, or one of its own.
func (m mutant) module(root string) string {
	dir := filepath.Dir(m.file)
	for dir != "." && !hasModule(filepath.Join(root, dir)) {
		dir = filepath.Dir(dir)
	}
	return dir
}

func hasModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}
