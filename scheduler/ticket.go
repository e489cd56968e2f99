package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// metadataKey is where a job carries its ticket. Metadata and not arguments, which River's uniqueness looks at.
const metadataKey = "weir"

// ticket is what a job that waits for its tokens carries with it.
type ticket struct {
	// Due is when the job may start, in microseconds since the Unix epoch, by the database's clock. 0 if its tokens were
	// there at once.
	Due int64 `json:"due,omitempty"`

	// On are the limits that the tokens were taken from; By is the one that the job waits for, an index into them.
	On []place `json:"on,omitempty"`
	By int     `json:"by,omitempty"`

	// Paid says that the tokens of a worker made by Limit are taken.
	Paid bool `json:"paid,omitempty"`

	// Attempt is the number of attempts that the job had behind it when the ticket was written: a ticket is for one attempt.
	Attempt int `json:"attempt,omitempty"`
}

// place is a row of a limit, and how much pauses had put it off when the tokens were taken.
type place struct {
	limit, key string
	delay      time.Duration
}

// MarshalJSON keeps it short: an array of name, key and, if there is one, the delay in microseconds. That another array
// contains the one without a delay is how the jobs of a limit are found.
func (p place) MarshalJSON() ([]byte, error) {
	if p.delay == 0 {
		return json.Marshal([]any{p.limit, p.key})
	}
	return json.Marshal([]any{p.limit, p.key, p.delay.Microseconds()})
}

// UnmarshalJSON reads it back.
func (p *place) UnmarshalJSON(b []byte) error {
	var delay int64
	if err := json.Unmarshal(b, &[]any{&p.limit, &p.key, &delay}); err != nil {
		return err
	}
	p.delay = time.Duration(delay) * time.Microsecond
	return nil
}

// newTicket is for a job whose tokens are taken, and that may start at due if that is not zero.
func newTicket(res *ratelimit.Result, due time.Time) ticket {
	var t ticket
	if !due.IsZero() {
		t.Due = due.UnixMicro()
	}
	for _, o := range res.Outcomes {
		p := place{o.Limit, o.Key, o.Delay}
		if !slices.Contains(t.On, p) {
			t.On = append(t.On, p)
		}
	}
	t.By = max(0, slices.IndexFunc(t.On, func(p place) bool { return p.limit == res.Limit && p.key == res.Key }))
	return t
}

func (t *ticket) due() time.Time { return time.UnixMicro(t.Due).UTC() }

// ticketOf reads the ticket that a job carries for the attempt that it has begun.
func ticketOf(job *rivertype.JobRow) (ticket, bool) {
	if !bytes.Contains(job.Metadata, []byte(`"`+metadataKey+`"`)) {
		return ticket{}, false
	}
	var m struct {
		Weir *ticket `json:"weir"`
	}
	if err := json.Unmarshal(job.Metadata, &m); err != nil || m.Weir == nil {
		return ticket{}, false
	}
	return *m.Weir, m.Weir.Attempt == job.Attempt-1
}

// into adds the ticket to the metadata that a caller gives its job.
func (t *ticket) into(metadata []byte) ([]byte, error) {
	own, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if len(metadata) > 0 {
		if err := json.Unmarshal(metadata, &all); err != nil {
			return nil, fmt.Errorf("scheduler: the Metadata of InsertOpts is no JSON object: %w", err)
		}
	}
	all[metadataKey] = own
	return json.Marshal(all)
}
