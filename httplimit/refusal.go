package httplimit

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"

	"github.com/weir-go/weir/ratelimit"
)

// Refusal is why a request was refused.
type Refusal struct {
	// Status is 429 for a denial, otherwise 400, 403, 500 or 503, as [Guard.Pass] says.
	Status int

	// Policies are the names of the limits that denied, as in the fields. Empty unless it is a
	// denial.
	Policies []string

	Result ratelimit.Result // the denial
	Err    error            // if it is not a denial, what has happened: do not show it to clients
}

// Write answers in application/problem+json (RFC 9457): a denial as the draft's quota-exceeded, all
// others with only their status.
func (f Refusal) Write(w http.ResponseWriter) {
	problem := struct {
		Type     string   `json:"type,omitempty"`
		Title    string   `json:"title"`
		Status   int      `json:"status"`
		Policies []string `json:"violated-policies,omitempty"`
	}{Title: http.StatusText(f.Status), Status: f.Status}
	if f.Status == http.StatusTooManyRequests {
		problem.Type = "https://iana.org/assignments/http-problem-types#quota-exceeded"
		problem.Title = "Request cannot be satisfied as assigned quota has been exceeded"
		problem.Policies = f.Policies
	}
	body, err := json.Marshal(problem)
	if err != nil {
		http.Error(w, problem.Title, f.Status)
		return
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(f.Status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// refusalOf is one for an error that is no denial.
func refusalOf(err error) Refusal {
	var invalid *ratelimit.InvalidError
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, ErrNoKey):
		status = http.StatusForbidden
	case errors.Is(err, ratelimit.ErrNeverGranted):
		status = http.StatusBadRequest
	case errors.As(err, &invalid) && invalid.Field == "key":
		status = http.StatusForbidden
	case errors.Is(err, ratelimit.ErrInvalid), errors.Is(err, ratelimit.ErrNested),
		errors.Is(err, ratelimit.ErrNoDecision),
		errors.Is(err, errAhead):
		status = http.StatusInternalServerError
	}
	return Refusal{Status: status, Err: err}
}

// jitter moves s on by up to a fifth, at least up to a second and at most up to a minute, so that
// those who were denied together do not come back together.
func jitter(s int64) int64 { return s + rand.Int64N(min(max(1, s/5), 60)+1) }
