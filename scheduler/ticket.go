package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jsontext"
	"github.com/weir-go/weir/ratelimit"
)

// metadataKey is where a job carries its ticket. Metadata and not arguments, which River's uniqueness looks at.
const metadataKey = "weir"

// ticketVersion is of the tickets that this release writes. A job with a newer one starts as it
// would on a client without the plugin.
const ticketVersion = 1

// ticket is what a job whose tokens are taken carries with it.
type ticket struct {
	more

	// What was taken; nil for nothing.
	*ratelimit.Reservation
}

// more is what no statement looks at.
type more struct {
	Version int `json:"v"`

	// Due is when the job was to start, in microseconds since the Unix epoch, by the database's clock, when the ticket was
	// written. 0 if it need not wait. The row may have been moved since.
	Due int64 `json:"due,omitempty"`

	// At is when it was given its place in line.
	At int64 `json:"at,omitempty"`

	// Attempt is the number of attempts that the job had behind it when the ticket was written: it is for the next one.
	Attempt int `json:"attempt,omitempty"`

	// By is the place that the job waits for: an index into those of the takes and then On.
	By int `json:"by,omitempty"`

	// Jitter is how long after its tokens it starts, in microseconds.
	Jitter int64 `json:"jitter,omitempty"`

	// From is the instant before which it does not start, as the caller wanted.
	From int64 `json:"from,omitempty"`

	// On are the limits and keys of a pause that it has met.
	On []row `json:"on,omitempty"`

	// Paid says that the tokens of a worker made by Limit are taken.
	Paid bool `json:"paid,omitempty"`

	// Pays is when tokens are taken again.
	Pays Pays `json:"pays,omitempty"`

	// Used says that an attempt has begun with what was taken: it is not given back, nor charged anew.
	Used bool `json:"used,omitempty"`

	// Late says that it has paid anew as it was late, and does not once more.
	Late bool `json:"late,omitempty"`

	// Gone is when what it took was given back.
	Gone int64 `json:"gone,omitempty"`
}

// known reports whether this release knows what the ticket says.
func (t *ticket) known() bool { return t.Version == ticketVersion }

func (t *ticket) clone() ticket {
	c := *t
	if t.Reservation != nil {
		c.Reservation = &ratelimit.Reservation{ID: t.ID, Takes: slices.Clone(t.Takes)}
	}
	return c
}

// wire is a ticket as it stands in metadata. River has a GIN index on that, in which each number and each string is an entry:
// so only what statements look at stands by itself, and the rest is one string of JSON. On, limits and keys, is how the jobs
// of a limit are found.
type wire struct {
	On   [][2]string `json:"on,omitempty"`
	More string      `json:"more"`
}

type wireMore struct {
	more
	R *ratelimit.Reservation `json:"r,omitempty"`
}

// MarshalJSON writes a wire, by hand: every job that is inserted has one.
func (t ticket) MarshalJSON() ([]byte, error) {
	t.Version = ticketVersion
	rest, err := t.marshalMore()
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 2*len(rest)), '{')
	for i, r := range t.rows() {
		if b = append(b, ','); i == 0 {
			b = append(b[:len(b)-1], `"on":[`...)
		}
		b = jsontext.String(append(b, '['), r.limit)
		b = append(jsontext.String(append(b, ','), r.key), ']')
	}
	if b[len(b)-1] == ']' {
		b = append(b, "],"...)
	}
	return append(jsontext.String(append(b, `"more":`...), string(rest)), '}'), nil
}

func (t *ticket) marshalMore() (b []byte, err error) {
	if t.From != 0 || t.On != nil || t.Paid || t.Used || t.Late || t.Gone != 0 {
		return json.Marshal(wireMore{t.more, t.Reservation})
	}
	b = append(b, '{')
	for _, f := range []struct {
		name  string
		value int64
	}{
		{`"v":`, int64(t.Version)}, {`"due":`, t.Due}, {`"at":`, t.At}, {`"attempt":`, int64(t.Attempt)},
		{`"by":`, int64(t.By)}, {`"jitter":`, t.Jitter}, {`"pays":`, int64(t.Pays)},
	} {
		if f.value != 0 {
			b = append(strconv.AppendInt(append(b, f.name...), f.value, 10), ',')
		}
	}
	if t.Reservation != nil {
		r, err := t.Reservation.MarshalJSON()
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, `"r":`...), r...), ',')
	}
	return append(bytes.TrimSuffix(b, []byte(",")), '}'), nil
}

// UnmarshalJSON reads one.
func (t *ticket) UnmarshalJSON(b []byte) error {
	var w wire
	var m wireMore
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	if w.More != "" {
		if err := json.Unmarshal([]byte(w.More), &m); err != nil {
			return err
		}
	}
	*t = ticket{m.more, m.R}
	t.By = max(0, t.By) // metadata is anybody's
	return nil
}

// takes are what was taken.
func (t *ticket) takes() []ratelimit.Take {
	if t.Reservation == nil {
		return nil
	}
	return t.Takes
}

// unused says that there is something to give back if the job does not start.
func (t *ticket) unused() bool { return t.Reservation != nil && !t.Used }

func (t *ticket) due() time.Time { return time.UnixMicro(t.Due).UTC() }

// row names a balance.
type row struct{ limit, key string }

// MarshalJSON writes an array.
func (r row) MarshalJSON() ([]byte, error) { return json.Marshal([]string{r.limit, r.key}) }

// UnmarshalJSON reads it back.
func (r *row) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &[]any{&r.limit, &r.key}) }

// rows are those that the job may wait for.
func (t *ticket) rows() []row {
	rows := make([]row, 0, len(t.takes())+len(t.On))
	for _, k := range t.takes() {
		rows = append(rows, row{k.Limit, k.Key})
	}
	return append(rows, t.On...)
}

// reckon returns when the job may start, given how its limits stand by now, and for which of its rows it then waits. A
// limit without a balance has seen nothing since.
func (t *ticket) reckon(states states, now time.Time, bunch bool) (due time.Time, by int) {
	jitter := time.Duration(t.Jitter) * time.Microsecond
	after := func(at time.Time, i int) {
		if at.After(due) {
			due, by = at, i
		}
	}
	for i, k := range t.takes() {
		if run, paced := k.RunAt(states[row{k.Limit, k.Key}]); t.Used { // its tokens came before
		} else if bunch {
			after(run.Add(jitter), i)
		} else {
			after(paced.Add(jitter), i)
		}
	}
	if t.From != 0 && t.On == nil {
		due = latest(due, time.UnixMicro(t.From).UTC())
	}
	for i, r := range t.rows() {
		if until := states[r].PausedUntil; !until.After(now) {
			continue
		} else if i < len(t.takes()) {
			after(until, i)
		} else {
			after(until.Add(jitter), i)
		}
	}
	return due, by
}

// redefine has the ticket say what its takes are by the rules that this process has defined, and reports whether they differ.
func (t *ticket) redefine(states states, now time.Time) bool {
	differs := false
	for i, k := range t.takes() {
		if k, ok := k.Redefined(states[row{k.Limit, k.Key}], now); ok {
			t.Takes[i], differs = k, true
		}
	}
	return differs
}

// parse reads a ticket, as it stands in metadata under its key.
func parse(b []byte) (t ticket, ok bool) {
	err := json.Unmarshal(b, &t)
	return t, err == nil && len(b) > 2
}

// ticketOf reads the ticket that a job carries, and whether it is for the attempt that has begun.
func ticketOf(job *rivertype.JobRow) (t ticket, found, valid bool) {
	if !bytes.Contains(job.Metadata, []byte(`"`+metadataKey+`"`)) {
		return ticket{}, false, false
	}
	var m struct {
		Weir *ticket `json:"weir"`
	}
	if err := json.Unmarshal(job.Metadata, &m); err != nil || m.Weir == nil {
		return ticket{}, false, false
	}
	return *m.Weir, true, m.Weir.Attempt == job.Attempt-1
}

// into adds the ticket to the metadata that a caller gives its job.
func (t *ticket) into(metadata []byte) ([]byte, error) {
	own, err := t.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if len(metadata) == 0 {
		return append(append([]byte(`{"`+metadataKey+`":`), own...), '}'), nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(metadata, &all); err != nil {
		return nil, fmt.Errorf("scheduler: the Metadata of InsertOpts is no JSON object: %w", err)
	}
	if all == nil { // of null
		all = map[string]json.RawMessage{}
	}
	all[metadataKey] = own
	return json.Marshal(all)
}
