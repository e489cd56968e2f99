package scheduler_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
)

// River notifies in the transaction that inserts an available job, once per queue in the client's
// FetchCooldown. A reserved job that is due soon is available, one that is due later is not.
func TestAJobThatIsDueSoonNotifiesWithItsInsert(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	cfg := &river.Config{Logger: quiet(), FetchCooldown: time.Hour, FetchPollInterval: time.Hour}
	client, err := river.NewClient(riverpgxv5.New(f.pool), sched.Configure(f.pool, cfg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	own := conn.Hijack()
	defer func() { _ = own.Close(context.WithoutCancel(ctx)) }()
	topic := f.pool.Config().ConnConfig.RuntimeParams["search_path"] + ".river_insert"
	if _, err := own.Exec(ctx, `LISTEN `+pgx.Identifier{topic}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	jobs := sched.Jobs(client)
	limit := ratelimit.MustDefine("soon",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	for _, in := range []struct {
		queue, key string
		seconds    float64
	}{{"soon", "a", 20}, {"soon", "b", 20}, {"later", "c", 3600}} {
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			job, err := jobs.InsertTx(ctx, tx, sendArgs{}, &river.InsertOpts{Queue: in.queue},
				limit.For(in.key).Count(in.seconds).OrReserve())
			if err == nil {
				err = job.Err()
			}
			return err
		})
	}
	if _, err := client.Insert(ctx, sendArgs{}, &river.InsertOpts{Queue: "end"}); err != nil {
		t.Fatal(err)
	}
	var heard []string
	for !slices.Contains(heard, `{"queue": "end"}`) {
		n, err := own.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err, ": River has notified of ", heard)
		}
		heard = append(heard, n.Payload)
	}
	if want := []string{`{"queue": "soon"}`, `{"queue": "end"}`}; !slices.Equal(heard, want) {
		t.Errorf("River has notified of %v, want %v", heard, want)
	}
}
