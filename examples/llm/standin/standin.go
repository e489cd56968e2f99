// Package standin is an API in the place of the real one: chat completions in OpenAI's form, with a limit of tokens and of
// requests that it keeps by an exact log and answers 429 beyond.
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// Server is the API on a free port of this machine.
type Server struct {
	Log *Log

	listener net.Listener
	http     *http.Server
}

// Start starts a server that keeps to the log.
func Start(log *Log) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{Log: log, listener: l}
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
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&in); err != nil || in.MaxTokens <= 0 || len(in.Messages) == 0 {
		fail(w, http.StatusBadRequest, "invalid_request_error", "want model, messages and max_tokens")
		return
	}
	prompt := 0
	for _, m := range in.Messages {
		prompt += len(strings.Fields(m.Content))
	}
	// As the real one, it charges what may be used, before it is.
	if after, ok := s.Log.Admit(time.Now(), prompt+in.MaxTokens); !ok {
		seconds := after.Seconds()
		w.Header().Set("Retry-After", fmt.Sprint(int(seconds)+1))
		w.Header().Set("Retry-After-Ms", fmt.Sprint(after.Milliseconds()+1))
		fail(w, http.StatusTooManyRequests, "rate_limit_exceeded", fmt.Sprintf("rate limit reached: try again in %.3f s", seconds))
		return
	}
	select { // thinking
	case <-time.After(time.Duration(20+rand.IntN(80)) * time.Millisecond):
	case <-r.Context().Done():
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "chat.completion",
		"model":  in.Model,
		"choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop",
			"message": map[string]any{"role": "assistant", "content": "It depends."},
		}},
		"usage": map[string]any{"prompt_tokens": prompt, "completion_tokens": in.MaxTokens, "total_tokens": prompt + in.MaxTokens},
	})
}

func fail(w http.ResponseWriter, status int, kind, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"type": kind, "message": message}})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone needs no answer
}
