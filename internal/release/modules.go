package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// unreleased are the folders of the modules that no release tags: nobody requires them. They find
// the others by a replace directive. All other modules of the repository are released.
var unreleased = []string{"bench", "dashboard/browsertest", "docs/frameworks", "docs/orms",
	"integration/databasesql", "internal/release"}

// A module is one that is released.
type module struct {
	path string // github.com/weir-go/weir/otelweir
	dir  string // relative to the repository, with slashes: otelweir, and . for the root
	mod  *modfile.File
	work *modfile.WorkFile // its go.work, nil if it has none
}

// tag is the module's tag for a version: the go command looks for a module below the root by the
// name of its folder.
func (m module) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

// modules returns the released modules of the repository, each after those that it requires.
func modules(root string) ([]module, error) {
	listed, err := git(root, "ls-files", "-z", "--", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var found []module
	for file := range strings.SplitSeq(strings.Trim(listed, "\x00"), "\x00") {
		dir := path.Dir(file)
		if file == "" || slices.Contains(unreleased, dir) ||
			slices.Contains(strings.Split(dir, "/"), "testdata") {
			continue
		}
		m, err := readModule(root, dir)
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return inOrder(found)
}

func readModule(root, dir string) (module, error) {
	name := filepath.Join(root, filepath.FromSlash(dir), "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return module{}, err
	}
	file, err := modfile.Parse(name, text, nil)
	if err != nil {
		return module{}, err
	}
	if file.Module == nil || file.Go == nil {
		return module{}, fmt.Errorf("%s needs a module line and a go line", name)
	}
	m := module{path: file.Module.Mod.Path, dir: dir, mod: file}
	name = filepath.Join(filepath.Dir(name), "go.work")
	text, err = os.ReadFile(name)
	if os.IsNotExist(err) {
		return m, nil
	}
	if err != nil {
		return module{}, err
	}
	m.work, err = modfile.ParseWork(name, text, nil)
	return m, err
}

// required returns those of all that m requires, itself or by way of others.
func (m module) required(all []module) []module {
	var found []module
	var add func(module)
	add = func(m module) {
		for _, r := range m.mod.Require {
			i := slices.IndexFunc(all, func(o module) bool { return o.path == r.Mod.Path })
			if i >= 0 && !slices.ContainsFunc(found, func(o module) bool {
				return o.path == r.Mod.Path
			}) {
				found = append(found, all[i])
				add(all[i])
			}
		}
	}
	add(m)
	return found
}

// inOrder sorts modules by what they require, and otherwise by their paths.
func inOrder(all []module) ([]module, error) {
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	var sorted []module
	left := slices.Clone(all)
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(m module) bool {
			return !slices.ContainsFunc(m.required(all), func(r module) bool {
				return !slices.ContainsFunc(sorted, func(s module) bool { return s.path == r.path })
			})
		})
		if i < 0 {
			return nil, fmt.Errorf("%s and others require each other", left[0].path)
		}
		sorted = append(sorted, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return sorted, nil
}
