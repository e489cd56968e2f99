package scheduler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jsontext"
	"github.com/weir-go/weir/ratelimit"
)

// Pays says when a job that was inserted by [Jobs.InsertTx] takes its tokens again: see
// [JobArgsWithPays].
type Pays int

const (
	// PerAttempt takes again for each attempt after the first: when a job is retried after an
	// error, or rescued because its client died or hung. So two calls of an API are counted as two.
	// A snooze, or a [PauseError], takes nothing again. It is the default.
	PerAttempt Pays = iota

	// PerJob takes once, when the job is inserted: the one reservation is for all attempts.
	PerJob

	// PerStart takes again whenever the worker is called again, after a snooze too.
	PerStart
)

// JobArgsWithPays is implemented by job arguments whose kind does not pay [PerAttempt]. An attempt
// that takes again goes ahead of all queued jobs, because its job has waited before. It is snoozed
// until the tokens exist. That needs a client with the configuration of [Scheduler.Configure]; on
// another client no attempt pays again.
type JobArgsWithPays interface{ Pays() Pays }

// ReservationOf returns what a job has taken, or what its current attempt has taken if each attempt
// pays. The worker settles it by [Jobs.SettleTx] or [ratelimit.Limiter.Settle], in the transaction
// that completes the job. It is false for a job that has taken nothing.
func ReservationOf(job *rivertype.JobRow) (ratelimit.Reservation, bool) {
	t, _ := ticketOf(job)
	return t.Taken, len(t.Taken.Takes) > 0
}

const (
	metadataKey   = "weir" // where a ticket stands; uniqueness looks at arguments, not at metadata
	ticketVersion = 1      // a job with a newer one starts as on a client without the plugin
)

// ticket is what a job whose tokens are taken carries with it. Times are in microseconds since the
// Unix epoch, by the database's clock.
type ticket struct {
	Version int                   `json:"v"`
	Taken   ratelimit.Reservation `json:"r,omitzero"`
	Due     int64                 `json:"due,omitempty"`     // when written; 0 if it need not wait
	At      int64                 `json:"at,omitempty"`      // when it was given its place in line
	Attempt int                   `json:"attempt,omitempty"` // attempts made: it is for the next
	// what it waits for: an index into rows
	By     int   `json:"by,omitempty"`
	Jitter int64 `json:"jitter,omitempty"` // how long after its tokens it starts
	From   int64 `json:"from,omitempty"`   // not before, as the caller wanted
	On     []row `json:"on,omitempty"`     // the limits of a pause that it has met
	Paid   bool  `json:"paid,omitempty"`   // for a worker made by Limit
	Pays   Pays  `json:"pays,omitempty"`
	Used   bool  `json:"used,omitempty"` // an attempt has begun with what was taken
	Late   bool  `json:"late,omitempty"` // it has paid anew, and does not once more
	Gone   int64 `json:"gone,omitempty"` // when what it took was given back
	Seat   *seat `json:"seat,omitempty"` // in a line
}

// row names a balance: a limit and a key.
type row [2]string

func rowOf(r ratelimit.Request) row { return row{r.Limit().Name(), r.Key()} }

func rowsOf(requests []ratelimit.Request) (rows []row) {
	for _, r := range requests {
		rows = append(rows, rowOf(r))
	}
	return rows
}

// known reports whether this release knows what the ticket says.
func (t *ticket) known() bool { return t.Version == ticketVersion }

// isFor reports whether the ticket is for the attempt after so many, which has not begun.
func (t *ticket) isFor(attempts int) bool {
	return t.known() && t.Attempt == attempts && !t.Used
}

func (t *ticket) due() time.Time { return time.UnixMicro(t.Due).UTC() }

func (t *ticket) jitter() time.Duration { return time.Duration(t.Jitter) * time.Microsecond }

// rows are those that the job may wait for.
func (t *ticket) rows() []row {
	var rows []row
	for _, k := range t.Taken.Takes {
		rows = append(rows, row{k.Limit, k.Key})
	}
	return append(rows, t.On...)
}

// lines are the rows by which it is reckoned when the job may start: those that it has taken from,
// and the limits of its pause.
func (t *ticket) lines() []ratelimit.Take {
	lines := t.Taken.Takes[:len(t.Taken.Takes):len(t.Taken.Takes)]
	for _, r := range t.On {
		lines = append(lines, ratelimit.Take{Limit: r[0], Key: r[1]})
	}
	return lines
}

// wire is a ticket as it stands in metadata. River has a GIN index on that, in which each number
// and each string is an entry. So only what statements look at stands by itself, and the rest is
// one string of JSON. The jobs of a limit are found by On.
type wire struct {
	On   []row  `json:"on,omitempty"`
	More string `json:"more"`
}

type plain ticket // without its methods

// MarshalJSON writes a wire, the outer part by hand: every job that is inserted has one.
func (t ticket) MarshalJSON() ([]byte, error) {
	t.Version = ticketVersion
	more, err := json.Marshal(plain(t))
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 2*len(more)), '{')
	for i, r := range t.rows() {
		b = append(b, []string{`"on":[[`, `,[`}[min(i, 1)]...)
		b = append(jsontext.String(append(jsontext.String(b, r[0]), ','), r[1]), ']')
	}
	if len(b) > 1 {
		b = append(b, "],"...)
	}
	return append(jsontext.String(append(b, `"more":`...), string(more)), '}'), nil
}

func (t *ticket) UnmarshalJSON(b []byte) error {
	var w wire
	*t = ticket{}
	err := json.Unmarshal(b, &w)
	if err == nil && w.More != "" {
		err = json.Unmarshal([]byte(w.More), (*plain)(t))
	}
	t.By = max(0, t.By) // metadata is anybody's
	return err
}

// of is the row that the job waits for.
func (t *ticket) of() (r row) {
	if rows := t.rows(); t.By < len(rows) {
		r = rows[t.By]
	}
	return r
}

// reckon returns when the job may start, given how its lines stand by now, until when that for
// which it waits is paused, and notes which of its rows that is. It has the ticket say what its
// takes are by the rules that this process has defined, and reports whether they differ.
func (t *ticket) reckon(
	lines []ratelimit.State, now time.Time, bunch bool,
) (due, paused time.Time, redefined bool) {
	if t.By = 0; t.From != 0 && t.On == nil {
		due = time.UnixMicro(t.From).UTC()
	}
	takes := t.Taken.Takes
	for i, line := range lines {
		at := line.PausedUntil.Add(t.jitter())
		if i < len(takes) {
			if k, ok := takes[i].Redefined(line, now); ok {
				takes[i], redefined = k, true
			}
			run, paced := takes[i].RunAt(line)
			if bunch {
				paced = run
			}
			if at = paced.Add(t.jitter()); t.Used { // its tokens came before
				at = line.PausedUntil
			}
		}
		if at.After(due) {
			due, paused, t.By = at, line.PausedUntil, i
		}
	}
	return due, paused, redefined
}

// ticketOf reads the ticket that a job carries.
func ticketOf(job *rivertype.JobRow) (t ticket, found bool) {
	var m struct {
		Weir *ticket `json:"weir"`
	}
	if !bytes.Contains(job.Metadata, []byte(`"`+metadataKey+`"`)) ||
		json.Unmarshal(job.Metadata, &m) != nil || m.Weir == nil {
		return ticket{}, false
	}
	return *m.Weir, true
}

// into adds the ticket to the metadata that a caller gives its job.
func (t *ticket) into(metadata []byte) ([]byte, error) {
	own, err := t.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if len(metadata) == 0 || string(metadata) == "null" {
		return append(append([]byte(`{"`+metadataKey+`":`), own...), '}'), nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(metadata, &all); err != nil {
		return nil, fmt.Errorf("scheduler: the Metadata of InsertOpts is no JSON object: %w", err)
	}
	all[metadataKey] = own
	return json.Marshal(all)
}
