package slots_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/slots"
)

// silent is for tests that lose slots on purpose.
var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

func ended(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the context did not end within two minutes")
	}
}

func TestSlotsAreRenewedWhileTheyAreHeldAllTogether(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	bare := pgtest.Pool(t)
	pool, proxy := counted(t, bare)
	s, other := open(t, pool, slots.Config{TTL: 9 * time.Second}), open(t, bare, slots.Config{})
	many := slots.MustDefine("many", 20)
	var holds []*slots.Hold
	for range 20 {
		holds = append(holds, try(t, s, many.For("k")))
	}
	before, first := proxy.Trips(), scan[time.Time](t, bare, `SELECT min(until) FROM weir_slot`)
	until(t, "renewed for longer than their TTL", func() bool {
		if _, err := other.TryAcquire(t.Context(), many.For("k")); !errors.Is(err, slots.ErrFull) {
			t.Fatal(err)
		}
		return scan[time.Time](t, bare, `SELECT min(until) FROM weir_slot`).Sub(first) > 9*time.Second
	})
	for _, h := range holds {
		if err := h.Err(); err != nil {
			t.Error(err)
		}
	}
	// Of 20 slots three times each in a TTL it would be 60. Together it is 3, more if one comes too
	// late and needs a new connection, and 2 if the first was early.
	if trips := proxy.Trips() - before; trips < 2 || trips > 30 {
		t.Errorf("%d trips", trips)
	}
	for _, h := range holds {
		release(t, h)
	}
}

// By the database's own clock, while it does not answer.
func TestAContextEndsBeforeItsSlotIsGivenAway(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for tries := 1; !endsBeforeItsSlotIsFree(t, pool); tries++ { // the test may notice the end too late
		if tries == 4 {
			t.Fatal("the slot was free before its holder knew")
		}
	}
}

// endsBeforeItsSlotIsFree reports whether the slot was still held when the test noticed that its
// context had ended.
func endsBeforeItsSlotIsFree(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	s := open(t, pool, slots.Config{TTL: 5 * time.Second, Logger: silent})
	h := try(t, s, three.For("k"))
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx := h.Context(parent)

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE weir_slot IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ended(t, ctx)
	noticed := time.Now()
	// What the database's clock showed at that moment, at most: the fastest answer says it best.
	var shows, free, now time.Time
	for range 10 {
		asked := time.Now()
		if err := tx.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
			t.Fatal(err)
		}
		if now = now.Add(noticed.Sub(asked)); shows.IsZero() || now.Before(shows) {
			shows = now
		}
	}
	// There may be a row of an earlier try, which is free.
	if err := tx.QueryRow(t.Context(), `SELECT max(until) FROM weir_slot`).Scan(&free); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(ctx), slots.ErrLost) || !errors.Is(h.Err(), slots.ErrLost) || parent.Err() != nil {
		t.Errorf("%v, %v, %v; want ErrLost, for the child alone", context.Cause(ctx), h.Err(), parent.Err())
	}
	if late := h.Context(parent); late.Err() == nil || !errors.Is(context.Cause(late), slots.ErrLost) {
		t.Error("a context that was made later has not ended")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, h)
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	return shows.Before(free)
}

func TestASlotThatSomebodyElseHasIsLostWithTheNextRenewal(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{Logger: silent})
	kept, gone := try(t, s, three.For("kept")), try(t, s, three.For("gone"))
	execSQL(t, pool, `UPDATE weir_slot SET holder = '00000000-0000-0000-0000-000000000001' WHERE key = 'gone'`)
	if err := slots.Renew(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ended(t, gone.Context(t.Context()))
	if !errors.Is(gone.Err(), slots.ErrLost) || kept.Err() != nil {
		t.Errorf("%v, %v", gone.Err(), kept.Err())
	}
	release(t, gone)
	if n := rows(t, pool); n != 2 {
		t.Errorf("%d rows: releasing touched what is another's", n)
	}
	release(t, kept)
}

func TestDoTellsThatItsSlotWasLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{Logger: silent})
	mine := errors.New("mine")
	lose := func(ctx context.Context) {
		execSQL(t, pool, `DELETE FROM weir_slot`)
		if err := slots.Renew(context.Background(), s); err != nil {
			t.Error(err)
		}
		ended(t, ctx)
	}
	for _, test := range []struct {
		name string
		lost bool
		err  func(ctx context.Context) error
		want []error
	}{
		{"nil", false, func(context.Context) error { return nil }, nil},
		{"its own", false, func(context.Context) error { return mine }, []error{mine}},
		{"lost", true, func(context.Context) error { return nil }, []error{slots.ErrLost}},
		{"lost and its own", true, func(context.Context) error { return mine }, []error{slots.ErrLost, mine}},
		{"lost and told", true, context.Cause, []error{slots.ErrLost}},
	} {
		err := s.Do(t.Context(), func(ctx context.Context) error {
			if test.lost {
				lose(ctx)
			}
			return test.err(ctx)
		}, three.For("k"))
		if len(test.want) == 0 && err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for _, want := range test.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", test.name, err, want)
			}
		}
	}
	func() {
		defer func() {
			if recover() != "panic" {
				t.Error("the panic did not go on")
			}
		}()
		_ = s.Do(t.Context(), func(context.Context) error { panic("panic") }, three.For("k"))
	}()
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Do(ctx, func(ctx context.Context) error {
		cancel()
		return ctx.Err()
	}, three.For("k")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestSlotsOutliveTheirServerIfItComesBackInTime(t *testing.T) {
	t.Parallel()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("the server of DATABASE_URL is not ours to stop")
	}
	server, pool := pgtest.Own(t)
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	patient := open(t, pool, slots.Config{TTL: 10 * time.Minute, Logger: silent})
	hasty := open(t, pool, slots.Config{TTL: time.Second, Logger: silent})
	one := slots.MustDefine("one", 1)
	// inTime calls again if a busy machine has not answered within the short TTL.
	inTime := func(call func(context.Context, ...slots.Request) (*slots.Hold, error),
		r slots.Request) (*slots.Hold, error) {
		for end := time.Now().Add(2 * time.Minute); ; {
			h, err := call(t.Context(), r)
			if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
				return h, err
			}
		}
	}
	long := try(t, patient, one.For("long"))
	short, err := inTime(hasty.Acquire, one.For("short"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := short.Context(t.Context())
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	ended(t, ctx)
	if err := short.Err(); !errors.Is(err, slots.ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	if err := slots.Renew(t.Context(), patient); err == nil || long.Err() != nil {
		t.Errorf("without a server: %v, %v", err, long.Err())
	}
	if _, err := hasty.Acquire(t.Context(), one.For("short")); err == nil || errors.Is(err, slots.ErrFull) {
		t.Errorf("without a server: %v, want its error", err)
	}
	if err := short.Release(t.Context()); err == nil {
		t.Error("released without a server")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the pool has connections that work", func() bool { return pool.Ping(t.Context()) == nil })
	if err := slots.Renew(t.Context(), patient); err != nil || long.Err() != nil {
		t.Errorf("after the server has come back: %v, %v", err, long.Err())
	}
	if _, err := inTime(hasty.TryAcquire, one.For("long")); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	h, err := inTime(hasty.Acquire, one.For("short"))
	if err != nil {
		t.Fatal(err)
	}
	if h.Slots()[0].Token <= short.Slots()[0].Token {
		t.Errorf("%+v after %+v", h.Slots(), short.Slots())
	}
	release(t, h)
	release(t, long)
}

// A row that somebody has locked for long costs a process neither its other slots nor this one, once
// it is free; and a slot that is lost meanwhile is lost at once.
func TestALockedRowCostsNoOtherSlot(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a statement there is for one key")
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{TTL: time.Hour, Logger: silent})
	many := slots.MustDefine("many", 3)
	locked, free, lost := try(t, s, many.For("locked")), try(t, s, many.For("free")), try(t, s, many.For("lost"))
	until := func(key string) time.Time {
		return scan[time.Time](t, pool, `SELECT until FROM weir_slot WHERE key = '`+key+`'`)
	}
	first := until("locked")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM weir_slot WHERE key = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := slots.Renew(brief, s); err == nil {
		t.Error("renewed though a row is locked")
	}
	// The server may not have ended that yet, and then it has locked some of the other rows.
	execSQL(t, pool, `SELECT FROM weir_slot WHERE key <> 'locked' FOR UPDATE`)
	if _, err := pool.Exec(t.Context(), `UPDATE weir_slot SET holder = gen_random_uuid() WHERE key = 'lost'`); err != nil {
		t.Fatal(err)
	}
	before := until("free")
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := slots.Renew(within, s); err == nil || !until("free").After(before) {
		t.Errorf("%v, and the row that is free is renewed: %v", err, until("free").After(before))
	}
	if err := lost.Err(); !errors.Is(err, slots.ErrLost) {
		t.Errorf("%v, want ErrLost: another process holds it", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := slots.Renew(t.Context(), s); err != nil || !until("locked").After(first) {
		t.Errorf("%v, and the row is renewed: %v", err, until("locked").After(first))
	}
	if locked.Err() != nil || free.Err() != nil {
		t.Errorf("%v, %v", locked.Err(), free.Err())
	}
}
