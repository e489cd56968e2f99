package browsertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/ratelimit"
)

const (
	left      = `Number(document.getElementById("left").textContent.replaceAll(",", ""))`
	focused   = `document.activeElement.closest("li")?.dataset.id`
	hash      = `decodeURIComponent(location.hash)`
	limitRows = `document.querySelectorAll("#limit-list li").length`
	keyRows   = `document.querySelectorAll("#key-list li").length`
)

func TestTheNumbersMove(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{Ahead: ahead}), browser(t)
	s.populate(t)
	p.screen(1280, 800, "light")
	p.do(chromedp.Navigate(s.url + "#/limit/modelTokens/key/globex"))
	p.until(left + ` > 0 && document.getElementById("line") !== null`)

	// Ten a second flow in: it is drawn on between two readings.
	before, asked := eval[float64](p, left), s.requests()
	p.until(fmt.Sprintf(left+` > %v`, before))
	p.until(left + ` >= 40`)
	if n := s.requests() - asked; n > 60 {
		t.Errorf("%d requests for that", n)
	}
	// A take of another process is seen.
	s.take(t, model.For("globex").Count(200).OrReserve())
	p.until(`document.getElementById("left-word").textContent === "Owed" && document.querySelector("#badges .owing") !== null`)
	if n := eval[int](p, `document.querySelectorAll("#picture .debt").length`); n == 0 {
		t.Error("debt is not drawn")
	}
	p.until(`document.querySelectorAll("#job-list li").length === 24 && document.querySelectorAll("#picture .job").length > 3`)
	p.until(`document.getElementById("said").textContent.includes("owes")`)
}

// The tenants in a fair line are listed with what each has had. Where nobody waits in line, there
// is no list.
func TestTenantsInLine(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{InLine: inLine}), browser(t)
	s.populate(t)
	p.screen(1280, 1400, "light")
	p.do(chromedp.Navigate(s.url + "#/limit/modelTokens/key/globex"))
	const rows = `[...document.querySelectorAll("#tenant-list li")].map((li) => [...li.children].map((e) => e.textContent).join(" | "))`
	p.until(rows + `.length === 24`)
	for i, want := range []string{"modest: 1 job, next call 41 | has had least, turn 1",
		"out: 2 jobs, next call 7 | passed over: too few orgTokens"} {
		if got := eval[string](p, fmt.Sprintf(rows+"[%d]", i)); got != want {
			t.Errorf("tenant %d is shown as %q, want %q", i+1, got, want)
		}
	}
	if got := eval[string](p, rows+"[2]"); !strings.HasSuffix(got, ": 100 jobs, next call 0 | has had 1,200 more") {
		t.Errorf("a tenant that has had more is shown as %q", got)
	}
	if got := eval[string](p,
		`document.getElementById("turns-none").textContent`); got != "The first 24 of 32 tenants. Only the next few hundred jobs are counted." {
		t.Errorf("the page says %q", got)
	}
	p.shoot("line")

	none, q := newSite(t, dashboard.Config{Ahead: ahead}), browser(t)
	none.populate(t)
	q.screen(1280, 800, "light")
	q.do(chromedp.Navigate(none.url + "#/limit/modelTokens/key/globex"))
	q.until(`document.querySelectorAll("#job-list li").length === 24`)
	if !eval[bool](q, `document.getElementById("turns").hidden`) {
		t.Error("a line is shown, and there is none")
	}
}

// For those whom motion disturbs it changes with each reading, and stands still between them.
func TestLessMotion(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	s.populate(t)
	p.screen(1280, 800, "light", &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"})
	p.do(chromedp.Navigate(s.url + "#/limit/modelTokens/key/acme"))
	p.until(`document.getElementById("line") !== null`)
	asked := s.requests()
	eval[int](p, `(window.lines = new Set(), setInterval(() => lines.add(document.getElementById("line").getAttribute("d")), 10))`)
	p.until(`lines.size > 3`)
	lines := eval[int](p, `lines.size`)
	if n := s.requests() - asked; n < lines-2 { // three or so for each
		t.Errorf("%d lines were drawn of %d answers", lines, n)
	}
}

func TestEverythingIsReachedByTheKeyboard(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	s.populate(t)
	p.screen(1600, 900, "dark")
	p.do(chromedp.Navigate(s.url))
	p.until(limitRows + ` === 6`)
	p.press("/")
	p.until(`document.activeElement.id === "filter"`)
	p.press("s", "e", "a")
	p.until(limitRows + ` === 2`)
	p.press(kb.ArrowDown)
	p.until(focused + ` === "search"`)
	p.press("j")
	p.until(focused + ` === "search (shadow)"`)
	p.press("k", kb.Enter)
	p.until(hash + ` === "#/limit/search" && ` + keyRows + ` === 6`)
	p.press("/")
	p.until(`document.activeElement.id === "prefix"`)
	p.press("b")
	p.until(keyRows + ` === 1`)
	p.press(kb.ArrowDown, kb.ArrowRight)
	p.until(hash + ` === "#/limit/search/key/ben" && document.getElementById("line") !== null`)
	const chosen = `document.querySelector("#spans [aria-pressed=true]").textContent`
	before := eval[string](p, chosen)
	p.press("-")
	p.until(chosen + fmt.Sprintf(` !== %q`, before))
	p.press("+")
	p.until(chosen + fmt.Sprintf(` === %q`, before))
	p.press("?")
	p.until(`document.getElementById("help").open`)
	p.press(kb.Escape)
	p.until(`!document.getElementById("help").open && ` + hash + ` === "#/limit/search/key/ben"`)
	p.press(kb.Escape)
	p.until(hash + ` === "#/limit/search"`)
	p.press(kb.Escape)
	p.until(hash + ` === "#/"`)

	p.press("p")
	p.until(`document.getElementById("live").textContent === "stopped"`)
	asked := s.requests()
	time.Sleep(2500 * time.Millisecond)
	if n := s.requests() - asked; n > 0 {
		t.Errorf("%d requests while it is stopped", n)
	}
	p.press("p")
	p.until(`document.getElementById("live").textContent.startsWith("live")`)
}

// wide tells what is wider than the screen, by its id or class.
const wide = `JSON.stringify([...document.querySelectorAll("body *")].filter((e) => {
	const r = e.getBoundingClientRect();
	return r.width > 1 && (r.right > innerWidth + 1 || r.left < -1) && !e.closest(".hush, .skip, [hidden], .patterns, defs");
}).map((e) => (e.id || e.getAttribute("class") || e.tagName) + " " + e.textContent.slice(0, 20)).concat(document.documentElement.scrollWidth > innerWidth ? ["the page"] : []))`

func TestNothingIsWiderThanTheScreen(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{Ahead: ahead, InLine: inLine}), browser(t)
	s.populate(t)
	s.traffic(t)
	views := map[string]string{"limits": "#/", "keys": "#/limit/search", "key": "#/limit/search/key/ann",
		"debt": "#/limit/modelTokens/key/acme", "paused": "#/limit/reports/key/cem"}
	p.screen(1280, 800, "light")
	p.do(chromedp.Navigate(s.url + views["key"]))
	time.Sleep(10 * time.Second) // so that there is a line
	for _, size := range [][2]int64{{320, 700}, {768, 1024}, {1280, 800}, {1920, 1080}, {3840, 2160}} {
		for _, scheme := range []string{"light", "dark"} {
			p.screen(size[0], size[1], scheme)
			for name, view := range views {
				eval[string](p, fmt.Sprintf("location.hash = %q", view))
				ready := `document.querySelectorAll("#limit-list li").length > 0`
				if strings.Contains(view, "/key/") {
					ready = `document.getElementById("line") !== null`
				} else if name == "keys" {
					ready = keyRows + ` > 0`
				}
				p.until(ready)
				at := fmt.Sprintf("%s-%d-%s", name, size[0], scheme)
				if got := eval[string](p, wide); got != "[]" {
					t.Errorf("%s: wider than the screen: %s", at, got)
				}
				if got := eval[string](p, faint); got != "[]" {
					t.Errorf("%s: hard to read: %s", at, got)
				}
				p.shoot(at)
			}
		}
	}
}

// faint tells which text has a contrast below 4.5 to 1 with what is behind it.
const faint = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const rgb = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return rgb("Canvas"); };
	const bad = new Set();
	for (const e of document.querySelectorAll("body *")) {
		if (e.closest(".hush, .skip, [hidden], dialog") || !e.getClientRects().length) continue;
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
		const s = getComputedStyle(e), a = light(rgb(e instanceof SVGElement ? s.fill : s.color)), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) bad.add((e.id || e.getAttribute("class") || e.tagName) + " " + ratio.toFixed(1));
	}
	return JSON.stringify([...bad]);
})()`

// What it draws between readings is what the limiter would decide.
func TestThePageReckonsAsTheLimiterDoes(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	p.do(chromedp.Navigate(s.url))
	p.until(`document.getElementById("live").textContent.startsWith("live")`)
	at := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	type sample struct {
		Value, Capacity, Rate                   float64
		Period, WindowEnds, PausedUntil, At, To int64
		Windowed                                bool
	}
	var samples []sample
	var want []float64
	for range 400 {
		rate, capacity, period := float64(1+r.IntN(100)), float64(1+r.IntN(200)),
			time.Duration(1+r.IntN(120))*time.Second
		var rule ratelimit.Rule = ratelimit.TokenBucket{Rate: rate, Period: period, Capacity: &capacity}
		x := sample{Capacity: capacity, Rate: rate, Period: period.Microseconds(),
			At: at.UnixMicro(), Windowed: r.IntN(2) == 0}
		if x.Windowed {
			start := at.Add(-time.Duration(r.Int64N(int64(period))).Truncate(time.Microsecond))
			rule = ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: &capacity, Start: start}
			x.WindowEnds = start.Add(period).UnixMicro()
		}
		state := ratelimit.State{Value: capacity * (1 - 3*r.Float64()), TS: at}
		if r.IntN(3) == 0 {
			state.PausedUntil = at.Add(time.Duration(r.IntN(200)) * time.Second)
			x.PausedUntil = state.PausedUntil.UnixMicro()
		}
		to := at.Add(time.Duration(r.IntN(600_000)) * time.Millisecond)
		x.Value, x.To = state.Value, to.UnixMicro()
		limit, err := ratelimit.Define("page", rule)
		if err != nil {
			t.Fatal(err)
		}
		d, err := ratelimit.Decide(limit.Global().Count(0), state, to)
		if err != nil {
			t.Fatal(err)
		}
		samples, want = append(samples, x), append(want, d.State.Value)
	}
	text, err := json.Marshal(samples)
	if err != nil {
		t.Fatal(err)
	}
	eval[int](p, `import(new URL("balance.js", location.href)).then((m) => {
		window.reckoned = `+string(
		text,
	)+`.map((s) => m.valueAt(Object.fromEntries(Object.entries(s).map(([k, v]) => [k[0].toLowerCase() + k.slice(1), v])), s.To));
	}); 0`)
	p.until(`window.reckoned !== undefined`)
	for i, got := range eval[[]float64](p, `window.reckoned`) {
		if d := got - want[i]; d > 1e-6 || d < -1e-6 {
			t.Errorf("%+v: the page says %v, the limiter %v", samples[i], got, want[i])
		}
	}
}

func TestNamesAreShownAsTheyAreAndRunNothing(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	s.populate(t)
	p.screen(1280, 800, "light")
	p.do(chromedp.Navigate(s.url))
	p.until(limitRows + ` === 6`)
	p.click(`#limit-list li:first-child a`)
	p.until(`document.getElementById("keys-title").textContent.startsWith("<img") && ` + keyRows + ` === 1`)
	p.click(`#key-list li:first-child a`)
	p.until(`document.getElementById("detail-title").textContent.startsWith('"><script>') && ` + left + ` === 2`)
	if n := eval[int](p, `document.querySelectorAll("main img, main script").length`); n != 0 {
		t.Error("a name has become a part of the page")
	}
	if title := eval[string](p, `document.title`); title == "oops" {
		t.Error("a name has run")
	}
}

func TestThePageTellsThatItIsOldAndRecovers(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	s.populate(t)
	p.screen(768, 900, "dark")
	p.do(chromedp.Navigate(s.url))
	p.until(limitRows + ` === 6`)
	away := func(yes bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.away = yes
	}
	away(true)
	p.until(`!document.getElementById("trouble").hidden && document.getElementById("trouble").textContent.includes("The database is away.")`)
	if n := eval[int](p, limitRows); n != 6 {
		t.Errorf("%d limits are left on the screen", n)
	}
	p.shoot("away")
	away(false)
	p.until(`document.getElementById("trouble").hidden`)
}

// No key goes into an address: logs keep those.
func TestHiddenKeysAreNowhereInThePage(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{HideKeys: true}), browser(t)
	s.populate(t)
	p.screen(1280, 800, "light")
	p.do(chromedp.Navigate(s.url + "#/limit/search"))
	p.until(keyRows + ` === 6`)
	p.click(`#key-list li:first-child a`)
	p.until(`document.getElementById("line") !== null`)
	text := eval[string](p, `document.documentElement.outerHTML + location.href`)
	for _, key := range []string{"ann", "ben", "a-tenant"} {
		if strings.Contains(text, key+"<") || strings.Contains(text, ">"+key) || strings.Contains(text, "/"+key) {
			t.Errorf("%s is in the page", key)
		}
	}
	if eval[bool](p, `document.getElementById("prefix").getClientRects().length > 0`) {
		t.Error("hidden keys can be searched for")
	}
}

// A pause that is ended early is drawn until then, though no row tells when that was; one that is
// longer, or over, as long as it was.
func TestPausesAreDrawnAsLongAsTheyWere(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	p.do(chromedp.Navigate(s.url))
	p.until(`document.getElementById("live").textContent.startsWith("live")`)
	eval[int](p, `import(new URL("balance.js", location.href)).then((m) => { window.balance = m; }); 0`)
	p.until(`window.balance !== undefined`)
	// Two tokens a second; readings at 0, 1 s and so on.
	const read = `const at = (t, value, pausedUntil, writtenAt) => ({ at: t * 1e6, value, pausedUntil: pausedUntil * 1e6, writtenAt: writtenAt * 1e6, capacity: 20, rate: 2, period: 1e6 });`
	for readings, want := range map[string]string{
		// resumed
		`[at(1, 2, 0, 0), at(2, 3, 11.5, 1.5), at(3, 3, 11.5, 1.5), at(4, 4, 0, 1.5), at(5, 6, 0, 1.5)]`: `[[1.5,3.5]]`,
		// and taken from
		`[at(1, 2, 9, 0), at(2, 2, 9, 0), at(3, 1.5, 0, 2.75), at(4, 3.5, 0, 2.75)]`: `[[1,2.75]]`,
		`[at(1, 2, 1.5, 0), at(2, 3, 0, 0), at(3, 5, 0, 0)]`:                         `[[1,1.5]]`,         // over
		`[at(1, 2, 9, 0), at(2, 2, 12, 1.5)]`:                                        `[[1,12]]`,          // longer
		`[at(1, 2, 1.5, 0), at(2, 3, 0, 0), at(3, 4, 9, 2.5)]`:                       `[[1,1.5],[2.5,9]]`, // another
		`[at(1, 2, 0, 0), at(2, 4, 0, 0)]`:                                           `[]`,
	} {
		if got := eval[string](p,
			`(() => { `+read+` return JSON.stringify(balance.pauses(`+readings+`).map((p) => p.map((t) => t / 1e6))); })()`); got != want {
			t.Errorf("%s: %s, want %s", readings, got, want)
		}
	}
	if got, want := eval[string](p,
		`(() => { `+read+` return JSON.stringify(balance.joined(at(3, 3, 11.5, 1.5), at(4, 4, 0, 1.5))); })()`),
		`[[3000000,3],[3500000,3],[4000000,4]]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestManyKeysArePagedAndOddRowsAreTold(t *testing.T) {
	t.Parallel()
	s, p := newSite(t, dashboard.Config{}), browser(t)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'search', 'key' || lpad(i::text, 5, '0'), 5, now(), 10, CASE WHEN i = 1 THEN 0 ELSE 10 END, 60000000 FROM generate_series(1, 3000) i`); err != nil {
		t.Fatal(err)
	}
	p.screen(390, 844, "dark")
	p.do(chromedp.Navigate(s.url + "#/limit/search"))
	p.until(keyRows + ` === 60`)
	p.until(`document.querySelector("#key-list li").textContent.includes("broken")`)
	p.click(`#next`)
	p.until(`document.querySelector("#key-list li").dataset.id === "key00061"`)
	p.click(`#first`)
	p.until(`document.querySelector("#key-list li").dataset.id === "key00001"`)
	p.shoot("many")
	p.click(`#key-list li:first-child a`)
	p.until(`document.getElementById("badges").textContent.startsWith("The rows make no balance")`)
	eval[string](p, `location.hash = "#/limit/search/key/nobody"`)
	p.until(`document.getElementById("badges").textContent.startsWith("This key has no row")`)
	eval[string](p, `location.hash = "#/limit/%E0%A4/key/%"`) // no encoding of anything: the start
	p.until(`document.getElementById("main").dataset.view === "limits"`)
	if got := eval[string](p,
		`document.querySelector("#limit-list li").textContent`); !strings.Contains(got, "about ") ||
		!strings.Contains(got, "1 broken") {
		t.Errorf("%q", got)
	}
}
