package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/pgtest"
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
	pgtest.Main(m)
}
