package bench

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(crowdEnv); url != "" {
		if err := crowdChild(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}
