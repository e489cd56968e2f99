package otelweir

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/weir/ratelimit"
)

// The labels of metrics, which spans have too.
const (
	limitKey   = attribute.Key("weir.limit")
	outcomeKey = attribute.Key("weir.outcome")
	errorKey   = attribute.Key("error.type")
)

// outcome is what became of a limit in a call, or of the whole call.
type outcome int

const (
	granted outcome = iota
	ahead
	denied
	shadowDenied
	undecided
	failed
	outcomes = int(failed) // those that have no error
)

func (o outcome) String() string {
	return [...]string{"granted", "ahead", "denied", "shadow_denied", "undecided", "error"}[o]
}

// outcomeOf is that of a call.
func outcomeOf(e *ratelimit.DecidedEvent) outcome {
	r := &e.Result
	switch {
	case e.Err != nil:
		return failed
	case !r.OK && !r.RetryAt.IsZero():
		return denied
	case !r.OK, !r.Decided() && len(r.Outcomes) == 0: // nobody was asked
		return undecided
	case !r.RunAt.IsZero():
		return ahead
	}
	return granted
}

// outcomeIn is that of a limit in a call that has not failed.
func outcomeIn(r *ratelimit.Result, o *ratelimit.Outcome) outcome {
	switch {
	case !o.OK && o.Shadow:
		return shadowDenied
	case !o.OK:
		return denied
	case !r.OK, o.Rate == 0: // another limit denied, or it is a shadow that was not asked
		return undecided
	case !o.RunAt.IsZero():
		return ahead
	}
	return granted
}

// set is a set of labels, made once, as the instruments take it.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSet(labels ...attribute.KeyValue) set {
	o := metric.WithAttributeSet(attribute.NewSet(labels...))
	return set{[]metric.AddOption{o}, []metric.RecordOption{o}}
}

// labels are the sets of a limit.
type labels struct {
	alone    set
	outcomes [outcomes]set
	errors   [kinds]set
}

func newLabels(limit ...attribute.KeyValue) *labels {
	l := &labels{alone: newSet(limit...)}
	for o := range l.outcomes {
		l.outcomes[o] = newSet(
			slices.Concat(limit, []attribute.KeyValue{outcomeKey.String(outcome(o).String())})...,
		)
	}
	for k := range l.errors {
		what := []attribute.KeyValue{outcomeKey.String(failed.String()),
			errorKey.String(kind(k).String())}
		l.errors[k] = newSet(slices.Concat(limit, what)...)
	}
	return l
}

// of are the labels of an outcome, or of the kind of an error.
func (l *labels) of(o outcome, k kind) *set {
	if o == failed {
		return &l.errors[k]
	}
	return &l.outcomes[o]
}

// names has the labels of the limits that were seen first. It is read without a lock.
type names struct {
	most        int
	none, other *labels // of no limit, or several; of all beyond the most

	mu    sync.Mutex // held by who adds one
	known atomic.Pointer[map[string]*labels]
}

func (n *names) init(most int) {
	n.most, n.none, n.other = most, newLabels(), newLabels(limitKey.String("other"))
	n.known.Store(&map[string]*labels{})
}

func (n *names) of(limit string) *labels {
	if limit == "" {
		return n.none
	}
	known := *n.known.Load()
	if l, ok := known[limit]; ok {
		return l
	}
	if len(known) >= n.most {
		return n.other
	}
	return n.add(limit)
}

func (n *names) add(limit string) *labels {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := *n.known.Load()
	if l, ok := known[limit]; ok {
		return l
	}
	if len(known) >= n.most {
		return n.other
	}
	l := newLabels(limitKey.String(limit))
	known = maps.Clone(known)
	known[limit] = l
	n.known.Store(&known)
	return l
}

// txLabels are the sets of transactions.
type txLabels struct {
	committed, denied set
	errors            [kinds]set
}

// The outcomes of transactions.
const (
	txCommitted = "committed"
	txDenied    = "denied"
	txFailed    = "error"
)

func newTxLabels() txLabels {
	l := txLabels{committed: newSet(outcomeKey.String(txCommitted)),
		denied: newSet(outcomeKey.String(txDenied))}
	for k := range l.errors {
		l.errors[k] = newSet(outcomeKey.String(txFailed), errorKey.String(kind(k).String()))
	}
	return l
}

func (l *txLabels) of(err error) *set {
	switch txOutcome(err) {
	case txCommitted:
		return &l.committed
	case txDenied:
		return &l.denied
	}
	return &l.errors[kindOf(err)]
}

func txOutcome(err error) string {
	switch {
	case err == nil:
		return txCommitted
	case errors.Is(err, ratelimit.ErrDenied):
		return txDenied
	}
	return txFailed
}
