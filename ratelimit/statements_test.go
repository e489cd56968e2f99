package ratelimit

import (
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// every returns one statement of each kind, for each configuration.
func every(t *testing.T, cfg Config) map[string]*statement {
	t.Helper()
	l := limiterFor(t, cfg)
	calls := resolved(t, apples.For("x").Count(2), pears.For("x"))
	bucket, window := &calls[0], &calls[1]
	onCredit := resolved(t, apples.For("x").Within(time.Second).OnCredit())
	ofBucket, ofWindow := *bucket, *window
	ofBucket.Shard, ofWindow.Shard = 1, 1
	inTime := resolved(t, apples.For("x").Within(time.Second), pears.For("x").Within(time.Second))
	give := func(c *call) *statement { return l.giveOf(&change{receipt: receipt{call: *c}}, 1, true) }
	return map[string]*statement{
		"take bucket":         l.takeOf(bucket),
		"take window":         l.takeOf(window),
		"take bucket in time": l.takeOf(&inTime[0]),
		"take window in time": l.takeOf(&inTime[1]),
		"take on credit":      l.takeOf(&onCredit[0]),
		"give bucket":         give(bucket),
		"give window":         give(window),
		"give bucket shard":   give(&ofBucket),
		"give window shard":   give(&ofWindow),
		"charge bucket":       l.chargeOf(bucket, 1),
		"charge window":       l.chargeOf(window, 1),
		"reset bucket":        l.resetOf(bucket),
		"reset window":        l.resetOf(window),
		"pause bucket":        l.pauseOf(bucket, 5, nil),
		"pause window":        l.pauseOf(window, 5, nil),
		"resume bucket":       l.resumeOf(bucket, nil),
		"resume window":       l.resumeOf(window, nil),
		"look":                l.lookOf(bucket),
	}
}

var (
	parameter = regexp.MustCompile(`\$(\d+)(::[a-z0-9]+)?`)
	onUpdate  = regexp.MustCompile(`(?s)DO UPDATE.*`)
)

var configs = []Config{{}, {Portable: true}, {Schema: "weir"}, {Schema: `odd "schema"`, Portable: true}}

// Arguments and parameters correspond, and each parameter is cast at its first use, so that each of
// pgx's query modes finds its type.
func TestStatementsHaveOneArgumentForEachParameter(t *testing.T) {
	t.Parallel()
	for _, cfg := range configs {
		for name, s := range every(t, cfg) {
			cast := map[int]bool{}
			most := 0
			for _, m := range parameter.FindAllStringSubmatch(s.sql, -1) {
				n, _ := strconv.Atoi(m[1])
				cast[n] = cast[n] || m[2] != ""
				most = max(most, n)
			}
			if most != len(s.args) || len(cast) != most {
				t.Errorf("%+v: %s: %d arguments, parameters %v", cfg, name, len(s.args), cast)
			}
			for n, ok := range cast {
				if !ok && (n != 4 || strings.HasPrefix(name, "look")) { // $4::float8 stands first in its product
					t.Errorf("%+v: %s: $%d is never cast", cfg, name, n)
				}
			}
			if strings.ContainsAny(s.sql, "{}") {
				t.Errorf("%+v: %s: not filled in: %s", cfg, name, s.sql)
			}
		}
	}
}

// Where a row is updated everything has to be immutable: the clock stands in what would be
// inserted, and is read once.
func TestStatementsReadTheClockOnceAndNotToUpdate(t *testing.T) {
	t.Parallel()
	for _, cfg := range configs {
		for name, s := range every(t, cfg) {
			update := onUpdate.FindString(s.sql)
			if strings.Contains(update, "_timestamp()") {
				t.Errorf("%s: the clock is in %s", name, update)
			}
			reads := strings.Count(s.sql, "clock_timestamp()")
			if reads == 0 && strings.Contains(s.sql, "statement_timestamp()") {
				reads = 1 // the same wherever it stands
			}
			if n := reads; n != 1 {
				t.Errorf("%s: the clock is read %d times", name, n)
			}
			for _, volatile := range []string{"now()", "current_timestamp", "transaction_timestamp", "random("} {
				if strings.Contains(strings.ToLower(s.sql), volatile) {
					t.Errorf("%s uses %s", name, volatile)
				}
			}
		}
	}
}

func TestStatementsNameTheSchemaQuoted(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		"":                   "weir_",
		"weir":               `"weir".weir_`,
		`a"b; DROP TABLE c`:  `"a""b; DROP TABLE c".weir_`,
		"{refill} {table}":   `"{refill} {table}".weir_`,
		"it's":               `"it's".weir_`,
		"$1":                 `"$1".weir_`,
		"Größe with a space": `"Größe with a space".weir_`,
	} {
		for _, portable := range []bool{false, true} {
			for name, s := range every(t, Config{Schema: schema, Portable: portable}) {
				sql := strings.ReplaceAll(s.sql, "''", "'") // as it stands in a string
				if strings.Count(sql, "weir_") != strings.Count(sql, want) {
					t.Errorf("schema %q: %s: %s", schema, name, s.sql)
				}
			}
		}
		l := limiterFor(t, Config{Schema: schema})
		table := "'" + strings.ReplaceAll(want, "'", "''") + "balance'::regclass"
		for _, s := range append(queueFor(&l.sql, []int64{1, 5}), &statement{sql: l.sql.Unqueue([]int64{1, 5})}) {
			if n := strings.Count(s.sql, table); n != strings.Count(s.sql, "regclass") ||
				n < 2 && strings.Contains(s.sql, "advisory") {
				t.Errorf("schema %q: %s", schema, s.sql)
			}
		}
	}
}

// A ts never moves back, and is written whenever the balance is: one without the other would count
// time twice.
func TestTakeWritesBalanceAndTimestampTogether(t *testing.T) {
	t.Parallel()
	for name, s := range every(t, Config{}) {
		if !strings.HasPrefix(name, "take") {
			continue
		}
		update := onUpdate.FindString(s.sql)
		for _, part := range []string{"value = least(", "\tts = greatest(b.ts, excluded.ts)",
			"RETURNING b.value, b.ts"} {
			if strings.Count(update, part) != 1 {
				t.Errorf("%s: want %q once in %s", name, part, update)
			}
		}
	}
}

// Nothing in a text changes from call to call: values are parameters.
func TestStatementsOfOneKindShareTheirText(t *testing.T) {
	t.Parallel()
	l := limiterFor(t, Config{})
	calls := resolved(t, apples.For("x"),
		apples.For("y'; --").Count(3).OrReserve().Rule(TokenBucket{Rate: 3, Period: time.Hour}))
	if a, b := l.takeOf(&calls[0]), l.takeOf(&calls[1]); a.sql != b.sql || reflect.DeepEqual(a.args, b.args) {
		t.Errorf("%q %v\n%q %v", a.sql, a.args, b.sql, b.args)
	}
}

func TestClockOfTheConfigIsTheOneThatIsSent(t *testing.T) {
	t.Parallel()
	reads := 0
	l := limiterFor(t, Config{Clock: func() time.Time { reads++; return at(0) }})
	calls := resolved(t, apples.For("x"))
	statements := []*statement{l.takeOf(&calls[0]), l.lookOf(&calls[0]), l.resetOf(&calls[0]),
		l.undoOf(&change{receipt: receipt{call: calls[0]}}),
		l.chargeOf(&calls[0], 1),
		l.pauseOf(&calls[0], 5, nil), l.resumeOf(&calls[0], nil)}
	for _, s := range statements {
		if !slices.ContainsFunc(s.args, func(a any) bool { return a == any(at(0)) }) {
			t.Errorf("not among %v", s.args)
		}
	}
	if reads != len(statements) {
		t.Errorf("read %d times for %d statements", reads, len(statements))
	}
	for name, s := range every(t, Config{}) {
		if !slices.Contains(s.args, nil) {
			t.Errorf("%s: without a clock of its own, none is sent: %v", name, s.args)
		}
	}
}

func TestOnlyLookDoesNotWrite(t *testing.T) {
	t.Parallel()
	for _, cfg := range configs {
		for name, s := range every(t, cfg) {
			if s.writes == (name == "look") || s.writes == strings.HasPrefix(s.sql, "SELECT") || s.c == nil {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

// A row of nulls, or none, is a limit that was never used.
func TestAnswerWithoutARowIsNoBalance(t *testing.T) {
	t.Parallel()
	value, ts := pgtype.Float8{Float64: 3, Valid: true}, pgtype.Timestamptz{Time: at(0), Valid: true}
	for _, s := range []*statement{{}, {found: true},
		{found: true, answer: columnsOf{value: value}}, {found: true, answer: columnsOf{ts: ts}}, {
			answer: columnsOf{value: value, ts: ts},
		}} {
		if b := s.balance(); b.Exists {
			t.Errorf("%+v: %+v", s, b)
		}
	}
	if b := (&statement{found: true, answer: columnsOf{value: value, ts: ts}}).balance(); b != (algebra.Balance{
		Exists: true, Value: 3, TS: noon, PausedUntil: algebra.Open,
	}) {
		t.Errorf("%+v", b)
	}
	until := pgtype.Timestamptz{Time: at(time.Minute), Valid: true}
	if b := (&statement{found: true, answer: columnsOf{value: value, ts: ts, paused: until,
		delay: pgtype.Int8{Int64: 7, Valid: true}, moved: pgtype.Float8{
			Float64: 2, Valid: true,
		}}}).balance(); b != (algebra.Balance{
		Exists: true, Value: 3, TS: noon, PausedUntil: noon + 60e6, Delay: 7, Moved: 2,
	}) {
		t.Errorf("%+v", b)
	}
}
