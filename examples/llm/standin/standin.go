// Package standin is an API in the place of the real one: chat completions in OpenAI's form, with a
// limit of tokens and of requests that it keeps by an exact log and answers 429 beyond. As real
// ones do, it admits a call by what that may use at the most, the prompt and max_tokens, and counts
// what it has used once it is done.
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server is the API on a free port of this machine.
type Server struct {
	Log *Log

	listener net.Listener
	http     *http.Server

	mu     sync.Mutex
	random *rand.Rand
}

// Start starts a server that keeps to the log. The seed decides how long its answers are, in the
// order of the calls.
func Start(log *Log, seed uint64) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{Log: log, listener: l, random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // lengths of answers
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.complete)
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.http.Serve(l) }() // returns when it is stopped
	return s, nil
}

// BaseURL is what OPENAI_BASE_URL would be.
func (s *Server) BaseURL() string { return "http://" + s.listener.Addr().String() + "/v1" }

// Stop ends the server.
func (s *Server) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return s.http.Shutdown(ctx)
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model    string `json:"model"`
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil ||
		in.MaxTokens <= 0 || len(in.Messages) == 0 {
		fail(w, http.StatusBadRequest, "invalid_request_error",
			"want model, messages and max_tokens")
		return
	}
	prompt := 0
	for _, m := range in.Messages {
		prompt += (len(m.Content) + 2) / 3 // tokens, or so
	}
	call, after, ok := s.Log.Admit(time.Now(), prompt+in.MaxTokens)
	if !ok {
		seconds := after.Seconds()
		w.Header().Set("Retry-After", fmt.Sprint(int(seconds)+1))
		w.Header().Set("Retry-After-Ms", fmt.Sprint(after.Milliseconds()+1))
		fail(w, http.StatusTooManyRequests, "rate_limit_exceeded",
			fmt.Sprintf("rate limit reached: try again in %.3f s", seconds))
		return
	}
	completion, thinking, reason := s.answer(in.MaxTokens)
	select {
	case <-time.After(thinking):
	case <-r.Context().Done(): // what it would have used, nobody knows
		return
	}
	s.Log.Done(time.Now(), call, prompt+completion)
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "chat.completion",
		"model":  in.Model,
		"choices": []any{map[string]any{
			"index": 0, "finish_reason": reason,
			"message": map[string]any{"role": "assistant", "content": "It depends."},
		}},
		"usage": map[string]any{"prompt_tokens": prompt, "completion_tokens": completion,
			"total_tokens": prompt + completion},
	})
}

// answer is how long one is and how long it takes: most have a fifth to seven tenths of what they
// may, and one of twenty is cut off.
func (s *Server) answer(most int) (tokens int, thinking time.Duration, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	thinking = time.Duration(20+s.random.IntN(80)) * time.Millisecond
	if share := 0.2 + 0.5*s.random.Float64(); s.random.IntN(20) > 0 {
		return max(1, int(share*float64(most))), thinking, "stop"
	}
	return most, thinking, "length"
}

func fail(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"type": kind, "message": message}})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone needs no answer
}
