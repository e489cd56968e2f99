package scheduler_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// hanger has a client hang before it sends a statement: as if its process were frozen.
type hanger struct {
	sql           string
	armed         atomic.Bool
	hangs, goesOn chan struct{}
}

func (h *hanger) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if strings.Contains(data.SQL, h.sql) && h.armed.CompareAndSwap(true, false) {
		close(h.hangs)
		<-h.goesOn
	}
	return ctx
}

func (h *hanger) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A client that hangs when it has freed a slot, and before it has given it to the next job, keeps it
// from others for no longer than one that dies. When it goes on, its job gets the slot after them.
func TestAClientThatHangsKeepsNoSlot(t *testing.T) {
	t.Parallel()
	h := &hanger{sql: "INSERT INTO weir_slot", hangs: make(chan struct{}), goesOn: make(chan struct{})}
	c := newCrewOn(t, pgtest.Pool(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = h }), 1,
		slots.Config{TTL: 10 * time.Second, Logger: quiet()})
	plain, err := pgxpool.New(t.Context(), pgtest.URL(t, c.pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plain.Close)
	others := c.slotsOn(plain, slots.Config{Logger: quiet()})
	c.noRounds()
	open := c.gate(1)
	c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	c.insert(1, nil)
	c.awaitWaiting(1)
	time.Sleep(time.Second) // until nobody follows its put-off any more
	h.armed.Store(true)
	open()
	<-h.hangs
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	hold, err := others.Acquire(ctx, c.limit.For("0").Of(1))
	close(h.goesOn)
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
	c.exec(t, `DELETE FROM weir_slot WHERE name = 'weir scheduler'`) // from here on rounds find what is free
	c.worked(2)
}
