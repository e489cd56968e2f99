package main

import (
	"maps"
	"strings"
	"testing"
)

// What keeps users from installing a module is found: by its go.mod, or as it cannot be built from
// its archive.
func TestWhatCannotBeInstalledIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		changed map[string]string
		check   string // what check says
		install string // what the go command says outside
	}{
		"nothing is wrong": {},
		"a replace directive": {
			changed: map[string]string{"sub/go.mod": files()["sub/go.mod"] + "\nreplace example.com/m => ../\n"},
			check:   "sub/go.mod: replaces example.com/m",
			install: "more replace directives",
		},
		"another version": {
			changed: map[string]string{
				"other/go.mod":  "module example.com/m/other\n\ngo 1.25.0\n\nrequire example.com/m v0.1.0\n",
				"other/go.work": files()["sub/go.work"],
				"other/o.go":    "package other\n\nimport _ \"example.com/m\"\n",
			},
			check:   "v0.1.0",
			install: "example.com/m@v0.1.0",
		},
		"a version that was never made": {
			changed: map[string]string{"sub/go.mod": strings.Replace(files()["sub/go.mod"], "v0.2.0", "v0.3.0", 1)},
			install: "example.com/m@v0.3.0",
		},
		"a file that git ignores": {
			changed: map[string]string{"m.go": strings.Replace(files()["m.go"], "embed text",
				"embed text.ignored", 1), "text": "", "text.ignored": "hello\n"},
			install: "text.ignored",
		},
		"no license": {
			changed: map[string]string{"LICENSE": ""},
			install: "LICENSE",
		},
		"a requirement that only go.work supplies": {
			changed: map[string]string{
				"sub/go.mod":    "module example.com/m/sub\n\ngo 1.25.0\n\nrequire example.com/m/other v0.2.0\n",
				"sub/go.work":   "go 1.25.0\n\nuse .\n\nreplace example.com/m => ../\n\nreplace example.com/m/other => ../other\n",
				"other/go.mod":  "module example.com/m/other\n\ngo 1.25.0\n\nrequire example.com/m v0.2.0\n",
				"other/go.work": files()["sub/go.work"],
				"other/o.go":    "package other\n\nimport _ \"example.com/m\"\n",
			},
			install: "sub/go.mod is not tidy",
		},
		"no go.work": {
			changed: map[string]string{"sub/go.work": ""},
			check:   "sub/go.work is missing",
		},
		"a go.work without the root": {
			changed: map[string]string{"sub/go.work": "go 1.25.0\n\nuse .\n"},
			check:   "sub/go.work does not replace example.com/m by ..",
		},
		"a go.work that uses the root": {
			changed: map[string]string{"sub/go.work": "go 1.25.0\n\nuse (\n\t.\n\t..\n)\n"},
			check:   "sub/go.work must use its own folder, and no other",
		},
		"a name that is not its folder's": {
			changed: map[string]string{"sub/go.mod": strings.Replace(files()["sub/go.mod"], "m/sub", "m/below", 1)},
			check:   "the module is named example.com/m/below",
		},
		"a newer Go": {
			changed: map[string]string{"sub/go.mod": strings.Replace(files()["sub/go.mod"], "1.25.0", "1.26.0", 1)},
			check:   "needs go 1.26.0, and the root says 1.25.0",
		},
		"a module that is never released": {
			changed: map[string]string{
				"sub/go.mod":   "module example.com/m/sub\n\ngo 1.25.0\n\nrequire example.com/m/bench v0.2.0\n",
				"bench/go.mod": "module example.com/m/bench\n\ngo 1.25.0\n",
			},
			check: "requires example.com/m/bench, which is not released",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := repository(t, test.changed)
			all, err := modules(root)
			if err != nil {
				t.Fatal(err)
			}
			_, err = check(all)
			wantError(t, err, test.check)
			if test.check != "" && test.install == "" {
				return
			}
			wantError(t, installAll(t, root, all), test.install)
		})
	}
}

// installAll installs modules of which none requires one of others, without a network.
func installAll(t *testing.T, root string, all []module) error {
	t.Helper()
	const version = "v0.2.0"
	o := &outside{proxy: t.TempDir(), work: t.TempDir()}
	if err := pack(root, all, version, o.proxy); err != nil {
		return err
	}
	o.env = outsideEnv(t, o, "file://"+o.proxy)
	for _, m := range all {
		if err := o.install(t, m, version); err != nil {
			return err
		}
	}
	return nil
}

// A new module has only to be there: tidy gives it the form that check wants.
func TestTidyMendsANewModule(t *testing.T) {
	t.Parallel()
	changed := map[string]string{
		"other/go.mod": "module example.com/m/other\n\ngo 1.25.0\n\nrequire example.com/m v0.0.0\n\nreplace example.com/m => ../\n",
		"other/o.go":   "package other\n\nimport _ \"example.com/m\"\n",
	}
	root := repository(t, maps.Clone(changed))
	all, err := modules(root)
	if err != nil {
		t.Fatal(err)
	}
	_, err = check(all)
	wantError(t, err, "other/go.mod: replaces example.com/m")
	if err := tidy(root, "v0.2.0", all, t.Output()); err != nil {
		t.Fatal(err)
	}
	commit(t, root)
	if all, err = modules(root); err != nil {
		t.Fatal(err)
	}
	version, err := check(all)
	if err != nil || version != "v0.2.0" {
		t.Fatalf("at version %q: %v", version, err)
	}
	if err := installAll(t, root, all); err != nil {
		t.Error(err)
	}
}
