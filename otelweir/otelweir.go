package otelweir

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/ratelimit"
)

// scope is the name of the instrumentation.
const scope = "github.com/weir-go/weir/otelweir"

// Config configures an [Observer]. The zero Config uses the defaults.
type Config struct {
	// MeterProvider makes the instruments. Use the one of package
	// go.opentelemetry.io/otel/metric/noop to measure nothing. Default: the global one, whether it
	// is set before or after [New].
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans. Use the one of package go.opentelemetry.io/otel/trace/noop to
	// trace nothing. Default: the global one, whether it is set before or after [New].
	TracerProvider trace.TracerProvider

	// MaxLimits is how many names of limits become values of weir.limit: those that are seen first.
	// All others are "other". Default: 300. Multiplied by the usual outcomes of a limit, these are
	// fewer than the 2,000 series that an SDK may keep for an instrument.
	MaxLimits int

	// TraceAll also makes spans if ctx has no recorded span: then each call is a trace of its own,
	// if the sampler of the TracerProvider takes it. Default: false.
	TraceAll bool

	// TraceKeys adds the keys of a call to its span, as weir.keys. Default: false; then errors of
	// package ratelimit in a span have no key either. Other errors that the callback of an InTx
	// returns are recorded unchanged.
	TraceKeys bool
}

// Observer is a [ratelimit.Observer] that reports to OpenTelemetry what the package page lists. It
// does not block, and without a span it allocates nothing, apart from what the SDK does. It is safe
// for concurrent use, and one for each program is enough.
type Observer struct {
	instruments
	tracer trace.Tracer
	names  names
	txs    txLabels
	all    bool
	keys   bool
}

var _ ratelimit.Observer = (*Observer)(nil)

// New makes an Observer, for the Observer of a [ratelimit.Config]. A MaxLimits below 0 is refused
// with an error that matches [ratelimit.ErrInvalid]; an error of the MeterProvider is returned,
// wrapped.
func New(cfg Config) (*Observer, error) {
	if cfg.MaxLimits < 0 {
		return nil, &ratelimit.InvalidError{Field: "otelweir.Config.MaxLimits",
			Value: cfg.MaxLimits,
			Want:  "a number above 0, or 0 for the default"}
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	o := &Observer{tracer: cfg.TracerProvider.Tracer(scope), txs: newTxLabels(), all: cfg.TraceAll,
		keys: cfg.TraceKeys}
	o.names.init(cmp.Or(cfg.MaxLimits, 300))
	var err error
	if o.instruments, err = newInstruments(cfg.MeterProvider.Meter(scope)); err != nil {
		return nil, err
	}
	return o, nil
}

// Decided reports a call of RateLimit.
func (o *Observer) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	o.count(ctx, &e)
	if o.traced(ctx) {
		o.traceCall(ctx, &e)
	}
}

// Transacted reports an InTx.
func (o *Observer) Transacted(ctx context.Context, e ratelimit.TransactedEvent) {
	labels := o.txs.of(e.Err)
	o.txDuration.Record(ctx, e.Took.Seconds(), labels.record...)
	o.txAttempts.Record(ctx, int64(e.Attempts), labels.record...)
	o.txQueued.Record(ctx, e.Queued.Seconds(), labels.record...)
	if o.traced(ctx) {
		o.traceTx(ctx, &e)
	}
}
