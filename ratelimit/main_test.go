package ratelimit_test

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
