package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The modules of this tree can be required and installed by people who have nothing else of it.
func TestTheReleasedModulesCanBeInstalled(t *testing.T) {
	t.Parallel()
	const root = "../.."
	all, err := modules(root)
	if err != nil {
		t.Fatal(err)
	}
	version, err := check(all)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := readChangelog(root)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(changes, "\n## ["+strings.TrimPrefix(version, "v")+"]") {
		t.Errorf("the modules require each other at %s, which CHANGELOG.md does not have", version)
	}
	o := newOutside(t, root, version)
	for _, m := range all {
		t.Run(m.path, func(t *testing.T) {
			if err := o.install(t, m, version); err != nil {
				t.Error(err)
			}
		})
	}
	start, err := os.ReadFile(filepath.Join(root, "docs/programs/start/main.go")) // README.md shows it whole
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"README": string(start), "otelweir": withOtel, "shed": withShed} {
		t.Run(name, func(t *testing.T) {
			if err := o.build(t, program); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("weir", func(t *testing.T) {
		if err := o.run(t, o.work, filepath.Join(o.work, "weir"), "help"); err != nil {
			t.Error(err)
		}
	})
}

const withOtel = `package main

import (
	"log"

	"github.com/weir-go/weir/otelweir"
	"github.com/weir-go/weir/ratelimit"
)

func main() {
	observer, err := otelweir.New(otelweir.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ratelimit.New(ratelimit.Config{Observer: observer}); err != nil {
		log.Fatal(err)
	}
}
`

const withShed = `package main

import (
	"log"
	"net/http"

	"github.com/weir-go/weir/shed"
)

func main() {
	shedder, err := shed.New(shed.Config{Limit: 64})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(":8080", shedder.Handler(http.NotFoundHandler())))
}
`
