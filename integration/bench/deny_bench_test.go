package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// remembered is how many keys a flood of denials is for: fewer than a Limiter remembers.
const remembered = 5000

// BenchmarkDeny is a call that is denied and rolls its transaction back, against one that is
// admitted and commits: by InTx, each of 100,000 keys. x-admit is the base's time by ours. A denial
// is predicted if the Limiter has seen that key denied before. Those that are not predicted go
// through all keys, so that each is forgotten before it is asked for again.
//
// wal-B/op is what a denied call adds to the write-ahead log.
func BenchmarkDeny(b *testing.B) {
	full := ratelimit.MustDefine("login", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour})
	empty := ratelimit.MustDefine("signUp", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	for _, c := range []struct {
		name      string
		roundTrip time.Duration
		predicted bool
	}{
		{"predicted", loopback, true},
		{"predicted/network", network, true},
		{"unpredicted", loopback, false},
		{"unpredicted/network", network, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLone(b, c.roundTrip)
			fill(b, l.pool, "login", manyKeys, ample, "NULL")
			fill(b, l.pool, "signUp", manyKeys, 0, "NULL")
			rig.Exec(b, l.pool, `VACUUM ANALYZE weir_balance`)

			admit, deny := l.takeOf(full), denied(l.takeOf(empty))
			base, ours := admit, inTurn(deny)
			if c.predicted {
				base, ours = among(remembered, admit), among(remembered, deny)
				for n := range remembered {
					if err := deny(b.Context(), l.counted, n); err != nil {
						b.Fatal(err)
					}
				}
			}
			l.compare(b, "x-admit", base, ours)
			b.ReportMetric(l.walOf(b, ours), "wal-B/op")
		})
	}
}

// among does s for one of the first keys only.
func among(keys int, s side) side {
	return func(ctx context.Context, conn *pgxpool.Conn, n int) error { return s(ctx, conn, n%keys) }
}

// inTurn does s for one key after the other.
func inTurn(s side) side {
	next := 0
	return func(ctx context.Context, conn *pgxpool.Conn, _ int) error {
		next++
		return s(ctx, conn, next%manyKeys)
	}
}

// walOf is how many bytes of write-ahead log s writes. The server writes some of its own now and
// then, vacuuming what was measured before, so it is the least of a few stretches.
func (l *lone) walOf(b *testing.B, s side) float64 {
	b.Helper()
	const stretches, ops = 10, 100
	least := 0.0
	for i := range stretches {
		before := l.wal(b)
		for n := range ops {
			if err := s(b.Context(), l.counted, i*ops+n); err != nil {
				b.Fatal(err)
			}
		}
		bytes := (l.wal(b) - before) / ops
		if i == 0 || bytes < least {
			least = bytes
		}
	}
	return least
}

// wal is how many bytes have been written so far.
func (l *lone) wal(b *testing.B) (bytes float64) {
	b.Helper()
	if err := l.pool.QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).
		Scan(&bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}
