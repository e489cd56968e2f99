package main

import (
	"log"
	"strings"
	"testing"
)

// From the first tag on, a change that breaks code of users is found, and has to be named by the
// changelog.
func TestTheAPIIsComparedWithTheLastRelease(t *testing.T) {
	t.Parallel()
	code := files()["m.go"] + "\ntype Limiter struct{}\n\nfunc (*Limiter) Resume() {}\n"
	for name, test := range map[string]struct {
		code   string
		said   string
		breaks bool
		prints string
		want   string
	}{
		"nothing":     {code: code},
		"an addition": {code: code + "\nfunc More() {}\n", prints: "example.com/m: compatible: More: added\n"},
		"a removal": {code: strings.Replace(code, "Resume", "Begin", 1),
			breaks: true, prints: "INCOMPATIBLE: (*Limiter).Resume: removed",
			want: "what became of Resume since v0.2.0"},
		"a removal, said": {code: strings.Replace(code, "Resume", "Begin", 1),
			said: "- `Limiter.Resume` is `Begin`.\n", breaks: true},
		"a removal, said of another": {code: strings.Replace(code, "Resume", "Begin", 1),
			said:   "- `Limiter.ResumeAll`, not Resume.\n",
			breaks: true, want: "what became of Resume"},
		"a parameter": {code: strings.Replace(code, "Hello()", "Hello(...int)", 1), breaks: true, want: "what became of Hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := repository(t, map[string]string{"m.go": code})
			mustGit(t, root, "tag", "v0.2.0")
			write(t, root, "m.go", test.code)
			changelog := strings.Replace(files()["CHANGELOG.md"], "[Unreleased]\n", "[Unreleased]\n\n"+test.said, 1)
			all, err := modules(root)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			breaks, err := compareAPI(root, all, changelog, log.New(&out, "", 0))
			wantError(t, err, test.want)
			if breaks != test.breaks || !strings.Contains(out.String(), test.prints) {
				t.Errorf("it breaks: %t, and prints\n%s", breaks, out.String())
			}
		})
	}
}

// The second number of a version before v1 says that something was broken.
func TestAPatchBreaksNothing(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v0.2.1": "not compatible with v0.2.0: raise the second number", "v0.3.0": "", "v1.0.0": "",
	} {
		root := repository(t, nil)
		mustGit(t, root, "tag", "v0.2.0")
		write(t, root, "m.go", strings.Replace(files()["m.go"], "Hello()", "Greet()", 1))
		write(t, root, "sub/main.go", strings.Replace(files()["sub/main.go"], "Hello()", "Greet()", 1))
		write(t, root, "CHANGELOG.md",
			"## ["+version[1:]+"] - 2026-01-03\n\n- `Greet` was `Hello`.\n\n## [0.2.0] - 2026-01-02\n\n- x\n")
		commit(t, root)
		_, err := releaseOf(t, root, version, false)
		wantError(t, err, want)
	}
}
