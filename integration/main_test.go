package integration

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		work := child
		if os.Getenv(crowdEnv) != "" {
			work = crowdChild
		}
		if os.Getenv(leaseEnv) != "" {
			work = leaseChild
		}
		if err := work(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// A property draws a hundred cases, or a quarter of them where nobody asks for more: each is many
	// statements.
	if os.Getenv("WEIR_TEST_DURATION") == "" {
		if err := flag.Set("rapid.checks", "25"); err != nil { // -rapid.checks overrides it
			panic(err)
		}
	}
	pgtest.Waiting(m, 4)
}
