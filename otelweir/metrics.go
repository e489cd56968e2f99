package otelweir

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/weir/ratelimit"
)

// The borders of buckets. Those of durations reach from memory to a queue, those of waits from a
// moment to a day's window.
var (
	seconds = []float64{0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
		2.5, 5, 10}
	delays = []float64{0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400}
	shares = []float64{0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1}
	trips  = []float64{0, 1, 2, 3, 5, 10}
	crowds = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
	runs   = []float64{1, 2, 3, 5, 10, 20, 50}
)

// instruments are what is measured: see the package's page.
type instruments struct {
	decisions metric.Int64Counter
	tokens    metric.Float64Counter
	used      metric.Float64Histogram
	wait      metric.Float64Histogram

	duration   metric.Float64Histogram
	roundTrips metric.Int64Histogram
	together   metric.Int64Histogram

	txDuration metric.Float64Histogram
	txAttempts metric.Int64Histogram
	txQueued   metric.Float64Histogram
}

func newInstruments(m metric.Meter) (instruments, error) {
	var errs []error
	seen := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	fraction := func(name, unit, says string, borders []float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(says),
			metric.WithExplicitBucketBoundaries(borders...))
		seen(err)
		return h
	}
	whole := func(name, unit, says string, borders []float64) metric.Int64Histogram {
		h, err := m.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(says),
			metric.WithExplicitBucketBoundaries(borders...))
		seen(err)
		return h
	}
	i := instruments{
		used: fraction("weir.limit.used", "1",
			"Share of the capacity in use after a decision.", shares),
		wait: fraction("weir.wait", "s",
			"Time until what was denied would be granted, or granted ahead may run.", delays),
		duration: fraction("weir.decision.duration", "s", "Duration of calls that ask limits.",
			seconds),
		roundTrips: whole("weir.decision.round_trips", "{round_trip}",
			"Round trips to the database of a call, COMMIT not counted.", trips),
		together: whole("weir.decision.together", "{call}",
			"Calls that were decided together, and share their round trips.", crowds),
		txDuration: fraction("weir.tx.duration", "s",
			"Duration of transactions, with all of their attempts.", seconds),
		txAttempts: whole("weir.tx.attempts", "{attempt}", "Attempts that a transaction took.",
			runs),
		txQueued: fraction("weir.tx.queued", "s",
			"Time of a transaction in the queue of a contended key.", seconds),
	}
	var err error
	i.decisions, err = m.Int64Counter("weir.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Decisions of limits."))
	seen(err)
	i.tokens, err = m.Float64Counter("weir.tokens", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens granted, now or ahead."))
	seen(err)
	if len(errs) > 0 {
		return instruments{}, fmt.Errorf("otelweir: %w", errors.Join(errs...))
	}
	return i, nil
}

// count measures a call.
func (o *Observer) count(ctx context.Context, e *ratelimit.DecidedEvent) {
	call, k := outcomeOf(e), kindOf(e.Err)
	whole := o.names.none
	if limit, one := onlyLimit(e.Requests); one {
		whole = o.names.of(limit)
	}
	s := whole.of(call, k)
	o.duration.Record(ctx, e.Took.Seconds(), s.record...)
	o.roundTrips.Record(ctx, int64(e.Trips), s.record...)
	o.together.Record(ctx, int64(e.Together), s.record...)
	if len(e.Requests) == 0 { // a mistake, which has no limit
		o.decisions.Add(ctx, 1, s.add...)
	}
	for i := range e.Requests {
		r := &e.Requests[i]
		l := o.names.of(r.Limit().Name())
		if i < len(e.Result.Outcomes) {
			o.limit(ctx, l, r.N(), &e.Result, &e.Result.Outcomes[i])
			continue
		}
		// An error, or a take of a lease, which has no Outcomes.
		o.decisions.Add(ctx, 1, l.of(call, k).add...)
		switch call {
		case granted, ahead:
			o.tokens.Add(ctx, r.N(), l.alone.add...)
		case denied:
			o.waits(ctx, l.of(denied, k), e.Result.At, e.Result.RetryAt)
		}
	}
}

// limit measures what one of the limits of a call has answered to a request for n tokens.
func (o *Observer) limit(
	ctx context.Context, l *labels, n float64, r *ratelimit.Result, out *ratelimit.Outcome,
) {
	what := outcomeIn(r, out)
	s := l.of(what, unknown)
	o.decisions.Add(ctx, 1, s.add...)
	switch what {
	case granted:
		o.tokens.Add(ctx, n, l.alone.add...)
	case ahead:
		o.tokens.Add(ctx, n, l.alone.add...)
		o.waits(ctx, s, r.At, out.RunAt)
	case denied, shadowDenied:
		o.waits(ctx, s, r.At, out.RetryAt)
	}
	if out.Rate > 0 { // it was asked
		o.used.Record(ctx, used(out), l.alone.record...)
	}
}

// waits measures the time from the decision until then.
func (o *Observer) waits(ctx context.Context, s *set, at, then time.Time) {
	if !at.IsZero() && !then.IsZero() {
		o.wait.Record(ctx, max(0, then.Sub(at).Seconds()), s.record...)
	}
}

// used is the share of the capacity that is not there: all of it if tokens are owed.
func used(o *ratelimit.Outcome) float64 {
	if o.Value <= 0 || o.Capacity <= 0 {
		return 1
	}
	return max(0, 1-o.Value/o.Capacity)
}

// onlyLimit is the limit that all of the requests ask.
func onlyLimit(requests []ratelimit.Request) (limit string, one bool) {
	for i := range requests {
		if name := requests[i].Limit().Name(); i == 0 {
			limit = name
		} else if name != limit {
			return "", false
		}
	}
	return limit, len(requests) > 0
}
