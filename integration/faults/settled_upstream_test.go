package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// call is what a worker asks the upstream for, and how it names itself at each point that it
// reaches.
type call struct {
	Worker      string
	Job         int64
	Attempt     int
	Reservation string
	Estimate    float64
}

// answer is one that the upstream has given: with the tokens that the call has used, or, as an
// error, with none.
type answer struct {
	call
	Used   float64
	Failed bool
}

// point is where a worker can be caught.
type point string

const (
	called    point = "called"    // the upstream has done its work and counted it, and its answer is not out
	answered  point = "answered"  // the worker has the answer, and has not begun its transaction
	between   point = "between"   // two transactions, of workers that have two
	settled   point = "settled"   // after Settle
	completed point = "completed" // all is written, and COMMIT comes next
	committed point = "committed" // COMMIT was answered
	// so it was in the transaction in which a job has paid again, and nobody in the process knows
	// yet
	renewed point = "renewed"
)

// trap stops the next worker that comes by a point, until it is let go or the worker is dead.
type trap struct {
	at     point
	caught chan call
	let    chan string
}

// Words for who was caught.
const (
	proceed = "proceed"
	cut     = "cut" // renewed: the answer is lost, with its connection
)

// upstream is the API that workers call. It outlives them and the database, and counts.
type upstream struct {
	*httptest.Server

	mu      sync.Mutex
	answers []answer
	told    map[string]bool // reservations of which a worker has heard that its transaction was committed
	trap    *trap
	deaf    bool // fails no calls
}

func newUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{told: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call", u.call)
	mux.HandleFunc("POST /at/{point}", u.at)
	u.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		u.CloseClientConnections()
		u.Close()
	})
	return u
}

// call answers with what it has used: less than the estimate, as much, or more. One in twenty ends
// with an error.
func (u *upstream) call(w http.ResponseWriter, r *http.Request) {
	var c call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(10 * time.Millisecond)) //nolint:gosec // how long the call takes
	a := answer{call: c, Used: c.Estimate}
	u.mu.Lock()
	switch rand.N(20) {
	case 0:
		a.Failed, a.Used = !u.deaf, 0
	case 1, 2:
		a.Used = 0
	case 3, 4, 5, 6:
	case 7, 8, 9, 10, 11:
		a.Used += float64(1+rand.N(400)) / 4
	default:
		a.Used = float64(rand.N(int(4*c.Estimate))) / 4
	}
	u.answers = append(u.answers, a)
	u.mu.Unlock()
	if u.stop(r.Context(), called, c) != proceed {
		return
	}
	if a.Failed {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(a) // the worker may be dead
}

func (u *upstream) at(w http.ResponseWriter, r *http.Request) {
	var c call
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p := point(r.PathValue("point"))
	if p == committed {
		u.mu.Lock()
		u.told[c.Reservation] = true
		u.mu.Unlock()
	}
	_, _ = fmt.Fprint(w, u.stop(r.Context(), p, c)) // the worker may be dead
}

// stop returns the word for whoever comes by a point: at once, or when the trap lets it go.
func (u *upstream) stop(ctx context.Context, p point, c call) string {
	u.mu.Lock()
	t := u.trap
	if t == nil || t.at != p {
		u.mu.Unlock()
		return proceed
	}
	u.trap = nil
	u.mu.Unlock()
	t.caught <- c
	select {
	case word := <-t.let:
		return word
	case <-ctx.Done():
		return cut
	}
}

// catch waits until a worker has come to a point, where it stays until something is sent to let.
func (u *upstream) catch(t *testing.T, p point) (c call, let chan<- string) {
	t.Helper()
	tr := &trap{at: p, caught: make(chan call, 1), let: make(chan string, 1)}
	u.mu.Lock()
	u.trap = tr
	u.mu.Unlock()
	select {
	case c = <-tr.caught:
	case <-time.After(hung):
		t.Fatalf("no worker was %s within %v", p, hung)
	}
	return c, tr.let
}

func (u *upstream) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answers, u.trap = nil, nil
	clear(u.told)
}

// visitor is a worker's way to the upstream.
type visitor struct {
	url string
	http.Client
}

// post returns the answer's body, or nil if the upstream has failed the call.
func (v *visitor) post(path string, c call) ([]byte, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	// Not with the attempt's context: the answer is wanted whatever becomes of that.
	resp, err := v.Post(v.url+path, "application/json", bytes.NewReader(b)) //nolint:noctx // see above
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil
	}
	return body.Bytes(), nil
}

// reach tells that the worker has come to a point, and returns the word to go on with.
func (v *visitor) reach(p point, c call) string {
	b, err := v.post("/at/"+string(p), c)
	if err != nil { // the test is over
		return proceed
	}
	return string(b)
}
