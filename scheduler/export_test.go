package scheduler

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/slotline"
)

// ByID are the statements that pick some of the jobs whose ids they are given.
var ByID = map[string]string{
	"lock": riverjob.LockSQL, "unfetched": fairline.UnfetchedSQL, "chosen": fairline.ChosenSQL, "running": slotline.RunningSQL,
}

// GrantTurns does one round of grants, as a client with this configuration does. It reports whether
// the client holds a line.
func GrantTurns(ctx context.Context, cfg *river.Config) (bool, error) {
	return cfg.Plugins[0].(*plugin).turns.Round(ctx)
}

// HoldLine begins a grant and hangs until ctx ends. It tells when it holds the line, and how its
// transaction ends.
func HoldLine(ctx context.Context, cfg *river.Config, limit, key string) <-chan error {
	told := make(chan error)
	p := cfg.Plugins[0].(*plugin)
	go func() {
		told <- p.shared.InTx(context.WithoutCancel(ctx), func(tx pgx.Tx) error {
			args := []any{limit, key, p.shared.Holder, 3 * time.Second}
			rows, _ := tx.Query(ctx, p.shared.SQL(fairline.HoldSQL), args...)
			rows.Close()
			told <- rows.Err()
			<-ctx.Done()
			return nil
		})
	}()
	return told
}
