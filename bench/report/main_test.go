package main

import (
	"errors"
	"testing"

	"github.com/weir-go/weir/bench/internal/redisserver"
	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// testRig is a rig for as long as a test runs.
func testRig(t *testing.T) *rig {
	t.Helper()
	r, err := newRig(t.Context())
	needsRedis(t, err)
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func needsRedis(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, redisserver.ErrNotFound) {
		t.Skip("skipped: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// granted is an error if an ample limit has denied.
func granted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("an ample limit has denied")
	}
	return err
}
