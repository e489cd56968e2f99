package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	modpath "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// outside are the folders of somebody who has nothing of this repository except what its modules'
// archives hold.
type outside struct {
	proxy string // the modules, as a module proxy serves them
	work  string
	env   []string
}

// newOutside packs the modules of a repository.
func newOutside(t *testing.T, root, version string) *outside {
	t.Helper()
	all, err := modules(root)
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{proxy: t.TempDir(), work: t.TempDir()}
	if err := pack(root, all, version, o.proxy); err != nil {
		t.Fatal(err)
	}
	// Modules of others come from what this machine has downloaded, and from the network if it has
	// not.
	o.env = outsideEnv(t, o, "file://"+o.proxy, "file://"+goEnv(t, "GOMODCACHE")+"/cache/download", goEnv(t, "GOPROXY"))
	return o
}

// outsideEnv is the environment there. Modules are unpacked in a folder of their own: a version of
// ours that is really released has other files.
func outsideEnv(t *testing.T, o *outside, proxies ...string) []string {
	t.Helper()
	return append(os.Environ(), "GOPROXY="+strings.Join(proxies, ","),
		"GOMODCACHE="+filepath.Join(t.TempDir(), "mod"), "GOBIN="+o.work,
		"GOFLAGS=-mod=mod -modcacherw -trimpath", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=",
		"GOWORK=", "GOTOOLCHAIN=local")
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// run runs a command in a folder there.
func (o *outside) run(t *testing.T, dir string, args ...string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, o.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// build builds a program in an empty folder, by the commands that README.md gives.
func (o *outside) build(t *testing.T, program string) error {
	t.Helper()
	dir, err := os.MkdirTemp(o.work, "program-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		return err
	}
	for _, command := range []string{"go mod init example.com/start", "go mod tidy", "go build -o /dev/null ."} {
		if err := o.run(t, dir, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// unpack writes a module from the proxy into a folder.
func (o *outside) unpack(t *testing.T, m module, version string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp(o.work, "module-")
	if err != nil {
		return "", err
	}
	archive := filepath.Join(o.proxy, filepath.FromSlash(m.path), "@v", version+".zip")
	return dir, zip.Unzip(dir, modpath.Version{Path: m.path, Version: version}, archive)
}

// packagesIn lists the packages in an unpacked module: those that others can import, and whether
// its own is a command.
func packagesIn(dir, path string) (importable []string, command bool, err error) {
	err = filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "internal" || d.Name() == "testdata") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		at, err := filepath.Rel(dir, filepath.Dir(file))
		if err != nil {
			return err
		}
		if strings.HasPrefix(string(text), "package main\n") || bytes.Contains(text, []byte("\npackage main\n")) {
			command = command || at == "."
			return nil
		}
		if name := strings.TrimSuffix(path+"/"+filepath.ToSlash(at), "/."); !slices.Contains(importable, name) {
			importable = append(importable, name)
		}
		return nil
	})
	return importable, command, err
}

// install does with a module what its users do: imports each of its packages, and installs it if it
// is a command. Its go.mod must name all that it needs: in the repository, go.work may have
// supplied it.
func (o *outside) install(t *testing.T, m module, version string) error {
	t.Helper()
	dir, err := o.unpack(t, m, version)
	if err != nil {
		return err
	}
	importable, command, err := packagesIn(dir, m.path)
	if err != nil {
		return err
	}
	if len(importable) > 0 {
		var program strings.Builder
		program.WriteString("package main\n\n")
		for _, p := range importable {
			fmt.Fprintf(&program, "import _ %q\n", p)
		}
		program.WriteString("\nfunc main() {}\n")
		if err := o.build(t, program.String()); err != nil {
			return err
		}
	}
	if command {
		if err := o.run(t, o.work, "go", "install", m.path+"@"+version); err != nil {
			return err
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	if err := o.run(t, dir, "go", "mod", "tidy"); err != nil {
		return err
	}
	after, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err == nil && !bytes.Equal(before, after) {
		err = fmt.Errorf("%s/go.mod is not tidy: make tidy writes\n%s", m.dir, after)
	}
	return err
}
