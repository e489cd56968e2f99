// Package ticket is what a job carries in its metadata: what it has taken, for which attempt, when
// it is due, and its seat in a fair line. It reckons when the job may start, given how its limits
// stand. It knows no database, and of River only what the row of a job looks like. Nothing in it
// may be used by two goroutines at a time.
package ticket

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jsontext"
	"github.com/weir-go/weir/ratelimit"
)

const (
	// Key is where a ticket stands; uniqueness looks at arguments, not at metadata.
	Key = "weir"

	// Version is the newest that is known. A job with a newer one starts as on a client without the
	// plugin.
	Version = 1

	// GivenBack is the Attempt of a ticket that is for none: what the job took is given back. If it
	// is retried by hand, it pays again.
	GivenBack = -1
)

// Pays is when a job takes again: package scheduler has the same, and documents it.
type Pays int

// When a job takes again.
const (
	PerAttempt Pays = iota
	PerJob
	PerStart
)

// Ticket is what a job whose tokens are taken carries with it. Times are in microseconds since the
// Unix epoch, by the database's clock.
type Ticket struct {
	Version int                   `json:"v"`
	Taken   ratelimit.Reservation `json:"r,omitzero"`
	Due     int64                 `json:"due,omitempty"`     // when written; 0 if it need not wait
	At      int64                 `json:"at,omitempty"`      // when it was given its place in line
	Attempt int                   `json:"attempt,omitempty"` // attempts made: it is for the next
	Job     int64                 `json:"job,omitempty"`     // whose it is; 0 before its first start
	// what it waits for longest: an index into Taken.Takes, and then On
	By     int   `json:"by,omitempty"`
	Jitter int64 `json:"jitter,omitempty"` // how long after its tokens it starts
	From   int64 `json:"from,omitempty"`   // not before, as the caller wanted
	On     []Row `json:"on,omitempty"`     // the limits of a pause that it has met
	Paid   bool  `json:"paid,omitempty"`   // for a worker made by Limit
	Pays   Pays  `json:"pays,omitempty"`
	Used   bool  `json:"used,omitempty"`   // an attempt has begun with what was taken
	Late   bool  `json:"late,omitempty"`   // it has paid anew, and does not once more
	Missed bool  `json:"missed,omitempty"` // its limits could not be read, so it was put off
	Gone   int64 `json:"gone,omitempty"`   // when its tokens were given back

	// Fetched is how often the job had been fetched when it was put off. A job that is cancelled
	// at that moment does not get the attempt back, but has not used it.
	Fetched int `json:"fetched,omitempty"`

	Seat *Seat `json:"seat,omitempty"` // in a line

	// what InsertTx or QueueTx took, if Limit has taken as well
	First *Ticket `json:"first,omitempty"`
}

// Row names a balance: a limit and a key.
type Row [2]string

// RowOf is the balance that a request takes from.
func RowOf(r ratelimit.Request) Row { return Row{r.Limit().Name(), r.Key()} }

// RowsOf are those of requests.
func RowsOf(requests []ratelimit.Request) (rows []Row) {
	for _, r := range requests {
		rows = append(rows, RowOf(r))
	}
	return rows
}

// Known reports whether this release knows what the ticket says.
func (t *Ticket) Known() bool { return t.Version == Version }

// IsOf reports whether the ticket is a job's own. Programs give the metadata of one job to another,
// to pass on an id of a trace for example. The other one has paid for nothing.
func (t *Ticket) IsOf(job int64) bool { return t.Job == 0 || job == 0 || t.Job == job }

// IsFor reports whether the ticket is for the attempt after so many, which has not begun.
func (t *Ticket) IsFor(attempts int) bool {
	return t.Known() && t.Attempt == attempts && !t.Used
}

// Waits reports whether a job that has made so many attempts waits for what the ticket says: for
// its tokens, or for the end of a pause if it has paid for all attempts.
func (t *Ticket) Waits(attempts int) bool {
	return t.IsFor(attempts) || t.Known() && t.Attempt == attempts && t.Pays == PerJob
}

// DueAt is Due as a time.
func (t *Ticket) DueAt() time.Time { return time.UnixMicro(t.Due).UTC() }

// Delay is Jitter as a duration.
func (t *Ticket) Delay() time.Duration { return time.Duration(t.Jitter) * time.Microsecond }

// Holds reports whether a reservation is among what the job has taken.
func (t *Ticket) Holds(r ratelimit.Reservation) bool {
	return t != nil && (t.Taken.ID == r.ID || t.First.Holds(r))
}

// Rows are those that the job may wait for.
func (t *Ticket) Rows() []Row {
	var rows []Row
	for _, k := range t.Taken.Takes {
		rows = append(rows, Row{k.Limit, k.Key})
	}
	if rows = append(rows, t.On...); t.First != nil {
		rows = append(rows, t.First.Rows()...)
	}
	return rows
}

// Lines are the rows by which it is reckoned when the job may start: those that it has taken from,
// and others that may be paused. The tokens of First have come.
func (t *Ticket) Lines() []ratelimit.Take {
	n := len(t.Taken.Takes)
	lines := t.Taken.Takes[:n:n]
	for _, r := range t.Rows()[n:] {
		lines = append(lines, ratelimit.Take{Limit: r[0], Key: r[1]})
	}
	return lines
}

// Seat is a job's place in a line, as its ticket has it.
type Seat struct {
	Limit    string            `json:"limit"`
	Key      string            `json:"key"`
	Tenant   string            `json:"tenant"`
	Weight   float64           `json:"w"`
	Cost     float64           `json:"n"`
	From     int64             `json:"from,omitempty"` // the ScheduledAt that the caller wanted
	Waits    bool              `json:"waits,omitempty"`
	Requests []json.RawMessage `json:"rs,omitempty"` // as long as it waits
}

// Charged is what the tenant was charged; nothing for a job that was not queued.
func (s *Seat) Charged() float64 {
	if s == nil {
		return 0
	}
	return s.Cost
}

// wire is a ticket as it stands in metadata. River has a GIN index on that, in which each number
// and each string is an entry. So only what statements look at stands by itself, and the rest is
// one string of JSON. The jobs of a limit are found by On.
type wire struct {
	On   []Row  `json:"on,omitempty"`
	More string `json:"more"`
}

type plain Ticket // without its methods

// MarshalJSON writes a wire, the outer part by hand: every job that is inserted has one.
func (t Ticket) MarshalJSON() ([]byte, error) {
	t.Version = Version
	more, err := json.Marshal(plain(t))
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, 2*len(more)), '{')
	for i, r := range t.Rows() {
		b = append(b, []string{`"on":[[`, `,[`}[min(i, 1)]...)
		b = append(jsontext.String(append(jsontext.String(b, r[0]), ','), r[1]), ']')
	}
	if len(b) > 1 {
		b = append(b, "],"...)
	}
	return append(jsontext.String(append(b, `"more":`...), string(more)), '}'), nil
}

// UnmarshalJSON reads a wire.
func (t *Ticket) UnmarshalJSON(b []byte) error {
	var w wire
	*t = Ticket{}
	err := json.Unmarshal(b, &w)
	if err == nil && w.More != "" {
		err = json.Unmarshal([]byte(w.More), (*plain)(t))
	}
	// metadata is anybody's
	if err == nil && strings.Contains(w.More, `\u0000`) && t.holdsNUL() {
		*t, err = Ticket{}, errors.New("a name or key holds a NUL")
	}
	t.By = max(0, t.By)
	return err
}

// holdsNUL reports whether there is a text in which Postgres would refuse a character.
func (t *Ticket) holdsNUL() bool {
	var texts []string
	for _, r := range t.Rows() {
		texts = append(texts, r[:]...)
	}
	if s := t.Seat; s != nil {
		texts = append(texts, s.Limit, s.Key, s.Tenant)
	}
	return slices.ContainsFunc(texts, func(s string) bool { return strings.ContainsRune(s, 0) })
}

// WaitsFor is the row that the job waits for.
func (t *Ticket) WaitsFor() (r Row) {
	if rows := t.Rows(); t.By < len(rows) {
		r = rows[t.By]
	}
	return r
}

// Ahead reports whether the tokens that the job waits for were reserved for later.
func (t *Ticket) Ahead() bool {
	return t.By < len(t.Taken.Takes) && t.Taken.Takes[t.By].Ahead()
}

// Reckon returns when the job may start, given how its lines stand by now, until when that for
// which it waits is paused, and notes which of its rows that is. It has the ticket say what its
// takes are by the rules that this process has defined, and reports whether they differ.
func (t *Ticket) Reckon(
	lines []ratelimit.State, now time.Time, bunch bool,
) (due, paused time.Time, redefined bool) {
	if t.By = 0; t.From != 0 && t.On == nil {
		due = time.UnixMicro(t.From).UTC()
	}
	takes := t.Taken.Takes
	for i, line := range lines {
		at := line.PausedUntil.Add(t.Delay())
		if i < len(takes) {
			if k, ok := takes[i].Redefined(line, now); ok {
				takes[i], redefined = k, true
			}
			run, paced := takes[i].RunAt(line)
			if bunch {
				paced = run
			}
			if !t.Used { // else its tokens came before
				at = paced.Add(t.Delay())
			}
		}
		if at.After(due) {
			due, paused, t.By = at, line.PausedUntil, i
		}
	}
	return due, paused, redefined
}

// Of reads the ticket that a job carries.
func Of(job *rivertype.JobRow) (t Ticket, found bool) {
	var m struct {
		Weir *Ticket `json:"weir"`
	}
	if !bytes.Contains(job.Metadata, []byte(`"`+Key+`"`)) ||
		json.Unmarshal(noted(job.Metadata), &m) != nil || m.Weir == nil || !m.Weir.IsOf(job.ID) {
		return Ticket{}, false
	}
	return *m.Weir, true
}

// noted is the object that has the ticket. River makes an array of metadata that is no object, and
// appends to it what it notes. So the last one there counts. Statements do not find it, so rounds
// leave such a job where it is.
func noted(metadata []byte) []byte {
	var all []json.RawMessage
	if !bytes.HasPrefix(metadata, []byte("[")) || json.Unmarshal(metadata, &all) != nil {
		return metadata
	}
	for _, one := range slices.Backward(all) {
		var m map[string]json.RawMessage
		if json.Unmarshal(one, &m) == nil && m[Key] != nil {
			return one
		}
	}
	return metadata
}

// Into adds the ticket to the metadata that a caller gives its job.
func (t *Ticket) Into(metadata []byte) ([]byte, error) {
	own, err := t.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if len(metadata) == 0 || string(metadata) == "null" {
		return append(append([]byte(`{"`+Key+`":`), own...), '}'), nil
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(metadata, &all); err != nil {
		return nil, fmt.Errorf("scheduler: the Metadata of InsertOpts is no JSON object: %w", err)
	}
	all[Key] = own
	return json.Marshal(all)
}

// Onto adds the ticket to the metadata of a job that is inserted already: where that is no object,
// as River does.
func (t *Ticket) Onto(metadata []byte) ([]byte, error) {
	b, err := t.Into(metadata)
	if err == nil {
		return b, nil
	}
	own, err := t.Into(nil)
	if err != nil {
		return nil, err
	}
	var all []json.RawMessage
	if json.Unmarshal(metadata, &all) != nil {
		all = []json.RawMessage{metadata}
	}
	return json.Marshal(append(all, own))
}

// Pacing is how jobs that become due together are spread.
type Pacing struct {
	Jitter time.Duration // at most
	Always bool          // and not only for what would start together
	Bunch  bool          // a window's work at its start
}

// Ticket is for a job whose tokens are taken, for a limited worker if it has paid. What was
// granted ahead of time may start then, with jitter.
func (p Pacing) Ticket(res *ratelimit.Result, attempts int, paid bool) Ticket {
	t := Ticket{Version: Version, Taken: res.Reservation(), Attempt: attempts, Paid: paid}
	t.At = res.At.UnixMicro()
	if res.RunAt.IsZero() {
		return t
	}
	var at time.Time
	var most time.Duration
	for i, k := range t.Taken.Takes {
		for _, o := range res.Outcomes {
			run := o.PacedAt
			if p.Bunch {
				run = o.RunAt
			}
			if o.Limit == k.Limit && o.Key == k.Key && run.After(at) {
				at, t.By = run, i
				if most = 0; p.Always || !k.Ahead() || p.Bunch && !o.WindowEnds.IsZero() {
					// a window's work stays in its window
					most = min(p.Jitter, o.Period/10, o.RunAt.Add(o.Period).Sub(at)/2)
				}
			}
		}
	}
	t.Jitter = Random(most).Microseconds()
	t.Due = at.UnixMicro() + t.Jitter
	return t
}

// Random is the jitter: uniform, drawn anew for each insert.
func Random(most time.Duration) time.Duration {
	return rand.N(min(max(most, 0), math.MaxInt64-1) + 1) //nolint:gosec // jitter
}

// Latest is the last of some instants.
func Latest(all ...time.Time) time.Time { return slices.MaxFunc(all, time.Time.Compare) }

// Reserving returns requests that may be granted for later. A Within of theirs stays.
func Reserving(requests []ratelimit.Request) []ratelimit.Request {
	all := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		all[i] = r.OrReserve()
	}
	return all
}
