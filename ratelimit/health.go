package ratelimit

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/grace"
)

// prober makes a decision that other calls cannot delay.
type prober interface {
	probe(ctx context.Context) error
}

const (
	probeTimeout = 2 * time.Second
	believed     = time.Second     // how long the failure of a probe is believed
	longestDoubt = 5 * time.Second // between two looks at the database for a call that waits
)

// health tells whether the database decides anything.
type health struct {
	mu      sync.Mutex
	last    time.Time     // when it last decided something
	lost    time.Time     // when a probe failed; zero if something was decided since
	probing chan struct{} // closed when the probe ends that is under way; nil if none is
}

func (h *health) decidedAt(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.lost = t, time.Time{}
}

// away reports whether the database is away: it has decided nothing after since, and a probe fails.
// Callers share a probe, and its failure also answers those that come soon after. It returns false
// if ctx ends.
func (h *health) away(ctx context.Context, since time.Time, p prober) bool {
	for {
		h.mu.Lock()
		age := time.Since(h.lost)
		known := h.last.After(since) || p == nil || age < believed ||
			h.probing != nil && age < believed+probeTimeout
		if known {
			defer h.mu.Unlock()
			return !h.last.After(since)
		}
		if h.probing == nil {
			h.probing = make(chan struct{})
			go h.run(p)
		}
		done := h.probing
		h.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return false
		}
	}
}

// run makes a probe. The probe outlives the call that began it, because others may wait for it,
// too.
func (h *health) run(p prober) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	err := p.probe(ctx)
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.last, h.lost = now, time.Time{}
	} else {
		h.lost = now
	}
	close(h.probing)
	h.probing = nil
}

// probe makes a decision with a count of 0, for a key that nobody else has, and commits. It uses a
// connection of its own, as the pool may have none free. It rolls back the row before COMMIT, but
// COMMIT still has something to write, so it waits for the disk and for standbys like any other.
func (a *Autocommit) probe(ctx context.Context) error {
	if a.pool == nil {
		return errNoPool()
	}
	conn, err := connectAs(ctx, a)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := grace.Now(ctx)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return pgx.BeginTxFunc(ctx, conn, opts, func(tx pgx.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		calls, err := resolveAll([]Request{probed.For(rand.Text()).Count(0)})
		if err != nil {
			return err
		}
		if _, err := a.l.rateLimit(ctx, a.l.transaction(inner), calls); err != nil {
			return err
		}
		return inner.Rollback(ctx)
	})
}

var probed = MustDefine("weir: is the database away?", TokenBucket{Rate: 1, Period: time.Second})

// connectAs connects as the pool does.
func connectAs(ctx context.Context, a *Autocommit) (*pgx.Conn, error) {
	cfg := a.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return nil, err
	}
	if cfg.AfterConnect != nil {
		err = cfg.AfterConnect(ctx, conn)
	}
	if err == nil && cfg.PrepareConn != nil {
		_, err = cfg.PrepareConn(ctx, conn)
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}
