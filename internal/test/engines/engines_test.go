package engines

import (
	"slices"
	"strings"
	"testing"
)

func TestParametersWithoutATypeAreFound(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][]int{
		`SELECT`:                                                 nil,
		`SELECT $1::text, $2::int`:                               nil,
		`SELECT key = $1::text, name = $1`:                       nil, // it has its type by then
		`SELECT key = $1, name = $1::text`:                       {1},
		`SELECT key = $2 AND name = $1::text`:                    {2},
		`SELECT $3::text, $1::text`:                              {2},
		`SELECT $1::bigint[], $2 * $12, $3, 4, 'five'`:           {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		`INSERT INTO weir_slot VALUES ($1::text), ($2), ($3::x)`: {2},
	} {
		if got := Untyped(sql); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", sql, got, want)
		}
	}
}

func TestTwoChangesOfOneTableAreFound(t *testing.T) {
	t.Parallel()
	for sql, found := range map[string]bool{
		`INSERT INTO weir_slot VALUES (1) ON CONFLICT (n) DO UPDATE SET n = 2`:                            false,
		`WITH a AS (DELETE FROM weir_slot RETURNING n) INSERT INTO weir_line SELECT n FROM a`:             false,
		`WITH a AS (DELETE FROM weir_slot RETURNING n) INSERT INTO weir_slot SELECT n FROM a`:             true,
		`WITH a AS (UPDATE "s".weir_slot SET n = 1) INSERT INTO "s".weir_slot VALUES (1)`:                 true,
		`WITH a AS (SELECT FROM weir_slot FOR UPDATE OF weir_slot) UPDATE weir_slot SET n = 1 WHERE true`: false,
	} {
		got := slices.ContainsFunc(Problems(sql), func(s string) bool {
			return strings.HasPrefix(s, "two changes of ")
		})
		if got != found {
			t.Errorf("%s: %v, want %v", sql, got, found)
		}
	}
}

func TestWhatOtherEnginesRefuseIsFound(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]int{
		`SELECT value FROM weir_balance WHERE key = $1::text FOR NO KEY UPDATE`: 0,
		`SELECT value FROM weir_balance WHERE key = $1::text FOR SHARE`:         1,
		`SELECT value FROM weir_balance WHERE key = $1::text FOR KEY SHARE`:     1,
		`SELECT value / $1::float8 FROM weir_balance WHERE key = $2::text`:      0,
		`SELECT shard / 2 FROM weir_balance WHERE key = $1::text`:               1,
		`LISTEN weir`:                        1,
		`CREATE TABLE weir_other (key text)`: 1,
		`UPDATE weir_balance SET value = 1 WHERE key = $1::text`: 0,
	} {
		if found := Problems(sql); len(found) != want {
			t.Errorf("%s: %q, want %d", sql, found, want)
		}
	}
}
