package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

// lastTag is the last release before HEAD, empty before the first.
func lastTag(root string) (string, error) {
	tags, err := git(root, "tag", "--list", "v[0-9]*", "--merged", "HEAD",
		"--sort=-version:refname")
	if err != nil {
		return "", err
	}
	last, _, _ := strings.Cut(tags, "\n")
	return last, nil
}

// compareAPI prints what has changed in the exported names since the last release, and returns
// whether code that used it may no longer compile. Each such change must be named by the changelog,
// above the section of that release.
func compareAPI(
	root string, all []module, changelog string, out *log.Logger,
) (breaks bool, err error) {
	last, err := lastTag(root)
	if err != nil {
		return false, err
	}
	if last == "" {
		out.Print("No version is tagged yet: there is no API to be compatible with.")
		return false, nil
	}
	before, err := os.MkdirTemp("", "weir-api-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(before)) }()
	if err := extract(root, last, before); err != nil {
		return false, err
	}
	var unsaid []error
	for _, m := range all {
		dir := filepath.FromSlash(m.dir)
		if _, err := os.Stat(filepath.Join(before, dir, "go.mod")); os.IsNotExist(err) {
			out.Printf("%s is new", m.path)
			continue
		}
		report, err := changes(m.path, filepath.Join(before, dir), filepath.Join(root, dir))
		if err != nil {
			return false, err
		}
		for _, c := range report.Changes {
			if c.Compatible {
				out.Printf("%s: compatible: %s", m.path, c.Message)
				continue
			}
			breaks = true
			out.Printf("%s: INCOMPATIBLE: %s", m.path, c.Message)
			if name := changedName(c.Message); !isNamed(since(changelog, last), name) {
				unsaid = append(unsaid,
					fmt.Errorf("CHANGELOG.md does not say what became of %s since %s (%s: %s)",
						name, last, m.path, c.Message))
			}
		}
	}
	return breaks, errors.Join(unsaid...)
}

// changedName is the last name of what a change is about: Resume in "./ratelimit.(*Limiter).Resume:
// removed".
func changedName(message string) string {
	about, _, _ := strings.Cut(message, ": ")
	about, _, _ = strings.Cut(about, ",")
	return about[strings.LastIndexAny(about, "./)")+1:]
}

func isNamed(text, name string) bool {
	return regexp.MustCompile("`[^`]*\\b" + regexp.QuoteMeta(name) + "\\b[^`]*`").MatchString(text)
}

// extract writes the tree of a tag into a folder.
func extract(root, tag, dir string) error {
	file := filepath.Join(dir, "tree.tar")
	if _, err := git(root, "archive", "--format=tar", "--output", file, tag); err != nil {
		return err
	}
	if text, err := exec.Command("tar", "-x", "-f", file, "-C", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, text)
	}
	return os.Remove(file)
}

// changes compares the packages of a module that others can import.
func changes(path, before, after string) (apidiff.Report, error) {
	old, err := load(path, before)
	if err != nil {
		return apidiff.Report{}, err
	}
	now, err := load(path, after)
	if err != nil {
		return apidiff.Report{}, err
	}
	return apidiff.ModuleChanges(old, now), nil
}

func load(path, dir string) (*apidiff.Module, error) {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedDeps,
		Dir:  dir,
		Env:  append(os.Environ(), "GOWORK="), // that of the folder
	}, "./...")
	if err != nil {
		return nil, err
	}
	m := &apidiff.Module{Path: path}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("%s: %w", dir, p.Errors[0])
		}
		if p.Name == "main" || strings.Contains(p.PkgPath+"/", "/internal/") {
			continue
		}
		m.Packages = append(m.Packages, p.Types)
	}
	return m, nil
}
