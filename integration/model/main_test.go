package model

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
)

func TestMain(m *testing.M) {
	rig.FewChecks()
	pgtest.Waiting(m, 4)
}
