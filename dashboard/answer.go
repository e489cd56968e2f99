package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/ratelimit"
)

const (
	page     = 60  // keys
	mostJobs = 500 // of a key
	minute   = 60
)

// asked is what a request is about. Keys come in fields of the header and not in the address, which
// logs keep.
type asked struct{ limit, key, from, prefix string }

// badRequest is the client's fault.
type badRequest struct{ error }

// answer writes what read returns, which is shared with all who ask for the same.
func (d *Dashboard) answer(w http.ResponseWriter, r *http.Request,
	read func(context.Context, asked) (any, error)) {
	w.Header().Set("Cache-Control", "no-store")
	a, err := d.asked(r)
	var body []byte
	if err == nil {
		what, _ := json.Marshal([]string{r.URL.Path, a.limit, a.key, a.from, a.prefix}) // strings
		body, err = d.shared.get(r.Context(), string(what),
			func(ctx context.Context) ([]byte, error) {
				v, err := read(ctx, a)
				if err != nil {
					return nil, err
				}
				return json.Marshal(v)
			})
	}
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		fail(w, http.StatusBadRequest, bad.Error())
	case errors.Is(err, context.DeadlineExceeded):
		fail(w, http.StatusServiceUnavailable, "The database did not answer in time.")
	case err != nil:
		fail(w, http.StatusServiceUnavailable, "The database cannot be read"+d.because(err))
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // a client that has gone needs no answer
	}
}

func (d *Dashboard) asked(r *http.Request) (a asked, err error) {
	a.limit = r.URL.Query().Get("limit")
	for _, f := range []struct {
		name string
		to   *string
	}{{"Weir-Key", &a.key}, {"Weir-From", &a.from}, {"Weir-Prefix", &a.prefix}} {
		if *f.to, err = url.QueryUnescape(strings.ReplaceAll(r.Header.Get(f.name), "+",
			"%2B")); err != nil {
			return a, badRequest{errors.New(f.name + " is not percent-encoded")}
		}
	}
	for _, s := range []string{a.limit, a.key, a.from, a.prefix} {
		if len(s) > 2*ratelimit.MaxKeyBytes || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return a, badRequest{errors.New("no limit and no key can be called that")}
		}
	}
	if d.hider == nil {
		return a, nil
	}
	if a.prefix != "" {
		return a, badRequest{errors.New("hidden keys cannot be searched for")}
	}
	for _, name := range []*string{&a.key, &a.from} {
		if *name == "" {
			continue // the key of a limit without keys
		}
		key, ok := d.hider.key(*name)
		if !ok {
			return a, badRequest{
				errors.New(
					"another process, or an earlier one, has hidden this key: open it again from the list of keys",
				),
			}
		}
		*name = key
	}
	return a, nil
}

// because is why, as far as it may be told: errors name the key.
func (d *Dashboard) because(err error) string {
	var e *pgconn.PgError
	switch {
	case d.hider == nil:
		return ": " + err.Error()
	case errors.As(err, &e):
		return ": SQLSTATE " + e.Code
	}
	return "."
}

func fail(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
}

func etag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}

// micros is an instant on the wire: microseconds since the Unix epoch, which JavaScript's numbers
// hold exactly for 285 years; 0 for none.
type micros time.Time

// MarshalJSON writes it.
func (m micros) MarshalJSON() ([]byte, error) {
	if t := time.Time(m); !t.IsZero() {
		return json.Marshal(t.UnixMicro())
	}
	return []byte("0"), nil
}

// named is a key as pages know it.
type named struct {
	ID  string `json:"id"`  // what they ask for it by
	Key string `json:"key"` // what they show
}

func (d *Dashboard) name(key string) named {
	if d.hider == nil || key == "" {
		return named{key, key}
	}
	id, shown := d.hider.name(key)
	return named{id, shown}
}

// wireLimit is a limit on the wire, as are the types below.
type wireLimit struct {
	Name      string  `json:"name"`
	Shadow    bool    `json:"shadow"`
	Windowed  bool    `json:"windowed"`
	Capacity  float64 `json:"capacity"`
	Rate      float64 `json:"rate"`
	Period    int64   `json:"period"`
	Shards    int     `json:"shards"`
	Keys      int64   `json:"keys"`
	Estimated bool    `json:"estimated"`
	Short     int     `json:"short"`
	InDebt    int     `json:"inDebt"`
	Paused    int     `json:"paused"`
	Problems  int     `json:"problems"`
	Tightest  float64 `json:"tightest"`
	Recent    *tally  `json:"recent,omitempty"` // of the last minute
}

type wireLimits struct {
	At       micros      `json:"at"`
	Hidden   bool        `json:"hidden"`
	Counting bool        `json:"counting"`
	Limits   []wireLimit `json:"limits"`
}

func (d *Dashboard) limits(ctx context.Context, _ asked) (any, error) {
	found, err := d.look.Limits(ctx)
	if err != nil {
		return nil, err
	}
	all := wireLimits{At: micros(time.Now()), Hidden: d.hider != nil, Counting: d.decisions != nil,
		Limits: make([]wireLimit, len(found))}
	for i, l := range found {
		all.Limits[i] = wireLimit{l.Name, l.Shadow, l.Windowed, l.Capacity, l.Rate,
			l.Period.Microseconds(), l.Shards,
			l.Keys, l.Estimated, l.Short, l.InDebt, l.Paused, l.Problems, l.Tightest, nil}
		if d.decisions != nil {
			recent := d.decisions.lastOf(l.Name, time.Now(), minute)
			all.Limits[i].Recent = &recent
		}
		all.At = micros(l.At)
	}
	return all, nil
}

type wireBalance struct {
	named
	Value       float64 `json:"value"`
	Capacity    float64 `json:"capacity"`
	Rate        float64 `json:"rate"`
	Period      int64   `json:"period"`
	Windowed    bool    `json:"windowed"`
	WindowEnds  micros  `json:"windowEnds"`
	FullAt      micros  `json:"fullAt"`
	PausedUntil micros  `json:"pausedUntil"`
	Shards      int     `json:"shards"`
	WrittenAt   micros  `json:"writtenAt"`
	At          micros  `json:"at"`
	Problem     string  `json:"problem,omitempty"`
}

func (d *Dashboard) wire(b inspect.Balance) wireBalance {
	return wireBalance{d.name(b.Key), b.Value, b.Capacity, b.Rate, b.Period.Microseconds(),
		b.Windowed, micros(b.WindowEnds),
		micros(b.FullAt), micros(b.PausedUntil), b.Shards, micros(b.WrittenAt), micros(b.At),
		b.Problem}
}

type wireKeys struct {
	At   micros        `json:"at"`
	Keys []wireBalance `json:"keys"`
	Next string        `json:"next"` // "" if there are no more
}

func (d *Dashboard) keys(ctx context.Context, a asked) (any, error) {
	found, next, err := d.look.Keys(ctx, a.limit,
		inspect.Page{From: a.from, Prefix: a.prefix, Most: page})
	if err != nil {
		return nil, err
	}
	all := wireKeys{At: micros(time.Now()), Keys: make([]wireBalance, len(found)),
		Next: d.name(next).ID}
	for i, b := range found {
		all.Keys[i] = d.wire(b)
		all.At = micros(b.At)
	}
	return all, nil
}

type wireJob struct {
	ID     int64  `json:"id"`
	Kind   string `json:"kind"`
	Until  micros `json:"until"`
	Paused bool   `json:"paused"`
}

type wireKey struct {
	Balance   *wireBalance `json:"balance"` // null if there is no row
	Jobs      []wireJob    `json:"jobs"`    // the next first; null if nobody tells
	JobsError string       `json:"jobsError,omitempty"`
	More      bool         `json:"more,omitempty"` // jobs than these
	wireLine
}

func (d *Dashboard) balance(ctx context.Context, a asked) (any, error) {
	b, err := d.look.Balance(ctx, a.limit, a.key)
	if errors.Is(err, inspect.ErrNoBalance) {
		return wireKey{wireLine: d.line(ctx, a)}, nil
	}
	if err != nil {
		return nil, err
	}
	wired := d.wire(b)
	k := wireKey{Balance: &wired, wireLine: d.line(ctx, a)}
	if d.ahead == nil {
		return k, nil
	}
	jobs, err := d.ahead(ctx, a.limit, a.key, mostJobs+1)
	if err != nil { // the balance is there all the same
		k.JobsError = "the tables of jobs cannot be read" + d.because(err)
		return k, nil
	}
	k.More = len(jobs) > mostJobs
	k.Jobs = make([]wireJob, min(len(jobs), mostJobs))
	for i := range k.Jobs {
		k.Jobs[i] = wireJob{jobs[i].ID, jobs[i].Kind, micros(jobs[i].Until), jobs[i].Paused}
	}
	return k, nil
}

type wireOften struct {
	named
	Times uint64 `json:"times"` // at least
}

type wireDecisions struct {
	Seconds []tally     `json:"seconds"` // the present one last
	Most    []wireOften `json:"most"`
}

func (d *Dashboard) decided(_ context.Context, a asked) (any, error) {
	if d.decisions == nil {
		return nil, badRequest{
			errors.New("this process counts no decisions: see dashboard.Config.Decisions"),
		}
	}
	now := time.Now()
	all := wireDecisions{Seconds: d.decisions.history(a.limit, now), Most: []wireOften{}}
	for _, o := range d.decisions.most(a.limit, now, mostShown) {
		all.Most = append(all.Most, wireOften{d.name(o.key), cmp.Or(o.times-o.over, 1)})
	}
	return all, nil
}

const mostShown = 5 // keys that were denied most
