// Release tags the modules of this repository, and finds out before that users will be able to
// install them. CONTRIBUTING.md says how a release is made.
//
//	scripts/release [-n] v1.2.3    tags the version; with -n says only what it would do
//	scripts/release modules        lists the modules that are released, in their order
//	scripts/release tidy           does go mod tidy in each of them
//	scripts/release api            compares the API with that of the last release
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
)

const usage = `usage: scripts/release [-n] v1.2.3 | modules | tidy | api`

func main() {
	dry := flag.Bool("n", false, "say what would be done, and do nothing")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *dry, log.New(os.Stdout, "", 0)); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(what string, dry bool, out *log.Logger) error {
	top, err := git(".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root := strings.TrimSpace(top)
	all, err := modules(root)
	if err != nil {
		return err
	}
	changes, err := readChangelog(root)
	if err != nil {
		return err
	}
	switch what {
	case "modules":
		for _, m := range all {
			out.Print(m.dir)
		}
		return nil
	case "tidy":
		newest := released.FindStringSubmatch(changes)
		if newest == nil {
			return fmt.Errorf(
				"CHANGELOG.md has no version yet: the modules have none to require each other at",
			)
		}
		return tidy(root, "v"+newest[1], all, out.Writer())
	case "api":
		_, err := compareAPI(root, all, changes, out)
		return err
	}
	return release{root: root, version: what, modules: all, changelog: changes, dry: dry,
		out: out}.run()
}

// git runs git in a folder, and returns what it printed.
func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
