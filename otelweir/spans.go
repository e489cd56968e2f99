package otelweir

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/ratelimit"
)

func (o *Observer) traced(ctx context.Context) bool {
	return o.all || trace.SpanFromContext(ctx).IsRecording()
}

// traceCall makes the span of a call that has ended.
func (o *Observer) traceCall(ctx context.Context, e *ratelimit.DecidedEvent) {
	limits, counts := make([]string, len(e.Requests)), make([]float64, len(e.Requests))
	for i, r := range e.Requests {
		limits[i], counts[i] = r.Limit().Name(), r.N()
	}
	what, r := outcomeOf(e), &e.Result
	labels := []attribute.KeyValue{
		attribute.StringSlice("weir.limits", limits),
		attribute.Float64Slice("weir.counts", counts),
		attribute.Bool("weir.granted", e.Err == nil && r.OK),
		outcomeKey.String(what.String()),
		attribute.Int("weir.round_trips", e.Trips),
		attribute.Int("weir.together", e.Together),
	}
	if r.Limit != "" {
		labels = append(labels, limitKey.String(r.Limit)) // the one that is waited for
	}
	switch what {
	case denied:
		labels = append(labels, attribute.Float64("weir.retry_after_s", r.RetryAfter().Seconds()))
		var denial *ratelimit.DeniedError
		if errors.As(r.Err(), &denial) && denial.MaxReserved > 0 {
			labels = append(labels, attribute.Float64("weir.max_reserved", denial.MaxReserved))
		}
	case ahead:
		labels = append(
			labels, attribute.Float64("weir.run_after_s", max(0, r.RunAt.Sub(r.At).Seconds())),
		)
	}
	if o.keys {
		keys := make([]string, len(e.Requests))
		for i, r := range e.Requests {
			keys[i] = r.Key()
		}
		labels = append(labels, attribute.StringSlice("weir.keys", keys))
	}
	o.span(ctx, "weir.RateLimit", e.Began, e.Took, labels, e.Err)
}

// traceTx makes the span of an InTx that has ended.
func (o *Observer) traceTx(ctx context.Context, e *ratelimit.TransactedEvent) {
	what, err := txOutcome(e.Err), e.Err
	if what == txDenied {
		err = nil
	}
	o.span(ctx, "weir.InTx", e.Began, e.Took, []attribute.KeyValue{
		outcomeKey.String(what),
		attribute.Int("weir.attempts", e.Attempts),
		attribute.Float64("weir.queued_s", e.Queued.Seconds()),
		attribute.Float64("weir.paused_s", e.Paused.Seconds()),
	}, err)
}

func (o *Observer) span(ctx context.Context, name string, began time.Time, took time.Duration,
	labels []attribute.KeyValue,
	err error) {
	if err != nil {
		labels = append(labels, errorKey.String(kindOf(err).String()))
	}
	_, span := o.tracer.Start(ctx, name, trace.WithTimestamp(began),
		trace.WithAttributes(labels...))
	end := trace.WithTimestamp(began.Add(took))
	if err != nil {
		err = o.shown(err)
		span.RecordError(err, end)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(end)
}

// shown is an error without the keys that it tells: only those that refuse a key, two requests for
// one, or a Take do.
func (o *Observer) shown(err error) error {
	var refused *ratelimit.InvalidError
	if o.keys || !errors.As(err, &refused) ||
		!slices.Contains([]string{"key", "key used", "requests", "Take"}, refused.Field) {
		return err
	}
	e := *refused
	e.Value = "(not traced)"
	e.Want, _, _ = strings.Cut(e.Want, ":") // behind it, Settle lists what was taken from
	return &e
}
