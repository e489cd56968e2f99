package estimate

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"
)

// The division of two whole numbers decides, so that no rounding of the product moves the rank.
func TestRankIsExactForAllThousandths(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 1000; n++ {
		for p := 1; p <= 1000; p++ {
			if got, want := rank(float64(p)/1000, n), (p*n+999)/1000; got != want {
				t.Fatalf("rank %d of %d for the quantile %d/1000, want %d", got, n, p, want)
			}
		}
	}
	for p := 1; p <= 1000; p++ {
		if got, want := rank(float64(p)/1000, maxWindow), p*maxWindow/1000; got != want {
			t.Fatalf("rank %d of %d for the quantile %d/1000, want %d", got, maxWindow, p, want)
		}
	}
}

// Keys may be chosen by clients: a flood of them must not fill the memory.
func TestKeysAreOfBoundedNumber(t *testing.T) {
	t.Parallel()
	q, err := New(Config{MinObservations: 1})
	if err != nil {
		t.Fatal(err)
	}
	const flood, most = 1_000_000, 10_000
	for i := range flood {
		q.Observe(fmt.Sprint(i), float64(i))
		if i%9999 == 0 && (len(q.keys) != min(i+1, most) || q.recent.Len() != len(q.keys)) {
			t.Fatalf("%d keys and %d series after %d", len(q.keys), q.recent.Len(), i+1)
		}
	}
	if len(q.keys) != most || q.recent.Len() != most {
		t.Errorf("%d keys and %d series are left", len(q.keys), q.recent.Len())
	}
	if n := q.Next(fmt.Sprint(flood-most), -1); n != flood-most {
		t.Errorf("the oldest that fits has the estimate %v", n)
	}
	if n := q.Next(fmt.Sprint(flood-most-1), -1); n != -1 {
		t.Errorf("the one before it has the estimate %v", n)
	}
	for e := q.recent.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*series); cap(s.ring) != 100 || cap(s.sorted) != 100 || q.keys[s.key] != e {
			t.Fatalf("series of %q for a window of %d and %d", s.key, cap(s.ring), cap(s.sorted))
		}
	}
}

// Not parallel: it measures what the whole program has in memory.
func TestMemoryIsAsDocumented(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	q, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200_000 { // nearly all are forgotten again; a key's first usage takes the memory of its whole window
		q.Observe(fmt.Sprint("key", i), float64(i))
	}
	grown := int64(heap() - before)
	t.Logf("%d keys: %d bytes, %d each", len(q.keys), grown, grown/int64(len(q.keys)))
	if grown > 25<<20 {
		t.Errorf("%d bytes", grown)
	}
	runtime.KeepAlive(q)
}

func TestKeyIsKeptWithoutWhatItWasCutFrom(t *testing.T) {
	t.Parallel()
	q, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	large := fmt.Sprintf("%01000d", 0)
	q.Observe(large[:8], 1)
	for key := range q.keys {
		if unsafe.StringData(key) == unsafe.StringData(large) {
			t.Error("the key holds the whole string")
		}
	}
}
