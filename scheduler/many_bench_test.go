package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// BenchmarkReserveMany is Jobs.InsertMany of 1,000 reserved jobs against the same jobs inserted one
// by one with Jobs.InsertTx, in one transaction by InTx: of 1,000 keys, and of one. All keys owe
// tokens, so that every job is scheduled. The two sides take turns, and the one that goes first
// changes with each turn.
//
//	ns/job       the median, of InsertMany
//	one-ns/job   the median, of InsertTx
//	x-one        the second divided by the first
func BenchmarkReserveMany(b *testing.B) {
	const jobs, leastRounds = 1000, 11
	for _, c := range []struct {
		name string
		key  func(turn, i int) string
	}{
		{"1000-keys", func(turn, i int) string { return fmt.Sprintf("org-%d", (turn*jobs+i)%manyKeys) }},
		{"one-key", func(turn, _ int) string { return fmt.Sprintf("org-%d", turn%manyKeys) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			k := newKeys(b, 1)
			turn := 0
			params := func() []scheduler.InsertManyParams {
				turn++
				all := make([]scheduler.InsertManyParams, jobs)
				for i := range all {
					all[i] = scheduler.InsertManyParams{Args: sendArgs{i},
						Requests: []ratelimit.Request{k.limit.For(c.key(turn, i)).OrReserve()}}
				}
				return all
			}
			sides := [2]func(context.Context, []scheduler.InsertManyParams) error{k.together, k.oneByOne}
			var took [2][]time.Duration
			measure := func(side int) {
				all := params()
				began := time.Now()
				if err := sides[side](b.Context(), all); err != nil {
					b.Fatal(err)
				}
				took[side] = append(took[side], time.Since(began))
			}
			measure(0) // prepares statements
			measure(1)
			took = [2][]time.Duration{}
			for round, asking := 0, true; asking || round < leastRounds; round++ {
				asking = asking && b.Loop() // which is not to be called once it has said no
				measure(round % 2)
				measure(1 - round%2)
			}
			many, one := took[0], took[1]
			slices.Sort(many)
			slices.Sort(one)
			ours, theirs := many[len(many)/2], one[len(one)/2]
			b.ReportMetric(float64(ours.Nanoseconds())/jobs, "ns/job")
			b.ReportMetric(float64(theirs.Nanoseconds())/jobs, "one-ns/job")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "x-one")
		})
	}
}

func (k *keys) together(ctx context.Context, params []scheduler.InsertManyParams) error {
	in, err := k.jobs.InsertMany(ctx, k.conn(), params)
	if err == nil && in.Jobs[0].RunAt.IsZero() {
		err = fmt.Errorf("not reserved: %+v", in.Jobs[0].Result)
	}
	return err
}

func (k *keys) oneByOne(ctx context.Context, params []scheduler.InsertManyParams) error {
	return k.limiter.InTx(ctx, k.conn(), func(ctx context.Context, tx pgx.Tx) error {
		for _, p := range params {
			in, err := k.jobs.InsertTx(ctx, tx, p.Args, p.InsertOpts, p.Requests...)
			if err == nil && in.RunAt.IsZero() {
				err = fmt.Errorf("not reserved: %+v", in.Result)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *keys) conn() *pgxpool.Conn { return k.conns[0] }
