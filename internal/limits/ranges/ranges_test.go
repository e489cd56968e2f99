package ranges

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Hash is Postgres' hashtext, for keys of all lengths and bytes.
func TestHashIsThatOfPostgres(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var keys []string
	for n := range 60 {
		for range 10 {
			b := make([]rune, n)
			for i := range b {
				b[i] = []rune("ab9:-\x01\x7f\u00e9\u4e16\U0001f600")[r.IntN(10)]
			}
			keys = append(keys, string(b))
		}
	}
	rows, err := pgtest.Pool(t).Query(t.Context(), `SELECT hashtext(k) FROM unnest($1::text[]) WITH ORDINALITY AS u (k, nr) ORDER BY nr`, keys)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var want int32
		if err := rows.Scan(&want); err != nil {
			t.Fatal(err)
		}
		if got := Hash(keys[n]); got != want {
			t.Errorf("the hash of %q is %d, want %d", keys[n], got, want)
		}
	}
	if err := rows.Err(); err != nil || n != len(keys) {
		t.Fatalf("%d of %d hashes, %v", n, len(keys), err)
	}
}

func TestAKeyIsInTheRangeThatBeginsAtItsHashOrBefore(t *testing.T) {
	t.Parallel()
	if Of(nil) != nil {
		t.Error("a table without ranges has some")
	}
	if a, b := Of([]int32{1, 2}), Of([]int32{2, 1}); !a.Equal(b) || a.Equal(Of([]int32{1})) || a.Equal(nil) || Of(nil).Equal(nil) {
		t.Error("ranges are compared wrongly")
	}
	at := Hash("k")
	for _, c := range []struct {
		name string
		from []int32
		want int
	}{
		{"One", []int32{-1 << 31}, 0},
		{"Begins", []int32{-1 << 31, at}, 1},
		{"Before", []int32{-1 << 31, at + 1}, 0},
		{"Unsorted", []int32{at + 1, at - 1, -1 << 31}, 1},
		{"BelowAll", []int32{at + 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := Of(c.from).Find("k"); got != c.want {
				t.Errorf("the key is in range %d, want %d", got, c.want)
			}
		})
	}
}
