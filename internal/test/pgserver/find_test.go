//go:build unix

package pgserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeBin makes a folder of programs that claim to be of a version; of none, it has no server.
func fakeBin(t *testing.T, parts ...string) string {
	t.Helper()
	version := parts[len(parts)-1]
	dir := filepath.Join(append([]string{t.TempDir()}, parts[:len(parts)-1]...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if version == "" {
		return dir
	}
	// A process that another test starts meanwhile could have a program open for writing until it
	// runs its own, and nobody can run a program that is open for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for _, program := range []string{"postgres", "initdb"} {
		text := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func noPgConfig(string) (string, error) { return "", os.ErrNotExist }

func TestFindLooksInOrder(t *testing.T) {
	t.Parallel()
	good, old, empty := fakeBin(t, "17.2"), fakeBin(t, "13.4"), fakeBin(t, "")
	beta := fakeBin(t, "18beta1")
	linked := t.TempDir()
	if err := os.Symlink(filepath.Join(good, "postgres"), filepath.Join(linked, "postgres")); err != nil {
		t.Fatal(err)
	}
	usual := t.TempDir()
	for _, v := range []string{"9.6", "14", "16"} {
		if err := os.MkdirAll(filepath.Join(usual, v), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(fakeBin(t, "bin", v+".1"), filepath.Join(usual, v, "bin")); err != nil {
			t.Fatal(err)
		}
	}
	globs := []string{usual + "/*/bin"}
	for name, c := range map[string]struct {
		finder
		want string
	}{
		"PGBIN":             {finder{pgbin: beta, path: good, pgConfig: noPgConfig}, beta},
		"PATH":              {finder{path: empty + ":" + good, globs: globs, pgConfig: noPgConfig}, good},
		"PATH, by a link":   {finder{path: linked, globs: globs, pgConfig: noPgConfig}, good},
		"pg_config":         {finder{path: empty, globs: globs, pgConfig: func(string) (string, error) { return good, nil }}, good},
		"newest usual":      {finder{path: empty + ":" + old, globs: globs, pgConfig: noPgConfig}, filepath.Join(usual, "16", "bin")},
		"too old is passed": {finder{path: old, globs: []string{good}, pgConfig: noPgConfig}, good},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.find()
			want, _ := filepath.EvalSymlinks(c.want)
			if got, _ := filepath.EvalSymlinks(got); err != nil || got != want {
				t.Errorf("got %q and %v, want %q", got, err, want)
			}
		})
	}
}

func TestFindSaysWhatItLookedFor(t *testing.T) {
	t.Parallel()
	old, empty := fakeBin(t, "13.4"), fakeBin(t, "")
	for _, pgbin := range []string{empty, old, filepath.Join(empty, "missing")} {
		_, err := finder{pgbin: pgbin, pgConfig: noPgConfig}.find()
		if err == nil || errors.Is(err, errNotFound) || !strings.Contains(err.Error(), "PGBIN="+pgbin) {
			t.Errorf("PGBIN=%s: got %v, which must not lead to looking elsewhere", pgbin, err)
		}
	}
	_, err := finder{path: old + ":" + empty, globs: []string{"/no/such/*/place"}, pgConfig: noPgConfig}.find()
	if !errors.Is(err, errNotFound) {
		t.Fatal(err)
	}
	for _, want := range []string{"PGBIN", "PATH", "pg_config", "/no/such/*/place", "14 to 18", old, "version 13"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
