package slots_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/slots"
)

var Exports = slots.MustDefine("exports", 3) // at once, for each tenant

func runExport(ctx context.Context, s *slots.Slots, tenant string) error {
	return s.Do(ctx, func(ctx context.Context) error {
		return export(ctx, tenant) // and stop when ctx ends
	}, Exports.For(tenant))
}

func Example() {
	ctx := context.Background()
	pool := examplePool("weir_example_slots")
	defer pool.Close()
	s, err := slots.New(pool, slots.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()

	if err := runExport(ctx, s, "acme"); err != nil {
		log.Fatal(err)
	}
	// Output: exported acme
}

// Without waiting: what comes while all slots are held is refused. Of several limits all are held,
// or none.
func ExampleSlots_TryAcquire() {
	ctx := context.Background()
	pool := examplePool("weir_example_tryacquire")
	defer pool.Close()
	s, err := slots.New(pool, slots.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()
	AllExports := slots.MustDefine("allExports", 2) // at once, of all tenants

	for _, tenant := range []string{"acme", "globex", "initech"} {
		hold, err := s.TryAcquire(ctx, Exports.For(tenant), AllExports.Global())
		var full *slots.FullError
		switch {
		case errors.As(err, &full): // 429, or 503
			fmt.Println(tenant, "is refused:", full.Limit, "is full")
			continue
		case err != nil:
			log.Fatal(err)
		}
		defer func() { _ = hold.Release(ctx) }()
		fmt.Println(tenant, "is let in")
	}
	// Output:
	// acme is let in
	// globex is let in
	// initech is refused: allExports is full
}

// A plan has a number of slots of its own.
func ExampleRequest_Of() {
	ctx := context.Background()
	pool := examplePool("weir_example_of")
	defer pool.Close()
	s, err := slots.New(pool, slots.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()
	plans := map[string]int{"acme": 1, "globex": 10}

	for _, tenant := range []string{"acme", "acme", "globex", "globex"} {
		hold, err := s.TryAcquire(ctx, Exports.For(tenant).Of(plans[tenant]))
		if err != nil {
			fmt.Println(err)
			continue
		}
		defer func() { _ = hold.Release(ctx) }()
		fmt.Println(tenant, "is let in")
	}
	// Output:
	// acme is let in
	// slots: limit "exports" for "acme" is full: its slot is held
	// globex is let in
	// globex is let in
}

// vault stands for a resource that fences: it remembers the largest token that it has seen for a
// slot.
type vault struct {
	mu     sync.Mutex
	newest int64
}

func (v *vault) write(token int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if token < v.newest {
		return fmt.Errorf("token %d is older than %d", token, v.newest)
	}
	v.newest = token
	return nil
}

// A process that was suspended for longer than TTL goes on as if nothing had happened. The token
// tells.
func ExampleSlot_token() {
	ctx := context.Background()
	pool := examplePool("weir_example_token")
	defer pool.Close()
	now := time.Now()
	s, err := slots.New(pool, slots.Config{Clock: func() time.Time { return now }})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()
	leader := slots.MustDefine("leader", 1)
	var v vault

	frozen, err := s.Acquire(ctx, leader.Global())
	if err != nil {
		log.Fatal(err)
	}
	now = now.Add(time.Hour) // it is not renewed, and others have it
	hold, err := s.Acquire(ctx, leader.Global())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the new one:", v.write(hold.Slots()[0].Token))
	fmt.Println("the old one is refused:", v.write(frozen.Slots()[0].Token) != nil)
	for _, h := range []*slots.Hold{frozen, hold} {
		if err := h.Release(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// the new one: <nil>
	// the old one is refused: true
}

func export(_ context.Context, tenant string) error {
	fmt.Println("exported", tenant)
	return nil
}

// examplePool is a pool on a schema of its own, with Weir's tables.
func examplePool(name string) *pgxpool.Pool {
	ctx := context.Background()
	server, err := pgtest.Shared()
	if err != nil {
		log.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		log.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = name
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, sql := range []string{`DROP SCHEMA IF EXISTS ` + name + ` CASCADE`, `CREATE SCHEMA ` + name} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			log.Fatal(err)
		}
	}
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	return pool
}
