package shed_test

import (
	"expvar"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weir-go/weir/shed"
)

// With one of two permits in use, a background request is refused and a critical one is admitted.
func Example() {
	s, err := shed.New(shed.Config{
		Limit:      2,
		Queue:      -1, // refuse at once, to keep the example short
		Background: shed.Ramp{From: 0.1, To: 0.5},
	})
	if err != nil {
		log.Fatal(err)
	}
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	mux := http.NewServeMux()
	get := func(path string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	mux.Handle("GET /pay", s.Route(shed.Critical)(ok))
	mux.Handle("GET /export", s.Route(shed.Background)(ok))
	mux.Handle("GET /report", s.Route(shed.Normal)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		get("/export") // these come while the report is made
		get("/pay")
	})))

	get("/export")
	get("/report")
	// Output:
	// /export 200
	// /export 503
	// /pay 200
	// /report 200
}

// In one middleware around everything, the class is a function of the request: by its path, its
// user, or what else the server knows.
func ExampleShedder_Handler() {
	s, err := shed.New(shed.Config{
		Limit: 64,
		Class: func(r *http.Request) shed.Class {
			switch {
			case strings.HasPrefix(r.URL.Path, "/pay/"):
				return shed.Critical
			case strings.HasPrefix(r.URL.Path, "/export/"):
				return shed.Background
			default:
				return shed.Normal
			}
		},
		Observer: func(e shed.Event) { fmt.Println(e.Class, e.Outcome, e.InUse) },
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	for _, path := range []string{"/pay/1", "/", "/export/1"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	// Output:
	// critical admitted 1
	// normal admitted 1
	// background admitted 1
}

// One Shedder for all routes, each with its class.
func ExampleShedder_Route() {
	s, err := shed.New(shed.Config{Limit: 10}) // the size of the pool
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	handle := func(pattern string, class shed.Class, h http.HandlerFunc) {
		mux.Handle(pattern, s.Route(class)(h))
	}
	handle("POST /pay", shed.Critical, pay)
	handle("GET /search", shed.Normal, search)
	handle("POST /export", shed.Background, export)
	mux.HandleFunc("GET /events", events) // a stream needs no permit

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("POST", "/pay", nil))
	fmt.Println(w.Code)
	// Output: 202
}

func pay(w http.ResponseWriter, _ *http.Request)    { w.WriteHeader(http.StatusAccepted) }
func search(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
func export(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }
func events(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// The decisions are counted, and nothing is refused or delayed.
func ExampleConfig_shadow() {
	s, err := shed.New(shed.Config{
		Limit:  10,
		Shadow: true,
		Observer: func(e shed.Event) {
			decisions.Add(e.Class.String()+" "+e.Outcome.String(), 1)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	s.Handler(http.HandlerFunc(search)).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	fmt.Println(decisions)
	// Output: {"normal admitted": 1}
}

var decisions = new(expvar.Map)
