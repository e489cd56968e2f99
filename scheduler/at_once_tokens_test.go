package scheduler_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// tenTokens do not come back while a test runs.
var tenTokens = ratelimit.MustDefine("tenTokens",
	ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, Capacity: ratelimit.Tokens(10)})

func (c *crew) tokens() int {
	c.t.Helper()
	var left float64
	c.inRC(c.t, func(tx pgx.Tx) error {
		res, err := c.limiter.CheckRateLimit(c.t.Context(), tx, tenTokens.Global())
		if err == nil {
			left = res.Outcomes[0].Value + 1 // that it would have taken
		}
		return err
	})
	return int(left + 0.5)
}

func TestAJobThatWaitsForASlotTakesNoTokens(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	c.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
		return c.atOnce(scheduler.Limit(w, func(*river.Job[sendArgs]) []ratelimit.Request {
			return []ratelimit.Request{tenTokens.Global()}
		}))
	}
	open := c.gate(1)
	c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	c.insert(1, nil)
	c.insert(2, nil)
	c.awaitWaiting(2)
	if left := c.tokens(); left != 9 {
		t.Errorf("%d tokens are left; want 9, as one job runs", left)
	}
	open()
	c.worked(3)
	if left := c.tokens(); left != 7 {
		t.Errorf("%d tokens are left after 3 jobs", left)
	}
}

// What a job has paid before it waits for a slot is its own, however long it waits.
func TestAJobThatHasPaidKeepsItsTokensWhileItWaitsForASlot(t *testing.T) {
	t.Parallel()
	for name, reserved := range map[string]bool{"Limit": false, "InsertTx": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, 1)
			if !reserved {
				c.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
					return scheduler.Limit(c.atOnce(w), func(*river.Job[sendArgs]) []ratelimit.Request {
						return []ratelimit.Request{tenTokens.Global()}
					})
				}
			}
			insert := func(n int) {
				if reserved {
					c.insertBy(t, c.sched.Jobs(c.fixture.client), sendArgs{n}, tenTokens.Global())
				} else {
					c.insert(n, nil)
				}
			}
			open := c.gate(1)
			c.client(2)
			insert(0)
			c.j.await(t, 1)
			insert(1)
			c.awaitWaiting(1)
			time.Sleep(4 * time.Second) // then other jobs would be late
			open()
			c.worked(2)
			if left := c.tokens(); left != 8 {
				t.Errorf("%d tokens are left after 2 jobs", left)
			}
		})
	}
}
