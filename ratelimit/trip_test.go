package ratelimit

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/engines"
)

// What Config.Portable sends around the statements over balances, other engines take, too.
func TestPortableTripsKeepToWhatOtherEnginesTake(t *testing.T) {
	t.Parallel()
	portable := &Limiter{cfg: Config{Portable: true}}
	texts := []string{
		beginTogetherSQL, beginSerializable.sql, commitSQL, idleSQL,
		beginSQL(pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}),
		portable.patienceSQL(time.Second, 0), portable.patienceSQL(time.Second, 5),
	}
	for _, sql := range texts {
		if problems := engines.Problems(sql); len(problems) > 0 {
			t.Errorf("%s has %s", sql, strings.Join(problems, "; "))
		}
	}
	if sql := new(Limiter).patienceSQL(time.Second, 0); len(engines.Problems(sql)) == 0 {
		t.Errorf("%s is not for Portable, and the list finds nothing in it: it does not bite", sql)
	}
}
