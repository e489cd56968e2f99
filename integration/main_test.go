package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		work := child
		if os.Getenv(leaseEnv) != "" {
			work = leaseChild
		}
		if err := work(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	rig.FewChecks()
	pgtest.Waiting(m, 4)
}
