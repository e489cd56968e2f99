package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The pictures in docs/ are those that the program draws, and some page shows each.
func TestThePicturesAreDrawnByTheProgram(t *testing.T) {
	t.Parallel()
	drawn := t.TempDir()
	if err := run(drawn); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := read(t, "../../README.md")
	for _, file := range files {
		pages += read(t, file)
	}
	for name := range pictures {
		if read(t, filepath.Join(drawn, name)) != read(t, filepath.Join("..", name)) {
			t.Errorf("docs/%s is out of date: make pictures", name)
		}
		if !strings.Contains(pages, name+")") {
			t.Errorf("no page shows %s", name)
		}
	}
}

// What has a colour on a light page has one on a dark page.
func TestThePicturesAreForDarkPagesToo(t *testing.T) {
	t.Parallel()
	light, dark, ok := strings.Cut(style, "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("there is no dark style")
	}
	coloured := regexp.MustCompile(`(?m)^(\.?[a-z]+) \{.*(?:fill|stroke): #`)
	selectors := func(css string) []string {
		all := map[string]bool{}
		for _, m := range coloured.FindAllStringSubmatch(css, -1) {
			all[m[1]] = true
		}
		return slices.Sorted(maps.Keys(all))
	}
	if l, d := selectors(light), selectors(dark); len(l) < 10 || !slices.Equal(l, d) {
		t.Errorf("light has %v, and dark %v", l, d)
	}
}

// A limiter on Postgres does what bucket.svg shows.
func TestTheBucketDoesWhatIsDrawn(t *testing.T) {
	t.Parallel()
	ctx, start := t.Context(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := weirtest.NewClock(start)
	limiter, err := ratelimit.New(ratelimit.Config{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t)
	verbs := limiter.Autocommit(pool)
	bucket := ratelimit.MustDefine("drawn", ratelimit.TokenBucket{
		Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(capacity)})
	second := func(at float64) time.Time { return start.Add(time.Duration(at * float64(time.Second))) }

	reservations := map[int]ratelimit.Reservation{}
	reserve := func(at int, tokens float64) {
		res, err := verbs.RateLimit(ctx, bucket.Global().Count(tokens).OrReserve())
		weirtest.Reserved(t, res, err)
		reservations[at] = res.Reservation()
	}
	starts := func(at int, want float64) {
		t.Helper()
		lines, _, err := limiter.Lines(ctx, pool, reservations[at].Takes...)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := reservations[at].Takes[0].RunAt(lines[0]); !got.Equal(second(want)) {
			t.Errorf("what was reserved at %d s may start at %v, want %v s", at, got.Sub(start), want)
		}
	}
	do := map[float64]func(){
		takes: func() {
			res, err := verbs.RateLimit(ctx, bucket.Global().Count(taken))
			weirtest.Granted(t, res, err)
		},
		aReserves: func() { reserve(aReserves, aReserved); starts(aReserves, aStarts) },
		bReserves: func() { reserve(bReserves, bReserved); starts(bReserves, bWouldStart) },
		aSettles: func() {
			if _, err := verbs.Settle(ctx, reservations[aReserves], bucket.Global().Count(aUsed)); err != nil {
				t.Fatal(err)
			}
			starts(bReserves, bStarts)
		},
		pauses: func() {
			if err := verbs.Pause(ctx, (resumes-pauses)*time.Second, bucket.Global()); err != nil {
				t.Fatal(err)
			}
		},
	}
	for i, v := range story() {
		clock.Set(second(v.at))
		if i > 0 && story()[i-1].at == v.at || v.at == pauses {
			do[v.at]()
			delete(do, v.at)
		}
		weirtest.Value(t, verbs, bucket.Global(), v.balance)
	}
	if len(do) > 0 {
		t.Errorf("%d steps are not drawn", len(do))
	}
}

// The answers of the tree are those of the guide.
func TestTheTreeSaysWhatTheGuideSays(t *testing.T) {
	t.Parallel()
	guide := read(t, "../choosing.md")
	answers := []string{rest}
	for _, q := range choices {
		answers = append(answers, slices.Concat(q.use, q.yes, q.no)...)
	}
	for _, a := range answers {
		_, name, ok := strings.Cut(a, ": ")
		if !ok {
			name = a
		}
		name, _, _ = strings.Cut(name, "(")
		name = name[strings.LastIndex(name, ".")+1:]
		if !strings.Contains(guide, name) {
			t.Errorf("choosing.md does not have %s", name)
		}
	}
}

// The tree and both tables ask for a River job in the same words, and name the same call.
func TestTheTreeAndTheTablesAskTheSame(t *testing.T) {
	t.Parallel()
	words, call := regexp.MustCompile(`, if the code that inserts a job must learn (.*?) \|`), "jobs.ReserveTx"
	asked := func(page string) string {
		for line := range strings.Lines(read(t, page)) {
			if found := words.FindStringSubmatch(line); found != nil && strings.Contains(line, call) {
				return found[1]
			}
		}
		t.Errorf("%s has no row for %s", page, call)
		return ""
	}
	want := asked("../choosing.md")
	if got := asked("../../README.md"); got != want {
		t.Errorf("README.md asks whether the code must learn %q, and choosing.md, %q", got, want)
	}
	for _, q := range choices {
		if slices.Contains(q.yes, call) {
			if got := q.then[len(q.then)-1]; got != want+"?" {
				t.Errorf("the tree asks %q, and the tables, %q", got, want)
			}
			return
		}
	}
	t.Errorf("the tree does not have %s", call)
}
