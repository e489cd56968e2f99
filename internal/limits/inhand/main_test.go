package inhand

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// Its properties draw the same cases in each run.
func TestMain(m *testing.M) { pgtest.Main(m) }
