package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/weir/upstream"
)

// client calls an API of OpenAI's form.
type client struct {
	base, key, model string
	http             *http.Client
}

// tooManyRequests is a 429, and when to come again.
type tooManyRequests struct{ after time.Duration }

func (e *tooManyRequests) Error() string { return fmt.Sprintf("429: try again in %v", e.after) }

// refusedError is an answer that asking again would not change.
type refusedError struct{ status, body string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("the API answered %s: %s", e.status, e.body)
}

// complete asks for an answer of at most maxTokens, and returns it with the tokens that the whole
// call used.
func (c *client) complete(
	ctx context.Context, prompt string, maxTokens int,
) (answer string, used int, err error) {
	body, err := json.Marshal(map[string]any{
		"model":      c.model,
		"messages":   []any{map[string]string{"role": "user", "content": prompt}},
		"max_tokens": maxTokens,
	})
	if err != nil {
		return "", 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		strings.TrimSuffix(c.base, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", 0, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		after, ok := upstream.RetryAfter(resp.Header)
		if !ok || after == 0 {
			after = time.Second
		}
		return "", 0, &tooManyRequests{min(after, time.Hour)}
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return "", 0, &refusedError{resp.Status, fmt.Sprintf("%.200s", b)}
	default:
		return "", 0, fmt.Errorf("the API answered %s: %.200s", resp.Status, b)
	}
	var out struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			TotalTokens int `json:"total_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(b, &out); err != nil || len(out.Choices) == 0 {
		return "", 0, fmt.Errorf("not a chat completion: %.200s", b)
	}
	return out.Choices[0].Message.Content, out.Usage.TotalTokens, nil
}
