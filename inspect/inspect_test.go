package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func newReader(t *testing.T, db inspect.DB, cfg inspect.Config) *inspect.Reader {
	t.Helper()
	r, err := inspect.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// put writes a row by hand.
func put(t *testing.T, pool *pgxpool.Pool, name, key string, shard int, value, capacity, rate float64, period int64) {
	t.Helper()
	exec(t, pool, `INSERT INTO weir_balance (name, key, shard, value, ts, capacity, rate, period) VALUES ($1, $2, $3, $4, '2026-03-01 12:00:00Z', $5, $6, $7)`,
		name, key, shard, value, capacity, rate, period)
}

func at(s float64) time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

func TestNewRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	for want, err := range map[string]error{
		"db":      second(inspect.New(nil, inspect.Config{})),
		"Schema":  second(inspect.New(pool, inspect.Config{Schema: strings.Repeat("s", 64)})),
		"with":    second(inspect.New(pool, inspect.Config{Schema: "with\x00nul"})),
		"Timeout": second(inspect.New(pool, inspect.Config{Timeout: -1})),
	} {
		if !errors.Is(err, ratelimit.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func second(_ *inspect.Reader, err error) error { return err }

func TestWithoutTablesTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	_, err := newReader(t, pgtest.Bare(t), inspect.Config{}).Limits(t.Context())
	if err == nil || !strings.Contains(err.Error(), "schema.Migrate") {
		t.Error(err)
	}
	_, err = newReader(t, pgtest.Pool(t), inspect.Config{Schema: "no such"}).Limits(t.Context())
	if err == nil || !strings.Contains(err.Error(), "Config.Schema") {
		t.Error(err)
	}
}

// Rows that somebody has written to by hand spoil neither the page that they are on nor a JSON.
func TestOddRowsAreTold(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	look := newReader(t, pool, inspect.Config{Clock: func() time.Time { return at(1) }})
	inf, nan := math.Inf(1), math.NaN()
	for _, tc := range []struct {
		key     string
		put     func(key string)
		problem string
		value   float64
	}{
		{"good", func(k string) { put(t, pool, "odd", k, 0, 1, 10, 2, 1_000_000) }, "", 3},
		{"nan", func(k string) { put(t, pool, "odd", k, 0, nan, 10, 2, 1_000_000) }, "", 10},
		{"infinite", func(k string) { put(t, pool, "odd", k, 0, inf, 10, 2, 1_000_000) }, "", 10},
		{"closed", func(k string) { put(t, pool, "odd", k, 0, -inf, 10, 2, 1_000_000) }, "closed", 0},
		{"no rate", func(k string) { put(t, pool, "odd", k, 0, 1, 10, 0, 1_000_000) }, "Rate", 0},
		{"no period", func(k string) { put(t, pool, "odd", k, 0, 1, 10, 1, 0) }, "Period", 0},
		{"long period", func(k string) { put(t, pool, "odd", k, 0, 1, 10, 1, math.MaxInt64) }, "Period", 0},
		{"no capacity", func(k string) { put(t, pool, "odd", k, 0, 1, nan, 1, 1_000_000) }, "Capacity", 0},
		{"a head alone", func(k string) { put(t, pool, "odd", k, -1, 4, 0, 0, 1) }, "head row", 0},
		{"a head of none", func(k string) { put(t, pool, "odd", k, -1, nan, 0, 0, 1) }, "no valid layout", 0},
		{"a head of many", func(k string) { put(t, pool, "odd", k, -1, 1e300, 0, 0, 1) }, "no valid layout", 0},
		{"a head of a generation of none", func(k string) { put(t, pool, "odd", k, -1, 2048, 0, 0, 1) }, "no valid layout", 0},
		{"no longer sharded", func(k string) {
			put(t, pool, "odd", k, -1, 1, 0, 0, 1)
			put(t, pool, "odd", k, 0, 1, 10, 2, 1_000_000)
			put(t, pool, "odd", k, 1, -inf, 5, 1, 1_000_000)
			put(t, pool, "odd", k, 2, -inf, 5, 1, 1_000_000)
		}, "", 3},
		{"sharded", func(k string) {
			put(t, pool, "odd", k, -1, 2, 0, 0, 1)
			put(t, pool, "odd", k, 0, -inf, 10, 2, 1_000_000)
			put(t, pool, "odd", k, 2, 1, 5, 1, 1_000_000) // the other is full
		}, "", 7},
		{"sharded, and of those none", func(k string) {
			put(t, pool, "odd", k, -1, 2, 0, 0, 1)
			put(t, pool, "odd", k, 0, -inf, 10, 2, 1_000_000)
		}, "head row", 0},
		{"endless", func(k string) {
			put(t, pool, "odd", k, 0, 1, 10, 2, 1_000_000)
			exec(t, pool, `UPDATE weir_balance SET paused_until = 'infinity' WHERE key = $1`, k)
		}, "", 1},
		{"no time", func(k string) {
			put(t, pool, "odd", k, 0, 1, 10, 2, 1_000_000)
			exec(t, pool, `UPDATE weir_balance SET ts = '-infinity' WHERE key = $1`, k)
		}, "TS", 0},
	} {
		tc.put(tc.key)
		got, err := look.Balance(t.Context(), "odd", tc.key)
		if err != nil || got.Value != tc.value || (got.Problem == "") != (tc.problem == "") ||
			!strings.Contains(got.Problem,
				tc.problem) {
			t.Errorf("%s: %+v, %v", tc.key, got, err)
		}
		if text, err := json.Marshal(got); err != nil {
			t.Errorf("%s: %s, %v", tc.key, text, err)
		}
	}
	l, err := look.Limit(t.Context(), "odd")
	if err != nil || l.Keys != 17 || l.Looked != 17 || l.Problems != 11 || l.Short != 0 || l.Paused != 1 {
		t.Errorf("%+v, %v", l, err)
	}
}

// Shards stand in unequal lines, and the rows of former layouts are none of the balance.
func TestALimitSomeOfWhoseShardsOwe(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	look := newReader(t, pool, inspect.Config{Clock: func() time.Time { return at(1) }})
	const generation = 3
	put(t, pool, "uneven", "k", -1, generation<<11+2, 0, 0, 1)
	put(t, pool, "uneven", "k", 0, math.Inf(-1), 0, 4, 1_000_000)
	for i, value := range []float64{-10, 3} { // and one token a second comes in each
		put(t, pool, "uneven", "k", generation<<20+1+i, value, 8, 1, 1_000_000)
		put(t, pool, "uneven", "k", (generation-1)<<20+1+i, math.Inf(-1), 20, 1, 1_000_000)
	}
	b, err := look.Balance(t.Context(), "uneven", "k")
	if err != nil || b.Problem != "" || b.Shards != 2 || b.Value != -5 || b.Owed != 9 ||
		b.Capacity != 16 || b.Rate != 2 || !b.FullAt.Equal(at(18)) {
		t.Errorf("%+v, %v", b, err)
	}
	exec(t, pool, `UPDATE weir_balance SET value = -2 WHERE value = -10`)
	if b, err = look.Balance(t.Context(), "uneven", "k"); err != nil || b.Value != 3 || b.Owed != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	l, err := look.Limit(t.Context(), "uneven")
	if err != nil || l.InDebt != 1 || l.Shards != 2 {
		t.Errorf("%+v, %v: a limit of which a shard owes is in debt", l, err)
	}
}

// The form is what programs read.
func TestJSON(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		`{"limit":"chat","key":"acme","value":-2.5,"capacity":10,"rate":5,"windowed":true,"window_ends":"2026-03-01T12:00:02Z",` +
			`"full_at":"2026-03-01T12:00:09Z","paused_until":"2026-03-01T12:00:01.5Z","shards":1,"written_at":"2026-03-01T12:00:00Z",` +
			`"at":"2026-03-01T12:00:01Z","period":1.5}`: inspect.Balance{Limit: "chat", Key: "acme",
			Value: -2.5, Capacity: 10, Rate: 5,
			Period: 1500 * time.Millisecond, Windowed: true,
			WindowEnds: at(2), FullAt: at(9), PausedUntil: at(1.5), Shards: 1, WrittenAt: at(0), At: at(1)},
		`{"limit":"chat","key":"","value":10,"capacity":10,"rate":5,"windowed":false,"shards":1,"written_at":"2026-03-01T12:00:00Z",` +
			`"at":"2026-03-01T12:00:01Z","period":0.000001}`: inspect.Balance{Limit: "chat",
			Value: 10, Capacity: 10, Rate: 5,
			Period: time.Microsecond, Shards: 1, WrittenAt: at(0), At: at(1)},
		`{"name":"chat","shadow":false,"capacity":10,"rate":5,"windowed":false,"shards":4,"written_at":"2026-03-01T12:00:00Z","keys":7000,"estimated":true,` +
			`"looked":1000,"short":3,"in_debt":2,"paused":1,"problems":0,"tightest":-0.5,"at":"2026-03-01T12:00:01Z","period":60}`: inspect.Limit{Name: "chat", Capacity: 10, Rate: 5, Period: time.Minute, Shards: 4,
			WrittenAt: at(0), Keys: 7000, Estimated: true, Looked: 1000, Short: 3, InDebt: 2,
			Paused: 1, Tightest: -0.5, At: at(1)},
	} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
}

// A look at a table of many keys reads a few thousand pages of it, and not all; its number of keys
// is then the planner's guess.
func TestALookAtManyKeysReadsFew(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	const keys = 100_000
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'many', 'key ' || lpad(i::text, 12, '0'), 1, now(), 10, 10, 3600000000000 FROM generate_series(1, $1) AS i`,
		keys)
	exec(t, pool, `INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period) SELECT n, '', 5, now(), 10, 10, 3600000000000 FROM unnest('{few,nought}'::text[]) AS n`)
	exec(t, pool, `ANALYZE weir_balance`)
	conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	look := newReader(t, conn, inspect.Config{Timeout: time.Minute})
	before := touched(t, conn)
	limits, err := look.Limits(t.Context())
	if err != nil || len(limits) != 3 {
		t.Fatal(limits, err)
	}
	if l := limits[1]; l.Name != "many" || !l.Estimated || l.Keys < keys/2 || l.Keys > keys*2 || l.Looked != 1000 {
		t.Errorf("%+v", l)
	}
	if l := limits[0]; l.Estimated || l.Keys != 1 {
		t.Errorf("%+v", l)
	}
	if _, _, err := look.Keys(t.Context(), "many", inspect.Page{From: "key 00000005"}); err != nil {
		t.Fatal(err)
	}
	if _, err := look.Balance(t.Context(), "many", "key 000000077777"); err != nil {
		t.Fatal(err)
	}
	scans, rows := touched(t, conn)[0]-before[0], touched(t, conn)[1]-before[1]
	if scans != 0 || rows > 10_000 {
		t.Errorf("the table was scanned %d times, and %d of its rows were read by the index", scans, rows)
	}
}

// touched counts sequential scans, and rows that an index led to.
func touched(t *testing.T, conn *pgx.Conn) (n [2]int64) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil &&
		!strings.Contains(err.Error(),
			"does not exist") {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(),
		`SELECT seq_scan, idx_tup_fetch + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relid = s.relid)
		FROM pg_stat_user_tables s WHERE relid = 'weir_balance'::regclass`).Scan(&n[0], &n[1]); err != nil {
		t.Fatal(err)
	}
	return n
}

// What is read cannot be written, takes no longer than it may, and is read at READ COMMITTED,
// whatever the defaults of the connection.
func TestItReadsInATransactionThatStatesWhatItIs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	put(t, pool, "l", "k", 0, 1, 10, 2, 1_000_000)
	for timeout, want := range map[time.Duration]string{0: "5s", 1500 * time.Microsecond: "2ms", time.Hour: "1h"} {
		watch := &watched{pool: pool}
		for watch.timeout == "" { // within two milliseconds not even the settings may be read
			if _, err := newReader(t, watch,
				inspect.Config{Timeout: timeout}).Limits(t.Context()); err != nil && timeout != 1500*time.Microsecond {
				t.Fatal(err)
			}
		}
		if watch.timeout != want || watch.level != "read committed" || watch.readOnly != "on" {
			t.Errorf("%+v", watch)
		}
	}
	tight := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "59min" })
	watch := &watched{pool: tight}
	if _, err := newReader(t, watch, inspect.Config{Timeout: time.Hour}).
		Limits(t.Context()); err != nil || watch.timeout != "59min" {
		t.Errorf("%+v, %v", watch, err)
	}
}

// watched is a pool that notes how the last transaction was set when it was committed.
type watched struct {
	pool                     *pgxpool.Pool
	timeout, level, readOnly string
}

func (w *watched) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	tx, err := w.pool.BeginTx(ctx, opts)
	return &watchedTx{tx, w}, err
}

type watchedTx struct {
	pgx.Tx
	w *watched
}

func (tx *watchedTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := tx.QueryRow(ctx, `SELECT current_setting('statement_timeout'), current_setting('transaction_isolation'), current_setting('transaction_read_only')`).
		Scan(&tx.w.timeout, &tx.w.level, &tx.w.readOnly); err != nil {
		return nil, err
	}
	return tx.Tx.Query(ctx, sql, args...)
}
