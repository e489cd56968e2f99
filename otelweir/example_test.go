package otelweir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/otelweir"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{Rate: 40_000, Period: time.Minute})

func newLimiter() (*ratelimit.Limiter, error) {
	// the providers that were set by otel.SetMeterProvider and SetTracerProvider
	observer, err := otelweir.New(otelweir.Config{})
	if err != nil {
		return nil, err
	}
	return ratelimit.New(ratelimit.Config{Observer: observer})
}

func Example() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	reader := metric.NewManualReader() // a program has a PeriodicReader with its exporter here
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	limiter, err := newLimiter()
	if err != nil {
		log.Fatal(err)
	}

	for _, org := range []string{"acme", "initech", "acme"} {
		err := limiter.Autocommit(pool).Consume(ctx, ChatTokens.For(org).Count(30_000))
		if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
			log.Fatal(err)
		}
	}

	var collected metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &collected); err != nil {
		log.Fatal(err)
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			for _, p := range sum.DataPoints {
				limit, _ := p.Attributes.Value("weir.limit")
				outcome, _ := p.Attributes.Value("weir.outcome")
				fmt.Println(m.Name, limit.AsString(), outcome.AsString(), p.Value)
			}
		}
	}
	// Unordered output:
	// weir.decisions chatTokens granted 2
	// weir.decisions chatTokens denied 1
}

// examplePool is a pool on a schema of its own, with Weir's tables, and what ends it and its
// server.
func examplePool() (pool *pgxpool.Pool, end func()) {
	ctx := context.Background()
	server, err := pgserver.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		log.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = "weir_example_otel"
	pool, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, sql := range []string{`DROP SCHEMA IF EXISTS weir_example_otel CASCADE`, `CREATE SCHEMA weir_example_otel`} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			log.Fatal(err)
		}
	}
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	return pool, func() {
		pool.Close()
		if err := server.Stop(); err != nil {
			log.Fatal(err)
		}
	}
}
