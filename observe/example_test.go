package observe_test

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Who runs the program reads that a limit is nearly used up, and then that callers are denied: once
// a minute, however many they are.
func ExampleLog() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	logger := slog.New(slog.NewTextHandler(os.Stdout,
		&slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "left" || a.Key == "retry_after" {
				return slog.Attr{} // they differ each time
			}
			return a
		}}))
	limiter, err := ratelimit.New(ratelimit.Config{Observer: &observe.Log{Logger: logger, Near: 0.8}})
	if err != nil {
		log.Fatal(err)
	}

	signUp := ratelimit.MustDefine("signUp", ratelimit.TokenBucket{Rate: 10, Period: time.Hour})
	for range 20 {
		err := limiter.Autocommit(pool).Consume(ctx, signUp.For("192.0.2.1"))
		if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
			log.Fatal(err)
		}
	}
	// Output:
	// level=WARN msg="ratelimit: near the limit" limit=signUp capacity=10 times=1
	// level=INFO msg="ratelimit: denied" limit=signUp times=1
}
