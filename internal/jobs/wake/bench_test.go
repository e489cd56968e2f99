package wake_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/internal/jobs/wake"
)

// BenchmarkAdd remembers 5,000 jobs, as one transaction that inserts many does.
func BenchmarkAdd(b *testing.B) {
	for b.Loop() {
		w := wake.New(func([]int64) (map[int64]wake.Seen, error) { return nil, nil }, 5000)
		due := time.Now().Add(time.Hour)
		for id := range int64(5000) {
			w.Add(id, due.Add(time.Duration(id)*time.Millisecond), false)
		}
	}
}
