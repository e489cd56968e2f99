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
	// MeterProvider makes the instruments. That of package go.opentelemetry.io/otel/metric/noop measures nothing. Default: the
	// global one, whether it is set before or after [New].
	MeterProvider metric.MeterProvider

	// TracerProvider makes the spans. That of package go.opentelemetry.io/otel/trace/noop traces nothing. Default: the global one,
	// whether it is set before or after [New].
	TracerProvider trace.TracerProvider

	// MaxLimits is how many names of limits become values of weir.limit: those that are seen first. All others, of limits that a
	// program defines as it runs, are "other" together. Default: 300, which with the outcomes that a limit commonly has makes less
	// than the 2,000 series that an SDK may keep of an instrument.
	MaxLimits int

	// TraceAll makes spans where ctx has no recorded span, too: a trace of its own for each call without one, if the sampler of the
	// TracerProvider takes it. Default: false.
	TraceAll bool

	// TraceKeys tells spans the keys that were asked for: weir.keys. Default: false; nor do this library's errors tell a key to a span
	// then. What the application's own errors say, those that the callback of an InTx returns, is told as it is.
	TraceKeys bool
}

// Observer is a [ratelimit.Observer] that tells OpenTelemetry: see the package's page for what. It does not wait for anything, and
// where there is no span to be made it allocates nothing, apart from what the SDK does. It is safe for concurrent use, and one for
// each program is enough.
type Observer struct {
	instruments
	tracer trace.Tracer
	names  names
	txs    txLabels
	all    bool
	keys   bool
}

var _ ratelimit.Observer = (*Observer)(nil)

// New makes an Observer, for the Observer of a [ratelimit.Config]. A MaxLimits below 0 is refused with an error that matches
// [ratelimit.ErrInvalid]; an error of the MeterProvider is returned, wrapped.
func New(cfg Config) (*Observer, error) {
	if cfg.MaxLimits < 0 {
		return nil, &ratelimit.InvalidError{Field: "otelweir.Config.MaxLimits", Value: cfg.MaxLimits,
			Want: "a number above 0, or 0 for the default"}
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	o := &Observer{tracer: cfg.TracerProvider.Tracer(scope), txs: newTxLabels(), all: cfg.TraceAll, keys: cfg.TraceKeys}
	o.names.init(cmp.Or(cfg.MaxLimits, 300))
	var err error
	if o.instruments, err = newInstruments(cfg.MeterProvider.Meter(scope)); err != nil {
		return nil, err
	}
	return o, nil
}

// Decided tells of a call of RateLimit.
func (o *Observer) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	o.count(ctx, &e)
	if o.traced(ctx) {
		o.traceCall(ctx, &e)
	}
}

// Transacted tells of an InTx.
func (o *Observer) Transacted(ctx context.Context, e ratelimit.TransactedEvent) {
	labels := o.txs.of(e.Err)
	o.txDuration.Record(ctx, e.Took.Seconds(), labels.record...)
	o.txAttempts.Record(ctx, int64(e.Attempts), labels.record...)
	o.txQueued.Record(ctx, e.Queued.Seconds(), labels.record...)
	if o.traced(ctx) {
		o.traceTx(ctx, &e)
	}
}
