package slots_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/delay"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// quick lets COMMIT not wait for the disk, whose time would hide all else.
func quick(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" }

func TestASlotCostsARoundTripToTakeAndOneToGiveBack(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	pool, proxy := counted(t, pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		// on a machine that stalls for a second between two calls the pool would ping
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	}))
	s := open(t, pool, slots.Config{})
	one := slots.MustDefine("one", 1)
	release(t, try(t, s, one.For("warm"))) // statements are prepared by the first call
	before := proxy.Trips()
	h := try(t, s, one.For("k"))
	taken := proxy.Trips()
	if _, err := s.TryAcquire(t.Context(), one.For("k")); !errors.Is(err, slots.ErrFull) {
		t.Fatal(err)
	}
	denied := proxy.Trips()
	release(t, h)
	if after := proxy.Trips(); taken-before != 1 || denied-taken != 1 || after-denied != 1 {
		t.Errorf("%d trips to take, %d to find it full, %d to give back", taken-before, denied-taken, after-denied)
	}
}

// Not parallel: snapshots of other tests on this server would keep dead versions alive, which then
// fill the pages. Those of the server's own processes do so, too, for a while: so it tries several
// times.
func TestRenewalsAreHOTUpdates(t *testing.T) {
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	many := slots.MustDefine("many", 100)
	for range 100 {
		defer release(t, try(t, s, many.For("k")))
	}
	const renewals = 20
	var updated, hot int
	for try := 1; ; try++ {
		wasUpdated, wasHot := updated, hot
		for range renewals {
			if err := slots.Renew(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "the statistics are there", func() bool {
			err := pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'weir_slot'::regclass`).Scan(&updated, &hot)
			if err != nil {
				t.Fatal(err)
			}
			return updated >= wasUpdated+renewals*100
		})
		n, hots := updated-wasUpdated, hot-wasHot
		if hots >= n*9/10 { // 100 rows at once: the first times their pages are full
			break
		}
		t.Logf("%d of %d updates are HOT", hots, n)
		if try == 10 {
			t.Fatal("renewals are not HOT updates")
		}
	}
}

// BenchmarkSlots takes a slot and gives it back. Between a server and its clients in a data centre
// each round trip is half a millisecond or so on top.
func BenchmarkSlots(b *testing.B) {
	work := func(context.Context) error { return nil }
	one, ten, most := slots.MustDefine("one", 1), slots.MustDefine("ten", 10), slots.MustDefine("most", slots.Max)
	report := func(b *testing.B, proxy *delay.Proxy, before int64) {
		b.ReportMetric(float64(proxy.Trips()-before)/float64(b.N), "roundtrips/op")
	}
	var pool *pgxpool.Pool
	setUp := func(b *testing.B) (s *slots.Slots, proxy *delay.Proxy) {
		pool, proxy = counted(b, pgtest.Pool(b, quick))
		s = open(b, pool, slots.Config{Logger: silent})
		if err := s.Do(b.Context(), work, ten.For("warm")); err != nil {
			b.Fatal(err)
		}
		return s, proxy
	}
	b.Run("alone", func(b *testing.B) {
		s, proxy := setUp(b)
		before := proxy.Trips()
		for b.Loop() {
			if err := s.Do(b.Context(), work, ten.For("k")); err != nil {
				b.Fatal(err)
			}
		}
		report(b, proxy, before)
	})
	b.Run("full", func(b *testing.B) {
		s, proxy := setUp(b)
		defer release(b, try(b, s, one.For("k")))
		before := proxy.Trips()
		for b.Loop() {
			if _, err := s.TryAcquire(b.Context(), one.For("k")); !errors.Is(err, slots.ErrFull) {
				b.Fatal(err)
			}
		}
		report(b, proxy, before)
	})
	b.Run("of10000", func(b *testing.B) { // of which 9,000 are held
		s, proxy := setUp(b)
		const sql = `INSERT INTO weir_slot SELECT now() + interval '1 hour', 0, gen_random_uuid(), i, 'most', 'k' FROM generate_series(0, 8999) AS i`
		execSQL(b, pool, sql)
		before := proxy.Trips()
		for b.Loop() {
			if err := s.Do(b.Context(), work, most.For("k")); err != nil {
				b.Fatal(err)
			}
		}
		report(b, proxy, before)
	})
	b.Run("passedOn", func(b *testing.B) { // by those who wait for the only one
		s, proxy := setUp(b)
		before := proxy.Trips()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Do(b.Context(), work, one.For("k")); err != nil {
					b.Error(err)
				}
			}
		})
		report(b, proxy, before)
	})
	b.Run("fourProcesses", func(b *testing.B) { // that work for a millisecond, with ten slots
		pool, proxy := counted(b, pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = 20 }))
		all := make(chan *slots.Slots, 32)
		for range 4 {
			s := open(b, pool, slots.Config{Logger: silent})
			for range cap(all) / 4 {
				all <- s
			}
		}
		before := proxy.Trips()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			s := <-all
			defer func() { all <- s }()
			for pb.Next() {
				if err := s.Do(b.Context(), func(context.Context) error {
					time.Sleep(time.Millisecond)
					return nil
				}, ten.For("k")); err != nil {
					b.Error(err)
				}
			}
		})
		report(b, proxy, before)
	})
}
