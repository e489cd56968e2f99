package where

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Processes of different releases queue for the same locks: that of a row must never change.
func TestTheLockOfARowIsStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		row  Row
		want int64
	}{
		{Of("partnerAPI", "tenant-1", 0), 0x57652ca1cdcf8a99},
		{Of("partnerAPI", "tenant-2", 0), 0x57652315d3737e6d},
		{Of("signUp", "", 0), 0x576515eca5e12b79},
		{Of("größe", "日本", 0), 0x5765cb3688d42b42},
		{Of("hot", "", 1023), 0x57658c7ca8cde466},
		{Of("hot", "", 524799), 0x576520f0a8886e96},
	} {
		if got := Queue([]Row{tc.row}); !slices.Equal(got, []int64{tc.want}) {
			t.Errorf("%+v: %#x, want %#x", tc.row, got, tc.want)
		}
	}
}

// Everybody takes the locks in one order, each once, and all have the tag that the doctor looks
// for.
func TestLocksAreAscendingAndUnique(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOf(rapid.Custom(func(t *rapid.T) Row {
			return Of(rapid.String().Draw(t, "name"), rapid.String().Draw(t, "key"),
				rapid.Int32Range(0, 5e5).Draw(t, "shard"))
		})).Draw(t, "rows")
		ids := Queue(rows)
		for i, id := range ids {
			if id>>48 != QueueTag || i > 0 && ids[i-1] >= id {
				t.Fatalf("%x", ids)
			}
		}
		for _, r := range rows {
			if !slices.Contains(ids, Queue([]Row{r})[0]) {
				t.Fatalf("%+v is not in %x", r, ids)
			}
		}
	})
}

func TestRowsHaveLocksOfTheirOwn(t *testing.T) {
	t.Parallel()
	var rows []Row
	for i := range 50_000 {
		rows = append(rows, Of("limit", fmt.Sprintf("user:%d", i), 0), Of("limit", "", int32(i)))
	}
	if got := len(Queue(rows)); got != len(rows) {
		t.Errorf("%d rows have %d locks", len(rows), got)
	}
}
