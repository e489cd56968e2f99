package main

import (
	"encoding/json"
	"math"
	osexec "os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/mattn/go-runewidth"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// stock fills the table with rows that look the same for hours.
func stock(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	exec(t, pool, `
		INSERT INTO weir_balance (name, key, shard, value, ts, capacity, rate, period, origin, paused_until)
		SELECT name, key, shard, value, now() - interval '2 days 5 hours 30 minutes', capacity, rate, period * 3600000000, origin,
			CASE WHEN paused THEN now() + interval '3 days 7 hours 30 minutes' END
		FROM (VALUES
			('chatTokens', 'acme',     0,     250.0::float8, 1000.0::float8, 1000.0::float8, 438000::bigint, NULL::timestamptz, false),
			('chatTokens', 'globex',   0,      80,     1000,   1000, 438000, NULL, false),
			('chatTokens', 'hooli',    0,    -500.5,   1000,   1000, 438000, NULL, false),
			('chatTokens', 'initech',  0,    1000,     1000,   1000, 438000, NULL, false),
			('chatTokens', 'long ' || repeat('x', 100), 0, 1, 1000, 1000, 438000, NULL, false),
			('chatTokens', E'\u65e5\u672c', 0, 500, 1000, 1000, 438000, NULL, true),
			('chatTokens', E'evil \u001b[31m', 0, 500, 1000, 1000, 438000, NULL, false),
			('hot',        '',        -1,       2,        0,      0, 1, NULL, false),
			('hot',        '',         1,      20,       50,     25, 24000, now() - interval '400 days 12 hours', false),
			('signIn (shadow)', '::1', 0,       5,        5,      5, 1, NULL, false)
		) AS v (name, key, shard, value, capacity, rate, period, origin, paused)`)
	return pool
}

func TestLimitsAreListed(t *testing.T) {
	t.Parallel()
	pool := stock(t)
	is(t, weir(t, pool, "limits").ok(t).out, `
LIMIT            RULE                         KEYS  SHARDS  SHORT  IN DEBT  PAUSED   WRITTEN
chatTokens       1,000 per 50y                   7       1      3        1       1  2d5h ago
hot              50 each 2y270d, at most 100     1       2      0        0       0  2d5h ago
signIn (shadow)  5 per 1h                        1       1      0        0       0  2d5h ago
`[1:])
	var limits []struct {
		Name  string
		Keys  int
		Short int
	}
	if err := json.Unmarshal([]byte(weir(t, pool, "limits", "--json").ok(t).out),
		&limits); err != nil || len(limits) != 3 || limits[0].Keys != 7 || limits[0].Short != 3 {
		t.Error(limits, err)
	}
	empty := pgtest.Pool(t)
	if got := weir(t, empty, "limits").ok(t).out; !strings.Contains(got, "nothing was taken yet") {
		t.Error(got)
	}
	is(t, weir(t, empty, "limits", "--json").ok(t).out, "[]\n")
}

var anInstant = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`)

func TestKeysAreShown(t *testing.T) {
	t.Parallel()
	pool := stock(t)
	is(t, weir(t, pool, "show", "chatTokens", "--most", "4").ok(t).out, `
KEY                                         LEFT     OF  FULL IN
acme             [#####...............]   250.12  1,000  37y180d
"evil \x1b[31m"  [##########..........]   500.12  1,000  24y362d
globex           [#...................]    80.12  1,000  45y362d
hooli            [....................]  -500.38  1,000    75y6d  owes 500.38

There are more: --from initech
`[1:])
	is(t, weir(t, pool, "show", "chatTokens", "--prefix", "h").ok(t).out, `
KEY                               LEFT     OF  FULL IN
hooli  [....................]  -500.38  1,000    75y6d  owes 500.38
`[1:])
	is(t, weir(t, pool, "show", "chatTokens", "--from", "\U0010FFFF").ok(t).out,
		"No key of limit \"chatTokens\" is like that.\n")
	is(t, anInstant.ReplaceAllString(weir(t, pool, "show", "chatTokens", "hooli").ok(t).out, "TIME"), `
chatTokens of hooli
  [........................................]
  left      -500.38 of 1,000
  rule      a token bucket: 1,000 per 50y
  next      a token in 25y25d, at TIME
  full      in 75y6d, at TIME
  written   2d5h ago, at TIME
`[1:])
	is(t, anInstant.ReplaceAllString(weir(t, pool, "show", "hot", "").ok(t).out, "TIME"), `
hot
  [############################............]
  left      70 of 100 (70 %)
  rule      a fixed window: 50 each 2y270d, at most 100
  full      in 4y139d, at TIME
  window    ends in 1y234d, at TIME
  shards    2
  written   2d5h ago, at TIME
`[1:])
	is(t, anInstant.ReplaceAllString(weir(t, pool, "show", "chatTokens", "日本").ok(t).out, "TIME"), `
chatTokens of 日本
  [####################....................]
  left      500 of 1,000 (50 %)
  rule      a token bucket: 1,000 per 50y
  full      in 25y3d, at TIME
  paused    ends in 3d7h, at TIME
  written   2d5h ago, at TIME
`[1:])
}

// On a terminal there are colours and blocks, and what does not fit is cut where it hurts least.
func TestKeysAreShownOnATerminal(t *testing.T) {
	t.Parallel()
	pool := stock(t)
	seen := func(change func(*env), args ...string) string {
		return weirAs(t, pool, func(e *env) { terminal(e); change(e) }, args...).ok(t).out
	}
	got := seen(func(*env) {}, "show", "chatTokens")
	is(t, regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(got, ""), `
KEY                                                            LEFT     OF  FULL IN
acme                                  █████░░░░░░░░░░░░░░░   250.12  1,000  37y180d
"evil \x1b[31m"                       ██████████░░░░░░░░░░   500.12  1,000  24y362d
globex                                █▌░░░░░░░░░░░░░░░░░░    80.12  1,000  45y362d
hooli                                 ░░░░░░░░░░░░░░░░░░░░  -500.38  1,000    75y6d  owes 500.38
initech                               ████████████████████    1,000  1,000     full
long xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx~  ▏░░░░░░░░░░░░░░░░░░░     1.12  1,000  49y344d
日本                                  ██████████░░░░░░░░░░      500  1,000    25y3d  paused for 3d7h
`[1:])
	for _, want := range []string{"\x1b[32m█████\x1b[0m", "\x1b[33m80.12\x1b[0m", "\x1b[31mowes 500.38\x1b[0m",
		"\x1b[36mpaused for 3d7h\x1b[0m"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q", want)
		}
	}
	for line := range strings.Lines(regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(got, "")) {
		if n := runewidth.StringWidth(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d cells: %s", n, line)
		}
	}
	for line := range strings.Lines(seen(func(e *env) { e.outTerm, e.width = false, 80 }, "limits")) {
		if len(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("%d cells: %s", len(line), line)
		}
	}
	ascii := func(name, value string) func(e *env) {
		return func(e *env) {
			getenv := e.getenv
			e.getenv = func(n string) string {
				if n == name {
					return value
				}
				return getenv(n)
			}
		}
	}
	for name, change := range map[string]func(*env){
		"a pipe":          func(e *env) { e.outTerm, e.width = false, 0 },
		"NO_COLOR":        ascii("NO_COLOR", "1"),
		"a dumb terminal": ascii("TERM", "dumb"),
		"latin1":          ascii("LC_ALL", "de_DE.ISO-8859-1"),
		"no locale":       ascii("LANG", ""),
	} {
		if got := seen(change, "show", "chatTokens"); strings.ContainsAny(got, "\x1b█░") || !strings.Contains(got,
			"[#####...............]") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestKeysAsJSON(t *testing.T) {
	t.Parallel()
	pool := stock(t)
	var page struct {
		Keys []map[string]any
		Next string
	}
	weir(t, pool, "show", "chatTokens", "--most", "2", "--json").ok(t).json(t, &page)
	if len(page.Keys) != 2 || page.Keys[1]["key"] != "evil \x1b[31m" || page.Next != "globex" ||
		page.Keys[0]["period"] != 438000*3600.0 {
		t.Errorf("%+v", page)
	}
	page.Keys, page.Next = nil, ""
	weir(t, pool, "show", "chatTokens", "--from", "\U0010FFFF", "--json").ok(t).json(t, &page)
	if page.Keys == nil || len(page.Keys) != 0 || page.Next != "" {
		t.Errorf("%+v", page)
	}
	var one map[string]any
	weir(t, pool, "show", "hot", "", "--json").ok(t).json(t, &one)
	if one["value"] != 70.0 || one["windowed"] != true || one["shards"] != 2.0 {
		t.Errorf("%+v", one)
	}
	weir(t, pool, "show", "chat").fails(t, exitFailed, `no limit "chat" has a balance`,
		"there are chatTokens, hot, signIn (shadow)")
	weir(t, pool, "show", "chatTokens", "acm").fails(t, exitFailed, "never used",
		"another limit of that call denied it")
}

func TestNumbersAndDurations(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 1: "1", 999: "999", 1000: "1,000", 1234567.891: "1,234,567.89", -1234.5: "-1,234.5",
		0.019: "0.01", 99.999: "99.99",
		-0.001: "-0.01", 1 << 53: "9,007,199,254,740,992", 2.3: "2.3", 0.29: "0.29", 33.3: "33.3", 3 - 4.4e-16: "3", 100 - 1e-13: "100", 12: "12",
	} {
		if got := number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "0s", time.Microsecond: "1µs", 1500 * time.Microsecond: "1.5ms",
		345678 * time.Microsecond: "346ms",
		time.Second:               "1s", 1999 * time.Millisecond: "1.9s", time.Minute: "1m",
		61 * time.Second: "1m1s", time.Hour + time.Second: "1h", 25*time.Hour + time.Minute: "1d1h",
		366 * 24 * time.Hour: "1y1d",
		-time.Minute:         "-1m", math.MinInt64: "-292y171d",
	} {
		if got := lasting(d); got != want {
			t.Errorf("%v: %s, want %s", int64(d), got, want)
		}
	}
	for rate, want := range map[float64]string{2.3: "2.3 per 1s, at most 5", 0.005: "0.005 per 1s, at most 5",
		1000: "1,000 per 1s, at most 5"} {
		if got := rule(5, rate, time.Second, false); got != want {
			t.Errorf("%v: %s, want %s", rate, got, want)
		}
	}
}

// A token that comes in more than 292 years, which no Duration is long enough for, is not told.
func TestATokenThatNeverComesIsNotTold(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	quota := ratelimit.MustDefine("quota", ratelimit.TokenBucket{Rate: 1, Period: 100 * 365 * 24 * time.Hour,
		Capacity: ratelimit.Tokens(10), MaxReserved: ratelimit.Tokens(10)})
	take(t, pool, quota.For("acme").Count(10))
	take(t, pool, quota.For("acme").Count(2).OrReserve())
	if out := weir(t, pool, "show", "quota", "acme").ok(t).out; strings.Contains(out, "  next ") {
		t.Error(out)
	}
	exec(t, pool, `UPDATE weir_balance SET ts = 'infinity'`)
	weir(t, pool, "limits").ok(t)
}

// A bar is as wide as it is said to be, whatever it shows, and what is left is seen however little
// it is.
func TestBarsAreOfOneWidth(t *testing.T) {
	t.Parallel()
	e, _, _ := newEnv(nil)
	fancy, _, _ := newEnv(nil)
	terminal(fancy)
	for _, capacity := range []float64{0, 1, 3, 1e15} {
		for _, value := range []float64{math.Inf(-1), -5, 0, 1e-300, 0.001, 0.5, 1, 2.9, 3, 1e15,
			math.Inf(1), math.NaN()} {
			if got := e.bar(value, capacity, 20); len(got) != len("[]")+20 ||
				strings.Contains(got, "#") != (value > 0 && capacity > 0) {
				t.Errorf("%v of %v: %q", value, capacity, got)
			}
			got := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(fancy.bar(value, capacity, 20), "")
			if runewidth.StringWidth(got) != 20 || (strings.Count(got, "░") < 20) != (value > 0 && capacity > 0) {
				t.Errorf("%v of %v: %q", value, capacity, got)
			}
		}
	}
}

// What `weir show` suggests to paste is the key, and no command, whatever clients have put into it.
func TestAKeyIsQuotedForTheShell(t *testing.T) {
	t.Parallel()
	bash, err := osexec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash: ", err)
	}
	for _, key := range []string{"acme", "", "-x", "a b", "it's", "$(id)", "`id`", "a\"b", "\u200b$(id)", "\u200b`id`\"\\", "a\nb'c",
		"é\u200b", "\x1b[31m", "\u200b!!"} {
		out, err := osexec.Command(bash, "-c", "printf %s "+quoteArg(key)).CombinedOutput()
		if err != nil || string(out) != key {
			t.Errorf("%q is quoted as %s, which is %q (%v)", key, quoteArg(key), out, err)
		}
	}
}

// A job that has started since the line was read is not before another one.
func TestAJobIsExplainedWhoseNeighboursHaveStarted(t *testing.T) {
	t.Parallel()
	a := explained{Job: 3}
	a.place(&inLine{Jobs: []jobInLine{{Turn: 2, Job: 2, Tenant: "b"}, {Turn: 3, Job: 3, Tenant: "a"}}})
	if a.Turn != 3 || len(a.Before) != 1 || a.Before[0].Tenant != "b" {
		t.Errorf("%+v", a)
	}
}
