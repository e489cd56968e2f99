package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/mod/modfile"
)

// tidy brings the released modules into the form that check wants, and does go mod tidy in each.
// The go command cannot by itself: a module requires what of the others is released, and is built
// with what is in the tree. A module that is new may have a replace directive and no go.work.
func tidy(root, version string, all []module, out io.Writer) error {
	for _, m := range all {
		required := m.required(all)
		for _, r := range m.mod.Replace {
			if slices.ContainsFunc(required, func(o module) bool { return o.path == r.Old.Path }) {
				if err := m.mod.DropReplace(r.Old.Path, r.Old.Version); err != nil {
					return err
				}
			}
		}
		if err := require(m, required, version); err != nil {
			return err
		}
		if err := writeWork(root, m, required); err != nil {
			return err
		}
		if err := tidyOne(root, m, required, out); err != nil {
			return fmt.Errorf("tidy %s: %w", path.Join(m.dir, "go.mod"), err)
		}
	}
	return nil
}

// require sets the version at which m requires the others.
func require(m module, required []module, version string) error {
	for _, r := range m.mod.Require {
		if r.Mod.Version != version && slices.ContainsFunc(required, func(o module) bool {
			return o.path == r.Mod.Path
		}) {
			if err := m.mod.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
	}
	m.mod.Cleanup()
	return nil
}

// writeWork writes the go.work of a module that requires others.
func writeWork(root string, m module, required []module) error {
	if m.work != nil || len(required) == 0 {
		return nil
	}
	work := &modfile.WorkFile{Syntax: &modfile.FileSyntax{}}
	if err := work.AddGoStmt(m.mod.Go.Version); err != nil {
		return err
	}
	if err := work.AddUse(".", ""); err != nil {
		return err
	}
	for _, r := range required {
		if err := work.AddReplace(r.path, "", relative(m, r), ""); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(root, filepath.FromSlash(m.dir), "go.work"),
		modfile.Format(work.Syntax), 0o644)
}

// tidyOne does go mod tidy with the modules that m requires as they are in the tree.
func tidyOne(root string, m module, required []module, out io.Writer) error {
	dir := filepath.Join(root, filepath.FromSlash(m.dir))
	if err := writeMod(dir, m, required); err != nil {
		return err
	}
	cmd := exec.Command("go", "mod", "tidy")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	cmd.Stdout, cmd.Stderr = out, out
	tidied := cmd.Run()
	m, err := readModule(root, m.dir)
	if err != nil {
		return err
	}
	for _, r := range required {
		if err := m.mod.DropReplace(r.path, ""); err != nil {
			return err
		}
	}
	if err := writeMod(dir, m, nil); err != nil {
		return err
	}
	return tidied
}

// writeMod writes a module's go.mod, with the replaced ones from the tree.
func writeMod(dir string, m module, replaced []module) error {
	for _, r := range replaced {
		if err := m.mod.AddReplace(r.path, "", relative(m, r), ""); err != nil {
			return err
		}
	}
	m.mod.Cleanup()
	text, err := m.mod.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644)
}
