package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/mod/semver"
)

// A release is the same version of all modules, tagged on one commit.
type release struct {
	root      string
	version   string
	modules   []module // in the order in which they are tagged
	changelog string
	dry       bool // writes, commits and tags nothing
	out       *log.Logger
}

// run checks everything before it changes anything. It pushes nothing: tags that the module proxy
// has seen are there for good.
func (r release) run() error {
	if err := r.ready(); err != nil {
		return err
	}
	if err := r.require(); err != nil {
		return err
	}
	for _, m := range r.modules {
		r.out.Print("tag ", m.tag(r.version))
		if r.dry {
			continue
		}
		if _, err := git(r.root, "tag", "-a", "-m", m.path+" "+r.version,
			m.tag(r.version)); err != nil {
			return err
		}
	}
	branch, err := git(r.root, "rev-parse", "--abbrev-ref", "HEAD")
	if err != nil {
		return err
	}
	r.out.Printf("\nNothing is pushed. When it is right, push in this order:\n\n\tgit push origin %s",
		strings.TrimSpace(branch))
	for _, m := range r.modules {
		r.out.Printf("\tgit push origin %s", m.tag(r.version))
	}
	return nil
}

// ready says what is to be done before the version can be tagged.
func (r release) ready() error {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("%q is no version: want one as v1.2.3", r.version)
	}
	if major := semver.Major(r.version); major != "v0" && major != "v1" {
		return fmt.Errorf("%s: the module paths have to end in /%s first", r.version, major)
	}
	changed, err := git(r.root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the tree is not clean:\n%s", strings.TrimRight(changed, "\n"))
	}
	if err := checkChangelog(r.changelog, r.version); err != nil {
		return err
	}
	if _, err := check(r.modules); err != nil {
		return err
	}
	for _, m := range r.modules {
		tag, err := git(r.root, "tag", "--list", m.tag(r.version))
		if err != nil {
			return err
		}
		if tag != "" {
			return fmt.Errorf("there is a tag %s", m.tag(r.version))
		}
	}
	if err := r.fits(); err != nil {
		return err
	}
	return r.packs()
}

// fits sees that the version comes after the last one, and says by its number whether code that
// used the last one still builds.
func (r release) fits() error {
	breaks, err := compareAPI(r.root, r.modules, r.changelog, r.out)
	if err != nil {
		return err
	}
	last, err := lastTag(r.root)
	if err != nil || last == "" {
		return err
	}
	if semver.Compare(r.version, last) <= 0 {
		return fmt.Errorf("%s is not after %s, the last release", r.version, last)
	}
	switch same := semver.MajorMinor(r.version) == semver.MajorMinor(last); {
	case breaks && semver.Major(r.version) == "v1" && semver.Major(last) == "v1":
		return errors.New("the API is not compatible with the last release, and a v1 has to be")
	case breaks && same:
		return fmt.Errorf("the API is not compatible with %s: raise the second number", last)
	}
	return nil
}

// packs sees that each module makes an archive that the go command takes.
func (r release) packs() error {
	dir, err := os.MkdirTemp("", "weir-release-")
	if err != nil {
		return err
	}
	return errors.Join(pack(r.root, r.modules, r.version, dir), os.RemoveAll(dir))
}

// require has the modules require each other at the version, in a commit of its own if one of them
// did not.
func (r release) require() error {
	var changed []string
	for _, m := range r.modules {
		required := m.required(r.modules)
		for _, q := range m.mod.Require {
			if isBelow(q.Mod.Path+"/", r.modules[0].path) && q.Mod.Version != r.version {
				r.out.Printf("%s requires %s %s", path.Join(m.dir, "go.mod"), q.Mod.Path, r.version)
				changed = append(changed, path.Join(m.dir, "go.mod"))
			}
		}
		if err := require(m, required, r.version); err != nil {
			return err
		}
		if r.dry || len(required) == 0 {
			continue
		}
		if err := writeMod(filepath.Join(r.root, filepath.FromSlash(m.dir)), m, nil); err != nil {
			return err
		}
	}
	if r.dry || len(changed) == 0 {
		return nil
	}
	_, err := git(r.root, append([]string{"commit", "-q", "-m",
		"all modules: require each other at " + r.version, "--"}, changed...)...)
	return err
}
