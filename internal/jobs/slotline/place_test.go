package slotline

import (
	"testing"

	"github.com/weir-go/weir/internal/hand"
)

// A place reads back from its row, whatever is in its name and its key.
func TestAPlaceReadsBack(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"exports", "1 x", "größe", " "} {
		for _, key := range []string{"", "k", " ", "2 a b", "ключ"} {
			want := hand.Place{Name: name, Key: key}
			if got, ok := placeOf(tenantOf(want)); !ok || got != want {
				t.Errorf("%q reads back as %q, %v", want, got, ok)
			}
		}
	}
	for _, odd := range []string{"", "x", "0  ", "-1 a b", "1 ab", "9 a b", "1"} {
		if got, ok := placeOf(odd); ok {
			t.Errorf("%q reads as %q", odd, got)
		}
	}
}
