package main

import (
	"log"
	"strings"
	"testing"
)

// releaseOf does what scripts/release does in a repository, and returns what it printed.
func releaseOf(t *testing.T, root, version string, dry bool) (string, error) {
	t.Helper()
	all, err := modules(root)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := readChangelog(root)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = release{root: root, version: version, modules: all, changelog: changes, dry: dry,
		out: log.New(&out, "", 0)}.run()
	return out.String(), err
}

// A release is one commit at which the modules require each other, with the root's tag first, and
// says what to push.
func TestAReleaseTagsTheModulesInOrder(t *testing.T) {
	t.Parallel()
	root := repository(t, map[string]string{
		// By its name it would be the first.
		"another/go.mod":  "module example.com/m/another\n\ngo 1.25.0\n\nrequire example.com/m/sub v0.1.0\n\nrequire example.com/m v0.1.0 // indirect\n",
		"another/go.work": "go 1.25.0\n\nuse .\n\nreplace example.com/m => ../\n\nreplace example.com/m/sub => ../sub\n",
		"sub/go.mod":      strings.Replace(files()["sub/go.mod"], "v0.2.0", "v0.1.0", 1),
	})
	before := mustGit(t, root, "rev-parse", "HEAD")
	dry, err := releaseOf(t, root, "v0.2.0", true)
	if err != nil {
		t.Fatal(err)
	}
	if mustGit(t, root, "rev-parse", "HEAD") != before ||
		mustGit(t, root, "status", "--porcelain") != "" || mustGit(t, root, "tag") != "" {
		t.Error("a dry run has changed something")
	}
	out, err := releaseOf(t, root, "v0.2.0", false)
	if err != nil {
		t.Fatal(err)
	}
	if out != dry {
		t.Errorf("it printed\n%s\nand the dry run\n%s", out, dry)
	}
	const want = `No version is tagged yet: there is no API to be compatible with.
sub/go.mod requires example.com/m v0.2.0
another/go.mod requires example.com/m/sub v0.2.0
another/go.mod requires example.com/m v0.2.0
tag v0.2.0
tag sub/v0.2.0
tag another/v0.2.0

Nothing is pushed. When it is right, push in this order:

	git push origin main
	git push origin v0.2.0
	git push origin sub/v0.2.0
	git push origin another/v0.2.0
`
	if out != want {
		t.Errorf("it printed\n%s\nwant\n%s", out, want)
	}
	if mustGit(t, root, "rev-list", "--count", before+"..HEAD") != "1" ||
		mustGit(t, root, "status", "--porcelain") != "" {
		t.Error("the requirements are not one commit")
	}
	for _, tag := range []string{"v0.2.0", "sub/v0.2.0", "another/v0.2.0"} {
		if mustGit(t, root, "rev-parse", tag+"^{commit}") != mustGit(t, root, "rev-parse", "HEAD") {
			t.Errorf("%s is not the commit of the release", tag)
		}
		if mod := mustGit(t, root, "show", tag+":another/go.mod"); strings.Contains(mod, "v0.1.0") {
			t.Errorf("at %s it is\n%s", tag, mod)
		}
	}
}

func TestAReleaseThatIsNotReadyIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		changed map[string]string
		before  func(*testing.T, string)
		version string
		want    string
	}{
		"no version":            {version: "0.2.0", want: "is no version"},
		"a version with a part": {version: "v0.2", want: "is no version"},
		"another major version": {version: "v2.0.0", want: "have to end in /v2"},
		"not in the changelog":  {version: "v0.3.0", want: "the newest section is not that of v0.3.0"},
		"an entry left unreleased": {changed: map[string]string{
			"CHANGELOG.md": "## [Unreleased]\n\n- More.\n\n## [0.2.0] - 2026-01-02\n\n- x\n",
		}, want: "under Unreleased"},
		"no date": {changed: map[string]string{"CHANGELOG.md": "## [0.2.0]\n\n- x\n"}, want: "needs a date"},
		"nothing said": {changed: map[string]string{
			"CHANGELOG.md": "## [0.2.0] - 2026-01-02\n\n## [0.1.0] - 2026-01-01\n\n- x\n",
		}, want: "is empty"},
		"a replace directive": {changed: map[string]string{
			"sub/go.mod": files()["sub/go.mod"] + "\nreplace example.com/m => ../\n",
		}, want: "replaces example.com/m"},
		"a tree that is not clean": {before: func(t *testing.T, root string) { write(t, root, "new", "x") }, want: "not clean"},
		"a tag that there is": {before: func(t *testing.T, root string) {
			mustGit(t, root, "tag", "sub/v0.2.0")
		}, want: "there is a tag sub/v0.2.0"},
		"after a later one": {before: func(t *testing.T, root string) {
			mustGit(t, root, "tag", "v0.2.1")
		}, want: "v0.2.0 is not after v0.2.1"},
		"names that Windows lacks": {changed: map[string]string{"aux": "x"}, want: "aux"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := repository(t, test.changed)
			if test.before != nil {
				test.before(t, root)
			}
			version := test.version
			if version == "" {
				version = "v0.2.0"
			}
			head, tags := mustGit(t, root, "rev-parse", "HEAD"), mustGit(t, root, "tag")
			_, err := releaseOf(t, root, version, false)
			wantError(t, err, test.want)
			if mustGit(t, root, "rev-parse", "HEAD") != head || mustGit(t, root, "tag") != tags {
				t.Error("it has committed or tagged something")
			}
		})
	}
}
