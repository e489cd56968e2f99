package lockout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Pass tells whether an HTTP request may continue, given what [Lockout.Attempt] has returned for
// it. If it returns false, it has answered:
//
//	ok, err := guard.Attempt(ctx, who, check)
//	if !guard.Pass(w, r, ok, err) {
//		return
//	}
//
// A lock is 429, with a Retry-After in whole seconds, at least 1, that is never too early. A wrong
// password is 401; to show a page of your own for that, check ok before you call Pass. An empty
// account is 400. Any other error lets nobody in: it is 500 if the call was wrong
// ([ratelimit.ErrInvalid], [ratelimit.ErrNested]), and otherwise 503. Those two are logged by
// [slog.Default], unless the client has gone.
//
// The answer is application/problem+json with the status only. It does not tell whose lock it is,
// nor what was wrong, and must not be stored by caches.
func (l *Lockout) Pass(w http.ResponseWriter, r *http.Request, ok bool, err error) bool {
	if ok && err == nil {
		return true
	}
	status := statusOf(err)
	h := w.Header()
	var locked *LockedError
	if errors.As(err, &locked) {
		seconds := (locked.RetryAfter() + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.FormatInt(max(1, int64(seconds)), 10))
	}
	if status >= http.StatusInternalServerError && !errors.Is(r.Context().Err(), context.Canceled) {
		slog.Default().ErrorContext(r.Context(),
			"lockout: an attempt is refused, as it could not be decided",
			"lockout", l.cfg.Name, "status", status, "error", err)
	}
	h.Del("Content-Length")
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// to a client that may have gone
	_, _ = fmt.Fprintf(w, `{"title":%q,"status":%d}`, http.StatusText(status), status)
	return false
}

func statusOf(err error) int {
	var invalid *ratelimit.InvalidError
	switch {
	case err == nil:
		return http.StatusUnauthorized
	case errors.As(err, new(*LockedError)):
		return http.StatusTooManyRequests
	case errors.As(err, &invalid) && invalid.Field == "lockout.Who.Account":
		return http.StatusBadRequest
	case errors.Is(err, ratelimit.ErrInvalid), errors.Is(err, ratelimit.ErrNested):
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}
