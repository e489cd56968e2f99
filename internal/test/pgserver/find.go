//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Supported versions of the server.
const oldest, newest = 14, 18

// errNotFound says that there is no server on this machine; its text lists where one was looked
// for.
var errNotFound = errors.New("no Postgres server found")

// finder looks for server binaries; tests replace what it looks at.
type finder struct {
	pgbin    string                            // PGBIN
	path     string                            // PATH
	globs    []string                          // usual places, later versions last
	pgConfig func(path string) (string, error) // asks pg_config on that PATH
}

func newFinder() finder {
	return finder{
		pgbin: os.Getenv("PGBIN"),
		path:  os.Getenv("PATH"),
		globs: []string{
			"/usr/lib/postgresql/*/bin",
			"/usr/pgsql-*/bin",
			"/usr/local/opt/postgresql@*/bin",
			"/opt/homebrew/opt/postgresql@*/bin",
			"/usr/local/pgsql/bin",
			"/opt/homebrew/bin",
		},
		pgConfig: askPgConfig,
	}
}

// find returns the folder with initdb and postgres.
func (f finder) find() (string, error) {
	if f.pgbin != "" {
		bin, err := check(f.pgbin)
		if err != nil {
			return "", fmt.Errorf("PGBIN=%s is of no use: %w", f.pgbin, err)
		}
		return bin, nil
	}

	var places, problems []string
	for _, dir := range filepath.SplitList(f.path) {
		// a link to the server says where its other programs are
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil {
			places = append(places, filepath.Dir(real))
		}
	}
	if dir, err := f.pgConfig(f.path); err == nil {
		places = append(places, dir)
	}
	for _, glob := range f.globs {
		dirs, _ := filepath.Glob(glob) // the patterns are ours, and good
		slices.SortFunc(dirs, func(a, b string) int { return number(b) - number(a) })
		places = append(places, dirs...)
	}
	for _, dir := range places {
		bin, err := check(dir)
		if err == nil {
			return bin, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, fmt.Sprintf("%s: %v", dir, err))
		}
	}
	text :=
		fmt.Sprintf("looked in PGBIN (unset), on PATH, at pg_config --bindir, and in %s for versions %d to %d",
			strings.Join(f.globs, ", "), oldest, newest)
	if len(problems) > 0 {
		text += "; not used: " + strings.Join(problems, "; ")
	}
	return "", fmt.Errorf("%w: %s", errNotFound, text)
}

var digits = regexp.MustCompile(`\d+`)

// number is the version in a path, for sorting: the last number there is.
func number(path string) int {
	all := digits.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

func askPgConfig(path string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, "pg_config")
		if _, err := os.Stat(program); err != nil {
			continue
		}
		out, err := exec.Command(program, "--bindir").Output()
		return strings.TrimSpace(string(out)), err
	}
	return "", os.ErrNotExist
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// check returns dir, made absolute, if it has a server that is supported.
func check(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for _, program := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return "", fmt.Errorf("no %s there: %w", program, os.ErrNotExist)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "-V").Output()
	if err != nil {
		return "", fmt.Errorf("postgres -V: %w", err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("postgres -V said %q", out)
	}
	if v, _ := strconv.Atoi(string(m[1])); v < oldest || v > newest {
		return "", fmt.Errorf("it is version %d; supported are %d to %d", v, oldest, newest)
	}
	return dir, nil
}
