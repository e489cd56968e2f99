package faults

import (
	"fmt"
	"os"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		run := child
		if k := os.Getenv(kindEnv); k != "" {
			work := serve
			if os.Getenv(upstreamEnv) != "" {
				work = settle
			}
			run = func(url, prefix string) error { return work(url, prefix, kind(k)) }
		}
		if err := run(url, os.Getenv(prefixEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Waiting(m, 3)
}
