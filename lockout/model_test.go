package lockout

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// modelled is an account, a device or an address as the documentation tells of it: in durations,
// and without a database.
type modelled struct {
	cfg      *Config
	each     time.Duration // in which a failure is forgotten
	n        int
	at       time.Time // of what follows
	failed   time.Duration
	memory   time.Duration
	until    time.Time // of the lock
	lockouts int       // that there ever were
}

// pass lets the time pass, which only counts outside of locks.
func (m *modelled) pass(now time.Time) {
	since := m.at
	if m.until.After(since) {
		since = m.until
	}
	if d := now.Sub(since); d > 0 {
		m.failed, m.memory = max(0, m.failed-d), max(0, m.memory-d)
	}
	m.at = now
}

func (m *modelled) locked() bool { return m.until.After(m.at) }

// full says that there is no attempt left.
func (m *modelled) full() bool { return m.failed+m.each > time.Duration(m.n)*m.each }

// ceil is how many times of length each a duration reaches into.
func ceil(d, each time.Duration) int { return int((d + each - 1) / each) }

// lock locks, and tells whether it is remembered.
func (m *modelled) lock() (remembered bool) {
	length := m.cfg.First
	for range ceil(m.memory, m.cfg.Forget) {
		length = min(2*length, m.cfg.Cap)
	}
	needed := 0
	for d := m.cfg.First; d < m.cfg.Cap; d *= 2 {
		needed++
	}
	if m.memory <= time.Duration(needed)*m.cfg.Forget {
		m.memory += m.cfg.Forget
		remembered = true
	}
	m.failed, m.until = 0, m.at.Add(length)
	m.lockouts++
	return remembered
}

// extend begins the lock anew.
func (m *modelled) extend() {
	length := m.cfg.First
	for range ceil(m.memory, m.cfg.Forget) - 1 {
		length = min(2*length, m.cfg.Cap)
	}
	if again := m.at.Add(length); again.After(m.until) {
		m.until = again
	}
}

// pending is an attempt that was begun, on both sides.
type pending struct {
	real         *Attempt
	own, address *modelled
	remembered   bool
	lockouts     int // of the address, then
}

// Random attempts at few accounts, from few addresses and devices, with answers at once, late or
// never, at random times: who is locked, until when, and how all stand is to the microsecond what
// the model says.
func TestTheLadderIsThatOfTheModel(t *testing.T) {
	t.Parallel()
	for name, extend := range map[string]bool{"plain": false, "extend while locked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGuard(t, Config{})
			rapid.Check(t, func(r *rapid.T) { modelledHistory(t, r, g, extend) })
		})
	}
}

func modelledHistory(t *testing.T, r *rapid.T, g *guard, extend bool) {
	seconds := func(label string, most int) time.Duration {
		return time.Duration(rapid.IntRange(1, most).Draw(r, label)) * time.Second
	}
	devices := newDevices(t, key(1))
	cfg := Config{
		Failures:        rapid.IntRange(1, 4).Draw(r, "failures"),
		AddressFailures: rapid.IntRange(1, 8).Draw(r, "address failures"), Window: 840 * seconds("window", 10),
		First: seconds("first", 100), Forget: seconds("forget", 10_000), ExtendWhileLocked: extend, Devices: devices,
	}
	cfg.Cap = cfg.First * time.Duration(rapid.IntRange(1, 20).Draw(r, "cap"))
	if _, err := g.pool.Exec(t.Context(), `DELETE FROM weir_balance WHERE name LIKE 'signIn.%'`); err != nil {
		r.Fatal(err)
	}
	l := g.another(cfg)
	known := map[string]*modelled{}
	of := func(what string, n int) *modelled {
		if known[what] == nil {
			known[what] = &modelled{cfg: &cfg, each: cfg.Window / time.Duration(n), n: n, at: g.clock.now()}
		}
		known[what].pass(g.clock.now())
		return known[what]
	}
	tokens := []string{"", devices.Issue("a", ""), devices.Issue("b", "")}
	var open []pending

	for range rapid.IntRange(1, 40).Draw(r, "steps") {
		who := from(rapid.SampledFrom([]string{"a", "b"}).Draw(r, "account"), rapid.IntRange(1, 2).Draw(r, "address"))
		who.Device = rapid.SampledFrom(tokens).Draw(r, "device")
		var own, address *modelled
		if id, ok := devices.known(who.Account, who.Device); ok {
			own = of("device "+who.Account+id, cfg.Failures)
		} else {
			own, address = of("account "+who.Account, cfg.Failures),
				of("address "+who.Address.String(), cfg.AddressFailures)
		}

		switch rapid.IntRange(0, 5).Draw(r, "what") {
		case 0: // time passes, often to where something ends
			d := seconds("time", 5000)
			if own.locked() && rapid.Bool().Draw(r, "to the end") {
				d = own.until.Sub(own.at) - time.Duration(rapid.IntRange(0, 1).Draw(r, "before"))*time.Microsecond
			}
			g.clock.add(d)
		case 1: // an answer comes late
			if len(open) > 0 {
				i := rapid.IntRange(0, len(open)-1).Draw(r, "which")
				open[i].succeed(t, r, g)
				open = append(open[:i], open[i+1:]...)
			}
		default:
			p := pending{own: own, address: address}
			want := attempted(&p, extend)
			var err error
			p.real, err = l.Begin(t.Context(), who)
			var locked *LockedError
			switch {
			case want.IsZero() && err != nil, !want.IsZero() && (!errors.As(err, &locked) || !locked.Until.Equal(want)):
				r.Fatalf("at %v: %v, want a lock until %v", g.clock.now(), err, want)
			case err != nil:
			case rapid.IntRange(0, 3).Draw(r, "answer") == 0:
				p.succeed(t, r, g)
			default:
				open = append(open, p)
			}
		}
		own.pass(g.clock.now())
		who.Address = netip.Addr{}
		stand := State{Attempts: int((time.Duration(own.n)*own.each - own.failed) / own.each),
			Lockouts: ceil(own.memory, cfg.Forget)}
		if own.locked() {
			stand.Attempts, stand.LockedUntil = 0, own.until
		}
		if got, err := l.State(t.Context(), who); err != nil || got.Attempts != stand.Attempts ||
			got.Lockouts != stand.Lockouts || !got.LockedUntil.Equal(stand.LockedUntil) {
			r.Fatalf("%s stands at %+v (%v), want %+v", who.Account, got, err, stand)
		}
	}
}

// attempted is what an attempt comes to: until when it is denied; zero if it is charged.
func attempted(p *pending, extend bool) (until time.Time) {
	all := []*modelled{p.own}
	if p.address != nil {
		all = append(all, p.address)
	}
	denied := false
	for _, m := range all {
		denied = denied || m.locked() || m.full()
	}
	if denied {
		for _, m := range all {
			switch {
			case m.locked() && extend:
				m.extend()
			case !m.locked() && m.full():
				m.lock()
			}
			if m.until.After(until) {
				until = m.until
			}
		}
		return until
	}
	for _, m := range all {
		m.failed += m.each
	}
	if p.own.full() {
		p.remembered = p.own.lock()
	}
	if p.address != nil {
		p.lockouts = p.address.lockouts
	}
	return until
}

func (p *pending) succeed(t *testing.T, r *rapid.T, g *guard) {
	if err := pgx.BeginFunc(t.Context(), g.pool, func(tx pgx.Tx) error {
		return p.real.Succeeded(t.Context(), tx)
	}); err != nil {
		r.Fatal(err)
	}
	p.own.pass(g.clock.now())
	p.own.failed = 0
	if p.own.locked() {
		p.own.until = p.own.at
	}
	if p.remembered {
		p.own.memory = max(0, p.own.memory-p.own.cfg.Forget)
	}
	if p.address != nil {
		p.address.pass(g.clock.now())
		if p.address.lockouts == p.lockouts {
			p.address.failed = max(0, p.address.failed-p.address.each)
		}
	}
}
