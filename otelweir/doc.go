// Package otelweir reports to OpenTelemetry what limits decide and what that costs, in a bounded
// number of time series: only so many names of limits become labels, and keys never do.
//
//	observer, err := otelweir.New(otelweir.Config{}) // the providers that were set by otel.SetMeterProvider and SetTracerProvider
//	if err != nil {
//		return nil, err
//	}
//	return ratelimit.New(ratelimit.Config{Observer: observer})
//
// It is a module of its own, so that programs without it do not link OpenTelemetry. It needs only
// the API: the program chooses the SDK and the exporter.
//
// # Metrics
//
//	weir.decisions             counter    {decision}    for each limit of a call: what it answered
//	weir.tokens                counter    {token}       for each limit: what was granted of it, now or ahead
//	weir.limit.used            histogram  1             for each limit: the share of its capacity in use after the decision, 0 to 1
//	weir.wait                  histogram  s             for each limit that denied: until RetryAt; that granted ahead: until RunAt
//	weir.decision.duration     histogram  s             for each call
//	weir.decision.round_trips  histogram  {round_trip}  for each call: COMMIT not counted; 0 was answered from memory
//	weir.decision.together     histogram  {call}        for each call: how many were decided together and share its trips
//	weir.tx.duration           histogram  s             for each InTx
//	weir.tx.attempts           histogram  {attempt}     for each InTx: runs of its callback
//	weir.tx.queued             histogram  s             for each InTx: its time in the queue of a contended key
//
// weir.limit is the name of the limit; that of a [ratelimit.Shadow] ends in " (shadow)".
// Measurements for each call have it only if the call asks one limit.
//
// weir.outcome of a call or a limit is granted, ahead (granted for later), denied or error. A limit
// may also be shadow_denied, if it denies nobody but would have, or undecided: it took nothing
// because another limit denied the call, or was not asked. For an InTx it is committed, denied (it
// returned an error that matches [ratelimit.ErrDenied]) or error. weir.tokens and weir.limit.used
// have none.
//
// error.type is the kind of error: invalid, nested, closed, overloaded, conflict (a serialization
// failure or a deadlock, after which InTx runs again), canceled, timeout, outcome_unknown,
// connection (no server, or lost), database (its server says so) or _OTHER, as for most errors of
// an InTx that are the application's own.
//
// Decisions are counted. A decision in a transaction is counted before COMMIT, even if it then
// rolls back, and again if the transaction runs again. Tokens that are given back or settled later
// are not subtracted. A call that [ratelimit.FailOpen] lets through is an error here:
// FailOpen.Opened counts it. Takes of a lease have no weir.limit.used, as the lease does not know
// it. For a limit with shards, weir.limit.used is what this process knows of all shards.
//
// # Traces
//
// A call is a span weir.RateLimit and an InTx a span weir.InTx, as children of the span in their
// ctx, by default only if that span is recorded. A denial is not an error of a span. A call that
// was denied because more than the MaxReserved of its limit would be owed has the attribute
// weir.max_reserved. Spans have no keys, which are often personal data, unless [Config.TraceKeys]
// is set.
//
// The spans are made once the calls have ended, with the times at which they began and ended. So
// they have no children: the spans that a pgx tracer makes of statements, and those of an InTx
// callback, are their siblings under the same parent.
package otelweir
