// Package observe tells people what limits do, without a line for each call: [Log] writes to log/slog what an operator wants to know,
// each thing at most once a minute, with how often it happened.
//
//	limiter, err := ratelimit.New(ratelimit.Config{Observer: &observe.Log{}})
//
// It warns when a key comes near its limit, says that calls are denied or would be by a limit in the shadow, and reports errors and
// transactions that had to run again. Keys are people's more often than not, and an attacker can make as many as he likes: they are
// written only if [Log].Keys says so, and are never counted by.
//
// [All] hands everything to several observers. Metrics and traces for OpenTelemetry are in a module of their own,
// github.com/weir-go/weir/otelweir.
package observe
