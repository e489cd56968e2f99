package otelweir

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var t0 = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// rig is an Observer, and what it has told the SDK.
type rig struct {
	*Observer
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	traces *trace.TracerProvider
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	meters := metric.NewMeterProvider(metric.WithReader(r.reader))
	r.traces = trace.NewTracerProvider(trace.WithSpanProcessor(r.spans))
	cfg.MeterProvider, cfg.TracerProvider = meters, r.traces
	var err error
	if r.Observer, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = meters.Shutdown(context.Background())
		_ = r.traces.Shutdown(context.Background())
	})
	return r
}

// limiter is one that the rig observes, by a clock that stands still.
func (r *rig) limiter(t testing.TB) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Config{Observer: r, Clock: func() time.Time { return t0 }})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// point is a series: what was added up in it, and how often.
type point struct {
	sum   float64
	count uint64
	most  float64
}

// point is the series of an instrument with exactly these labels, names and values by turns. The
// zero one if there is none.
func (r *rig) point(t testing.TB, name string, labels ...string) point {
	t.Helper()
	var want []attribute.KeyValue
	for pair := range slices.Chunk(labels, 2) {
		want = append(want, attribute.String(pair[0], pair[1]))
	}
	return r.series(t)[name][attribute.NewSet(want...)]
}

// series is all that was measured: by instrument and labels.
func (r *rig) series(t testing.TB) map[string]map[attribute.Set]point {
	t.Helper()
	all := map[string]map[attribute.Set]point{}
	for _, m := range r.metrics(t) {
		points := map[attribute.Set]point{}
		all[m.Name] = points
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				points[p.Attributes] = point{sum: float64(p.Value)}
			}
		case metricdata.Sum[float64]:
			for _, p := range d.DataPoints {
				points[p.Attributes] = point{sum: p.Value}
			}
		case metricdata.Histogram[int64]:
			for _, p := range d.DataPoints {
				most, _ := p.Max.Value()
				points[p.Attributes] = point{float64(p.Sum), p.Count, float64(most)}
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				most, _ := p.Max.Value()
				points[p.Attributes] = point{p.Sum, p.Count, most}
			}
		default:
			t.Fatalf("%s is a %T", m.Name, d)
		}
	}
	return all
}

func (r *rig) metrics(t testing.TB) []metricdata.Metrics {
	t.Helper()
	var got metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &got); err != nil {
		t.Fatal(err)
	}
	var all []metricdata.Metrics
	for _, s := range got.ScopeMetrics {
		if s.Scope.Name != scope {
			t.Fatalf("scope %q", s.Scope.Name)
		}
		all = append(all, s.Metrics...)
	}
	return all
}

// counts checks a counter: each of its series, as "limit outcome" with the kind of an error behind,
// and no other.
func (r *rig) counts(t testing.TB, name string, want map[string]float64) {
	t.Helper()
	got := map[string]float64{}
	for set, p := range r.series(t)[name] {
		key := ""
		for _, k := range []attribute.Key{limitKey, outcomeKey, errorKey} {
			if v, ok := set.Value(k); ok {
				if key != "" {
					key += " "
				}
				key += v.AsString()
			}
		}
		got[key] = p.sum
	}
	for key, n := range want {
		if got[key] != n {
			t.Errorf("%s of %s: %v, want %v", name, key, got[key], n)
		}
	}
	for key, n := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("%s of %s: %v, want none", name, key, n)
		}
	}
}
