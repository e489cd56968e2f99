// Package observe logs what limits do, without a line for each call: [Log] writes to log/slog what
// an operator wants to know, each thing at most once a minute, with a count.
//
//	limiter, err := ratelimit.New(ratelimit.Config{Observer: &observe.Log{}})
//
// It warns when a key comes near its limit. It reports denials, what shadow limits would have
// denied, errors, and transactions that had to run again. Keys are often personal data, and an
// attacker can make up unlimited keys. So they are logged only if [Log].Keys is set, and nothing is
// counted per key.
//
// [All] passes every event to several observers. Metrics and traces for OpenTelemetry are in a
// module of their own, github.com/weir-go/weir/otelweir.
package observe
