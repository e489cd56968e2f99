package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/examples/llm/standin"
	"github.com/weir-go/weir/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEveryMessageIsPaidForOnceAndAnsweredOnce(t *testing.T) {
	t.Parallel()
	s, err := open(t.Context(), pgtest.Server(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	o := options{requests: 60, budget: budget{minute: time.Second, tokens: 5000, requests: 30}}
	log := standin.NewLog(o.budget.minute, o.budget.tokens, o.budget.requests)
	api, err := standin.Start(log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = api.Stop() }()

	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := serve(ctx, &progress{out: &out, start: time.Now()}, o, s, api.BaseURL(), func() float64 { return -1 }, log); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Log(out.String())

	served := 0
	for _, c := range log.Calls() {
		served += c.Tokens
	}
	var messages, answered, used, jobs, orphans int
	var owed float64
	err = s.pool.QueryRow(t.Context(), `SELECT count(*), count(answer), sum(used), sum(tokens) FROM message`).Scan(&messages, &answered, &used, &owed)
	if err != nil {
		t.Fatal(err)
	}
	err = s.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'completed'), count(*) FILTER (WHERE m.id IS NULL)
		FROM river_job j LEFT JOIN message m ON m.id = j.args->>'message_id'`).Scan(&jobs, &orphans)
	if err != nil {
		t.Fatal(err)
	}
	if messages != o.requests || answered != messages || jobs != messages || orphans != 0 || len(log.Calls()) != messages {
		t.Errorf("%d messages, %d answered; %d jobs completed, %d of them without a message; the API answered %d calls",
			messages, answered, jobs, orphans, len(log.Calls()))
	}
	if used != served || float64(used) != owed {
		t.Errorf("the database has %d tokens used and %v paid for, the API has served %d", used, owed, served)
	}
	if log.Peak() > 1 {
		t.Errorf("the API served %v of its limit", log.Peak())
	}
	for _, want := range []string{"60, all answered: 60", "reserved ahead", "429s received", "start after plan", "of its limit in the fullest"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary does not say %q", want)
		}
	}
}

// The API is used to the full and never asked for more: it has nothing to refuse, and its own log shows a window that is
// nearly full for as long as work waits. With River's own timing the same calls come in bursts.
func TestTheBudgetIsUsedUpAndNeverExceeded(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"OnTime": false, "RiverAlone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := open(t.Context(), pgtest.Server(t).URL())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			o := options{requests: 150, budget: budget{minute: 4 * time.Second, tokens: 100_000, requests: 60}, plain: plain}
			log := standin.NewLog(o.budget.minute, o.budget.tokens, o.budget.requests)
			api, err := standin.Start(log)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = api.Stop() }()
			var out bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := serve(ctx, &progress{out: &out, start: time.Now()}, o, s, api.BaseURL(), func() float64 { return -1 }, log); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Logf("%d refused, peak %.3f", log.Refused(), log.Peak())
			if plain {
				if log.Refused() == 0 {
					t.Error("River alone does as well: the test shows nothing")
				}
				return
			}
			if log.Refused() > 0 || log.Peak() < 0.9 || log.Peak() > 1 {
				t.Errorf("%d calls were refused, and the fullest window had %v of its limit", log.Refused(), log.Peak())
			}
			calls := log.Calls()
			first, last := calls[0].At.Add(o.budget.minute), calls[len(calls)-1].At
			for i, c := range calls {
				if c.At.Before(first) || c.At.Equal(last) {
					continue
				}
				n := 0
				for k := i; k >= 0 && c.At.Sub(calls[k].At) < o.budget.minute; k-- {
					n++
				}
				if share := float64(n) / float64(o.budget.requests); share < 0.8 {
					t.Errorf("while work waited, a window had only %v of its limit", share)
				}
			}
		})
	}
}

// What a real API would be sent, and how its answers are taken.
func TestTheClientSpeaksOpenAI(t *testing.T) {
	t.Parallel()
	var status int
	var reply string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Model     string
			Messages  []map[string]string
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.URL.Path != "/v1/chat/completions" ||
			r.Header.Get("Authorization") != "Bearer sesame" || in.Model != "m" || in.MaxTokens != 7 || in.Messages[0]["content"] != "hi" {
			t.Errorf("got %v %v %+v (%v)", r.URL, r.Header, in, err)
		}
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(reply))
	}))
	defer api.Close()
	c := &client{base: api.URL + "/v1/", key: "sesame", model: "m", http: api.Client()}

	status, reply = 200, `{"choices": [{"message": {"content": "ho"}}], "usage": {"total_tokens": 9}}`
	if answer, used, err := c.complete(t.Context(), "hi", 7); err != nil || answer != "ho" || used != 9 {
		t.Errorf("got %q, %d, %v", answer, used, err)
	}
	for _, bad := range []struct {
		status      int
		reply, want string
	}{
		{429, `{}`, "try again in 3s"},
		{500, `oops`, "500 Internal Server Error: oops"},
		{200, `<html>`, "not a chat completion"},
		{200, `{"choices": []}`, "not a chat completion"},
	} {
		status, reply = bad.status, bad.reply
		if _, _, err := c.complete(t.Context(), "hi", 7); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}
