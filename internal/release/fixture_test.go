package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files are those of a small repository with two modules, of which one requires the other.
func files() map[string]string {
	return map[string]string{
		".gitignore":   "*.ignored\n",
		"LICENSE":      "Do as you like.\n",
		"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-02\n\n- `Hello`.\n",
		"go.mod":       "module example.com/m\n\ngo 1.25.0\n",
		"m.go":         "package m\n\nimport _ \"embed\"\n\n//go:embed text\nvar text string\n\nfunc Hello() string { return text }\n",
		"text":         "hello\n",
		"sub/go.mod":   "module example.com/m/sub\n\ngo 1.25.0\n\nrequire example.com/m v0.2.0\n",
		"sub/go.work":  "go 1.25.0\n\nuse .\n\nreplace example.com/m => ../\n",
		"sub/main.go":  "package main\n\nimport \"example.com/m\"\n\nfunc main() { println(m.Hello()) }\n",
	}
}

// repository makes a repository of files: an empty one is left out.
func repository(t *testing.T, changed map[string]string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	all := files()
	for name, text := range changed {
		all[name] = text
	}
	mustGit(t, root, "init", "-q", "-b", "main")
	mustGit(t, root, "config", "user.name", "Ann")
	mustGit(t, root, "config", "user.email", "ann@example.com")
	mustGit(t, root, "config", "commit.gpgsign", "false")
	mustGit(t, root, "config", "tag.gpgsign", "false")
	for name, text := range all {
		if text != "" {
			write(t, root, name, text)
		}
	}
	commit(t, root)
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, root string) {
	t.Helper()
	mustGit(t, root, "add", "-A")
	mustGit(t, root, "commit", "-q", "-m", "more")
}

func mustGit(t *testing.T, root string, args ...string) string {
	t.Helper()
	out, err := git(root, args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// wantError fails the test unless the error says what is wanted: nothing is no error.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got the error %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got the error %v, want one that says %q", err, want)
	}
}
