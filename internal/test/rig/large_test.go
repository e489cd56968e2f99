package rig_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// make test/stress picks the large tests by name: it has all of them, and no others of their packages.
func TestMakeRunsTheLargeTests(t *testing.T) {
	t.Parallel()
	const root = "../../../"
	makefile, err := os.ReadFile(root + "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) string {
		t.Helper()
		found := regexp.MustCompile(`(?m)^` + name + ` := (.+)$`).FindSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return string(found[1])
	}
	picked := regexp.MustCompile(setting("LARGE_TESTS"))
	packages := map[string]bool{}
	for _, dir := range regexp.MustCompile(`\S+`).FindAllString(setting("LARGE_PACKAGES"), -1) {
		packages[filepath.Join(root, dir)] = true
	}
	var files []string
	for _, dir := range []string{"*", "*/*", "*/*/*"} {
		some, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, some...)
	}
	test := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{\n\tt\.Parallel\(\)\n(\trig\.Large\(t\)\n)?`)
	large, calls := map[string]int{}, map[string]int{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		if n := bytes.Count(b, []byte("rig."+"Large(")); n > 0 {
			calls[dir] += n
		}
		for _, m := range test.FindAllSubmatch(b, -1) {
			is := len(m[2]) > 0
			if is {
				large[dir]++
			}
			if name := string(m[1]); packages[dir] && is != picked.MatchString(name) {
				t.Errorf("%s: large %v, and in LARGE_TESTS %v", name, is, !is)
			}
		}
	}
	for dir, n := range calls {
		if !packages[dir] || large[dir] != n {
			t.Errorf("%s: in LARGE_PACKAGES %v, and of %d calls of rig.Large %d begin a test", dir, packages[dir], n, large[dir])
		}
	}
	for dir := range packages {
		if calls[dir] == 0 {
			t.Errorf("%s: no test is large", dir)
		}
	}
}
