package grace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/grace"
)

func TestAfterLastsFiveSecondsLongerThanItsContext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ lasts, want time.Duration }{
		"it goes on":   {time.Hour, time.Hour + 5*time.Second},
		"it ends soon": {time.Second, 6 * time.Second},
		"it has ended": {0, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, end := context.WithTimeout(t.Context(), tc.lasts)
				defer end()
				longer, cancel := grace.After(ctx)
				defer cancel()
				<-longer.Done()
				if d := time.Since(began); d != tc.want {
					t.Errorf("it ended after %v, want %v", d, tc.want)
				}
			})
		})
	}
}

// What is done leaves nothing behind, whether its context has ended or not: synctest would see it.
func TestAfterEndsWithItsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, end := context.WithCancel(t.Context())
		_, first := grace.After(ctx)
		first()
		_, second := grace.After(ctx)
		end()
		synctest.Wait()
		second()
		synctest.Wait()
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

func TestNowLastsFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		end()
		began := time.Now()
		now, cancel := grace.Now(ctx)
		defer cancel()
		<-now.Done()
		if d := time.Since(began); d != 5*time.Second {
			t.Errorf("it ended after %v", d)
		}
	})
}
