package contended

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

func TestContentionIsOfBoundedNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c Rows
		for i := range 3 * mostContended {
			c.Note(where.Of("limit", fmt.Sprint(i), 0))
			if len(c.rows) > mostContended {
				t.Fatalf("%d rows", len(c.rows))
			}
		}
		for r := range c.rows {
			c.rows[r] = time.Now().Add(-time.Second)
		}
		c.Note(where.Of("limit", "new", 0))
		if _, ok := c.rows[where.Of("limit", "new", 0)]; !ok || len(c.rows) != 1 {
			t.Errorf("%d rows after the others have expired", len(c.rows))
		}
	})
}

// A row that goes on failing stays contended, also when there is no room for others.
func TestFullContentionStillProlongsARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c Rows
		hot := where.Of("limit", "hot", 0)
		c.Note(hot)
		for i := range mostContended {
			c.Note(where.Of("limit", fmt.Sprint(i), 0))
		}
		soon := time.Now().Add(contendedFor / 2)
		c.rows[hot] = soon
		c.Note(hot)
		if !c.rows[hot].After(soon) {
			t.Error("a conflict of a row that is known was not noted")
		}
	})
}
