package main

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"unicode/utf8"
)

//go:embed static
var static embed.FS

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// handler is the page, and the dashboard that it frames. What changes something is POST, and
// refused to other sites: by what the browser says of the request's origin, and by the host that it
// was sent to, as another site may give its own name this address.
func (p *playground) handler(addr string) (http.Handler, error) {
	files, err := fs.Sub(static, "static")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/weir/", http.StripPrefix("/weir", p.page))
	mux.HandleFunc("GET /kinds", func(w http.ResponseWriter, _ *http.Request) {
		tell(w, http.StatusOK, kinds)
	})
	mux.HandleFunc("POST /fire", p.post)
	mux.Handle("/", http.FileServerFS(files))
	guarded := http.NewCrossOriginProtection().Handler(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy) // the dashboard sets its own
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		if !ours(r.Host, addr) {
			tell(w, http.StatusForbidden,
				map[string]string{"error": "this is not the address that the playground is at"})
			return
		}
		guarded.ServeHTTP(w, r)
	}), nil
}

// ours tells whether a request was sent to this server by an address: another site's name may lead
// here as well.
func ours(host, addr string) bool {
	if host == addr {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	if name == "localhost" {
		return true
	}
	_, err = netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil
}

// post fires calls, or resets, pauses or resumes.
func (p *playground) post(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Limit, Key, Verb string
		N                int
	}
	bad := func(why string) { tell(w, http.StatusBadRequest, map[string]string{"error": why}) }
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
		bad("not JSON with limit, key, verb and n")
		return
	}
	k, ok := kindOf(in.Limit)
	if !ok {
		bad("there is no limit of that name")
		return
	}
	if in.Key = strings.TrimSpace(in.Key); k.Key && (in.Key == "" || len(in.Key) > 60 ||
		!utf8.ValidString(in.Key) || strings.ContainsRune(in.Key, 0)) {
		bad("want a key of 1 to 60 bytes")
		return
	}
	var answer any = struct{}{}
	var err error
	switch in.Verb {
	case "fire":
		if in.N < 1 || in.N > k.Most {
			bad("too many calls at once, or none")
			return
		}
		answer, err = p.fire(r.Context(), k, in.Key, in.N)
	case "reset", "pause", "resume":
		err = p.do(r.Context(), in.Verb, k, in.Key)
	default:
		bad("want the verb fire, reset, pause or resume")
		return
	}
	if err != nil {
		tell(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
		return
	}
	tell(w, http.StatusOK, answer)
}

func tell(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has gone needs no answer
}
