package ratelimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

// wireRequest is the JSON form of a request.
type wireRequest struct {
	Limit  string    `json:"limit"`
	Key    *string   `json:"key,omitempty"` // nil: made by Global
	Count  float64   `json:"n"`
	Ahead  int64     `json:"ahead,omitempty"` // microseconds; -1: OrReserve
	Now    bool      `json:"now,omitempty"`   // Within(0)
	Credit bool      `json:"credit,omitempty"`
	Leave  float64   `json:"leave,omitempty"`
	Rule   *wireRule `json:"rule,omitempty"`
}

// wireRule is the JSON form of a request's own rule.
type wireRule struct {
	Window   bool      `json:"window,omitempty"`
	Rate     float64   `json:"rate"`
	Period   int64     `json:"period"` // microseconds
	Capacity *float64  `json:"capacity,omitempty"`
	Reserved *float64  `json:"reserved,omitempty"`
	Start    time.Time `json:"start,omitzero"`
}

// MarshalJSON writes the request, so that another process can make it later: for example a job that
// waits for its turn. The limit is written as its name, and a rule of the request's own as its
// numbers.
func (r Request) MarshalJSON() ([]byte, error) {
	if r.def == nil {
		return nil, errNoLimit()
	}
	if r.bounded && r.within < 0 {
		return nil, r.errWithin()
	}
	if r.rule != nil { // what no call takes must not become valid as it is rounded
		if _, err := compileRule(r.def.name, r.rule); err != nil {
			return nil, err
		}
	}
	w := wireRequest{Limit: r.def.name, Count: r.count, Credit: r.credit, Leave: r.leave}
	if r.keyed {
		if err := badKey(r.def.name, r.key); err != nil { // JSON would make another key of it
			return nil, err
		}
		w.Key = &r.key
	}
	switch {
	case r.bounded && r.within.Microseconds() == 0:
		w.Now = true
	case r.bounded:
		w.Ahead = r.within.Microseconds()
	case r.reserve:
		w.Ahead = -1
	}
	switch rule := r.rule.(type) {
	case nil:
	case TokenBucket:
		w.Rule = &wireRule{Rate: rule.Rate, Period: rule.Period.Microseconds(),
			Capacity: rule.Capacity, Reserved: rule.MaxReserved}
	case *TokenBucket:
		return r.Rule(*rule).MarshalJSON()
	case FixedWindow:
		w.Rule = &wireRule{Window: true, Rate: rule.Rate, Period: rule.Period.Microseconds(),
			Capacity: rule.Capacity, Reserved: rule.MaxReserved, Start: rule.Start.UTC()}
	case *FixedWindow:
		return r.Rule(*rule).MarshalJSON()
	default:
		return nil, fmt.Errorf("ratelimit: a rule of type %T has no JSON", rule)
	}
	return json.Marshal(w)
}

// ErrUndefined is the error of reading a request from JSON if this process has not defined its
// limit.
var ErrUndefined = errors.New("ratelimit: this process has not defined the limit")

// UnmarshalJSON reads it back. The limit is the one that this process has defined last with that
// name. If it has defined none, the error matches [ErrUndefined].
func (r *Request) UnmarshalJSON(b []byte) error {
	var w wireRequest
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	def, ok := defined.Load(w.Limit)
	if !ok {
		return fmt.Errorf("%w %q", ErrUndefined, where.Short(w.Limit))
	}
	u := Request{def: def.(*definition), count: w.Count, credit: w.Credit, leave: w.Leave} //nolint:forcetypeassert // nothing else is stored
	if w.Key != nil {
		u.key, u.keyed = *w.Key, true
	}
	switch {
	case w.Now:
		u = u.Within(0)
	case w.Ahead > 0:
		u = u.Within(time.Duration(w.Ahead) * time.Microsecond)
	case w.Ahead < 0:
		u = u.OrReserve()
	}
	if s := w.Rule; s != nil && !s.Window {
		u.rule = TokenBucket{s.Rate, time.Duration(s.Period) * time.Microsecond, s.Capacity,
			s.Reserved}
	} else if s != nil {
		u.rule = FixedWindow{s.Rate, time.Duration(s.Period) * time.Microsecond, s.Capacity,
			s.Reserved, s.Start}
	}
	*r = u
	return nil
}
