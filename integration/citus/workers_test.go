package citus

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// On a worker, a tenant's tokens and rows commit without the coordinator.
func TestATenantsTransactionOnAWorkerNeedsNoCoordinator(t *testing.T) {
	c, pool := killable(t)
	exec(t, pool, `CREATE TABLE orders (tenant text COLLATE "C", id int, PRIMARY KEY (tenant, id))`,
		`SELECT create_distributed_table('orders', 'tenant', colocate_with => 'weir_balance')`)
	l := limiter(t, ratelimit.Config{Citus: true, Colocated: true})
	if err := c[0].Kill(); err != nil {
		t.Fatal(err)
	}
	for nr, node := range c[1:] {
		worker, err := pgxpool.New(t.Context(), node.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer worker.Close()
		local := 0 // transactions that this worker itself has written
		for i := range 8 {
			tenant := fmt.Sprint("k", i)
			err := l.InTx(t.Context(), worker, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, budget.For(tenant)); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2)`, tenant, nr); err != nil {
					return err
				}
				var wrote bool
				err := tx.QueryRow(ctx, `SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&wrote)
				if wrote {
					local++
				}
				return err
			})
			if err != nil {
				t.Errorf("worker %d, %s: %v", nr+1, tenant, err)
			}
		}
		if local == 0 || local == 8 {
			t.Errorf("worker %d has written %d of 8 tenants itself: want some", nr+1, local)
		}
	}
}
