package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		if err := child(url, os.Getenv(prefixEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}
