package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strconv"
	"strings"
)

// client is a visitor's program: it keeps its cookie, or does not.
type client struct {
	http *http.Client
	url  string
	from string // its address
}

func newClient(url, from string, transport http.RoundTripper) *client {
	jar, _ := cookiejar.New(nil) // without options it cannot fail
	return &client{http: &http.Client{Jar: jar, Transport: transport}, url: url, from: from}
}

// drop forgets the cookie.
func (c *client) drop() { c.http.Jar, _ = cookiejar.New(nil) }

type reply struct {
	status int
	header http.Header
	body   string
}

func (c *client) do(ctx context.Context, method, path string, form url.Values) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path,
		strings.NewReader(form.Encode()))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("X-Forwarded-For", c.from)
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(body)}, err
}

// visit gets the page.
func (c *client) visit(ctx context.Context) (reply, error) {
	return c.do(ctx, http.MethodGet, "/", nil)
}

// visitWith sends a cookie that it has made up.
func (c *client) visitWith(ctx context.Context, cookie string) (reply, error) {
	u, err := url.Parse(c.url)
	if err != nil {
		return reply{}, err
	}
	c.http.Jar.SetCookies(u, []*http.Cookie{{Name: "visitor", Value: cookie}})
	return c.visit(ctx)
}

// begin asks for a session, for nothing.
func (c *client) begin(ctx context.Context) (reply, error) {
	return c.do(ctx, http.MethodPost, "/session", nil)
}

// earn gets a challenge, solves it and has a session for it.
func (c *client) earn(ctx context.Context) (reply, error) {
	solution, err := c.solution(ctx)
	if err != nil {
		return reply{}, err
	}
	return c.do(ctx, http.MethodPost, "/session/solved", solution)
}

func (c *client) solution(ctx context.Context) (url.Values, error) {
	r, err := c.do(ctx, http.MethodGet, "/challenge", nil)
	if err != nil {
		return nil, err
	}
	var t task
	if err := json.Unmarshal([]byte(r.body), &t); err != nil || r.status != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("GET /challenge: %d", r.status), err)
	}
	nonce, err := t.solve(ctx)
	return url.Values{"challenge": {t.Challenge}, "nonce": {nonce}}, err
}

// solve tries one nonce after the other: each bit doubles the work.
func (t task) solve(ctx context.Context) (nonce string, err error) {
	for i := 0; ctx.Err() == nil; i++ {
		if nonce = strconv.Itoa(i); zeros(t.Challenge+nonce) >= t.Bits {
			return nonce, nil
		}
	}
	return "", ctx.Err()
}
