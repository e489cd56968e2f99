package slots_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/slots"
)

// open makes Slots that stand for a process, closed at the end of the test. What is still held then
// is lost.
func open(t testing.TB, pool *pgxpool.Pool, cfg slots.Config) *slots.Slots {
	t.Helper()
	s, err := slots.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ctx)
	})
	return s
}

func try(t testing.TB, s *slots.Slots, requests ...slots.Request) *slots.Hold {
	t.Helper()
	h, err := s.TryAcquire(t.Context(), requests...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func release(t testing.TB, h *slots.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func execSQL(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func scan[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func rows(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return scan[int](t, pool, `SELECT count(*) FROM weir_slot WHERE until > 'epoch'`)
}

// until waits for a condition, for much longer than it should take.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}
