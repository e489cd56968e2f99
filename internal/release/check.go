package main

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// check returns the version at which the modules require each other, and what would keep users from
// requiring them at it.
func check(all []module) (version string, err error) {
	var wrong []error
	fail := func(m module, format string, args ...any) {
		wrong = append(
			wrong, fmt.Errorf("%s: %s", path.Join(m.dir, "go.mod"), fmt.Sprintf(format, args...)),
		)
	}
	if len(all) == 0 || all[0].dir != "." {
		return "", errors.New("the repository has no module in its root that can be released first")
	}
	root := all[0]
	for _, m := range all {
		if want := path.Join(root.path, m.dir); m.path != want {
			fail(m, "the module is named %s, and by its folder %s", m.path, want)
		}
		for _, r := range m.mod.Replace {
			fail(m,
				"replaces %s: a released module must not, as go install refuses it and others ignore it",
				r.Old.Path)
		}
		for _, x := range m.mod.Exclude {
			fail(m, "excludes %s: go install refuses that", x.Mod)
		}
		if semver.Compare("v"+m.mod.Go.Version, "v"+root.mod.Go.Version) > 0 {
			fail(m, "needs go %s, and the root says %s", m.mod.Go.Version, root.mod.Go.Version)
		}
		for _, r := range m.mod.Require {
			switch inside := r.Mod.Path == root.path || isBelow(r.Mod.Path, root.path); {
			case !inside:
			case !slices.ContainsFunc(all, func(o module) bool { return o.path == r.Mod.Path }):
				fail(m, "requires %s, which is not released", r.Mod.Path)
			case version == "":
				version = r.Mod.Version
			case version != r.Mod.Version:
				fail(m, "requires %s %s, and others are required at %s", r.Mod.Path, r.Mod.Version,
					version)
			}
		}
		if err := checkWork(m, all); err != nil {
			wrong = append(wrong, err)
		}
	}
	return version, errors.Join(wrong...)
}

func isBelow(module, root string) bool {
	return len(module) > len(root) && module[:len(root)+1] == root+"/"
}

// checkWork sees that a go.work replaces what m requires by what is in the tree. Without it m would
// be built with what was last released, and before that not at all: naming it by use is not enough
// for a version that the module proxy does not have.
func checkWork(m module, all []module) error {
	name := path.Join(m.dir, "go.work")
	required := m.required(all)
	if len(required) == 0 {
		return nil
	}
	if m.work == nil {
		return fmt.Errorf("%s is missing: make tidy writes it", name)
	}
	if len(m.work.Use) != 1 || path.Clean(m.work.Use[0].Path) != "." {
		return fmt.Errorf("%s must use its own folder, and no other", name)
	}
	for _, r := range required {
		if !slices.ContainsFunc(m.work.Replace, func(w *modfile.Replace) bool {
			return w.Old.Path == r.path && w.Old.Version == "" &&
				path.Join(m.dir, w.New.Path) == r.dir
		}) {
			return fmt.Errorf("%s does not replace %s by %s", name, r.path, relative(m, r))
		}
	}
	return nil
}

// relative is the folder of a module as seen from that of another.
func relative(from, to module) string {
	dir, err := filepath.Rel(filepath.FromSlash(from.dir), filepath.FromSlash(to.dir))
	if err != nil {
		return to.dir // both are relative to the root, so there is no error
	}
	return filepath.ToSlash(dir)
}
