package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir/httplimit"
	"github.com/weir-go/weir/lockout"
)

const form = `<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Sign in</title>
<form method="post" action="/signin">
<p><label>Account <input name="account" autocomplete="username" required maxlength="100"></label>
<p><label>Password <input name="password" type="password" autocomplete="current-password" required maxlength="200"></label>
<p><button>Sign in</button>
</form>
`

// handler serves the form and takes what it sends, or the same in JSON.
func handler(s *signIn, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(form))
	})
	mux.HandleFunc("POST /signin", func(w http.ResponseWriter, r *http.Request) {
		account, password, err := credentials(http.MaxBytesReader(w, r.Body, 10_000), r)
		if err != nil {
			answer(w, http.StatusBadRequest, err.Error())
			return
		}
		who := lockout.Who{Account: account, Address: proxies.ClientAddr(r)}
		if c, err := r.Cookie("device"); err == nil {
			who.Device = c.Value
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.within)
		defer cancel()
		in, err := s.attempt(ctx, who, password)
		respond(w, log, in, err)
	})
	return http.NewCrossOriginProtection().Handler(mux) // no other site signs its visitors in
}

// respond keeps apart what clients must be able to tell apart.
func respond(w http.ResponseWriter, log *slog.Logger, in signedIn, err error) {
	var locked *lockout.LockedError
	switch {
	case err == nil: // in earnest both are Secure, too: this serves plain HTTP
		http.SetCookie(w, &http.Cookie{Name: "session", Value: in.session, Path: "/",
			HttpOnly: true, SameSite: http.SameSiteLaxMode})
		http.SetCookie(w, &http.Cookie{Name: "device", Value: in.device, Path: "/signin",
			MaxAge: 180 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteStrictMode})
		answer(w, http.StatusOK, "welcome")
	case errors.Is(err, errWrong):
		answer(w, http.StatusUnauthorized, err.Error())
	case errors.As(err, &locked):
		// Rounded up: whoever comes back after that many seconds must not be early.
		seconds := max(1, int(math.Ceil(locked.RetryAfter().Seconds())))
		w.Header().Set("Retry-After", fmt.Sprint(seconds))
		answer(w, http.StatusTooManyRequests,
			fmt.Sprintf("too many attempts; try again in %d s", seconds))
	default:
		// No answer is no denial, and no grant either.
		log.Error("sign in", "error", err)
		answer(w, http.StatusServiceUnavailable, "sign-in is out of order; try again later")
	}
}

func answer(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// a client that has gone needs no answer
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
}

// credentials reads a form or JSON. Account names are compared without regard to case: otherwise
// each spelling would have attempts of its own.
func credentials(body io.Reader, r *http.Request) (account, password string, err error) {
	var in struct{ Account, Password string }
	switch mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType {
	case "application/json":
		if err := json.NewDecoder(body).Decode(&in); err != nil {
			return "", "", errors.New("not JSON with account and password")
		}
	default:
		r.Body = readCloser{body}
		if err := r.ParseForm(); err != nil {
			return "", "", errors.New("not a form with account and password")
		}
		in.Account, in.Password = r.PostFormValue("account"), r.PostFormValue("password")
	}
	if !utf8.ValidString(in.Account) || strings.ContainsRune(in.Account, 0) {
		// and ToLower would make one name of many
		return "", "", errors.New("no account can have that name")
	}
	in.Account = strings.ToLower(strings.TrimSpace(in.Account))
	if in.Account == "" || in.Password == "" {
		return "", "", errors.New("account and password are required")
	}
	if len(in.Account) > 100 || len(in.Password) > 200 {
		return "", "", errors.New("account or password is too long")
	}
	return in.Account, in.Password, nil
}

type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }

// proxies are those in front of this program: none, so that the address is that of the connection,
// and a client's X-Forwarded-For is ignored. Behind a proxy, name its network in Trusted, and
// nothing else.
var proxies httplimit.Proxies

func newServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute}
}
