package redisserver

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestAServerComesAndGoes(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context())
	if errors.Is(err, ErrNotFound) {
		t.Skip("skipped: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := s.Client(2)
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	for setting, want := range map[string]string{"appendonly": "no", "save": "", "bind": "127.0.0.1"} {
		if got, err := c.ConfigGet(t.Context(), setting).Result(); err != nil || got[setting] != want {
			t.Errorf("%s is %q, %v; want %q", setting, got[setting], err, want)
		}
	}
	stranger := redis.NewClient(&redis.Options{Addr: s.options.Addr})
	if err := stranger.Ping(t.Context()).Err(); err == nil {
		t.Error("it lets everybody in")
	}
	if err := errors.Join(c.Close(), stranger.Close(), s.Stop()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is there: %v", s.dir, err)
	}
	if conn, err := net.DialTimeout("tcp", s.options.Addr, time.Second); err == nil {
		t.Error("it still answers")
		_ = conn.Close()
	}
}

func TestAStartThatIsCanceledLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Start(ctx)
	if errors.Is(err, ErrNotFound) {
		t.Skip("skipped: ", err)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
