package otelweir

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weir-go/weir/ratelimit"
)

// refusing makes no counters.
type refusing struct{ noop.MeterProvider }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refuser{} }

type refuser struct{ noop.Meter }

var errRefused = errors.New("refused")

func (refuser) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errRefused
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	o, err := New(Config{MaxLimits: -1})
	want := "ratelimit: otelweir.Config.MaxLimits is -1: want a number above 0, or 0 for the default"
	if o != nil || !errors.Is(err, ratelimit.ErrInvalid) || err.Error() != want {
		t.Errorf("%v, %v", o, err)
	}
	if o, err := New(Config{MeterProvider: refusing{}}); o != nil || !errors.Is(err, errRefused) {
		t.Errorf("%v, %v", o, err)
	}
}

// The zero Config is of the global providers. No other test looks at those.
func TestTheGlobalProvidersAreTheDefault(t *testing.T) {
	r := &rig{reader: sdk.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	r.traces = trace.NewTracerProvider(trace.WithSpanProcessor(r.spans))
	meters := sdk.NewMeterProvider(sdk.WithReader(r.reader))
	otel.SetMeterProvider(meters)
	otel.SetTracerProvider(r.traces)
	defer func() {
		_ = errors.Join(meters.Shutdown(context.Background()), r.traces.Shutdown(context.Background()))
	}()
	var err error
	if r.Observer, err = New(Config{}); err != nil {
		t.Fatal(err)
	}
	l := ratelimit.MustDefine("global", ratelimit.TokenBucket{Rate: 3, Period: hour})
	_, made := r.under(t, func(ctx context.Context) { r.Decided(ctx, decided(l.Global())) })
	if len(made) != 1 {
		t.Errorf("%d spans", len(made))
	}
	r.counts(t, "weir.decisions", map[string]float64{"global granted": 1})
}

// What every call pays for being observed is no garbage.
func TestDecidedDoesNotAllocate(t *testing.T) { // alone: what others allocate would count
	r := newRig(t, Config{})
	l := ratelimit.MustDefine("free", ratelimit.TokenBucket{Rate: 3, Period: hour})
	e, ctx := decided(l.For("k"), l.For("j")), t.Context()
	tx := ratelimit.TransactedEvent{Began: t0, Took: 1, Attempts: 1}
	if n := testing.AllocsPerRun(1000, func() { r.Decided(ctx, e); r.Transacted(ctx, tx) }); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecided(b *testing.B) {
	l := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 3, Period: hour})
	e := decided(l.For("k"))
	b.Run("metrics", func(b *testing.B) {
		r, ctx := newRig(b, Config{}), b.Context()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r.Decided(ctx, e)
			}
		})
	})
	b.Run("span", func(b *testing.B) {
		provider := trace.NewTracerProvider() // which records, and tells nobody
		o, err := New(Config{MeterProvider: noop.NewMeterProvider(), TracerProvider: provider})
		if err != nil {
			b.Fatal(err)
		}
		ctx, span := provider.Tracer("bench").Start(b.Context(), "handler")
		defer span.End()
		b.ReportAllocs()
		for b.Loop() {
			o.Decided(ctx, e)
		}
	})
}
