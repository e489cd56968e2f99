package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

// Limits into which nothing flows, so that each balance says what it has been charged: the window
// has an end that no test sees, and into the bucket flows less than a millionth of a token in five
// minutes.
var (
	budgetCalls = ratelimit.MustDefine("budgetCalls",
		ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(400)})
	budgetTokens = ratelimit.MustDefine("budgetTokens",
		ratelimit.FixedWindow{Rate: 1e6, Period: never, Start: time.Unix(0, 0)})

	budgets = map[string]float64{"budgetCalls": 400, "budgetTokens": 1e6}

	// What flows lets jobs wait, two seconds at the most.
	flowCalls = ratelimit.MustDefine("flowCalls", ratelimit.TokenBucket{Rate: 12,
		Period: time.Second, Capacity: ratelimit.Tokens(2), MaxReserved: ratelimit.Tokens(24)})
	flowTokens = ratelimit.MustDefine("flowTokens", ratelimit.TokenBucket{Rate: 1000,
		Period: time.Second, Capacity: ratelimit.Tokens(200), MaxReserved: ratelimit.Tokens(2000)})
)

// The tables of the application, ask, intent and report, and those of the audit. What is charged
// and what becomes of it is written down by triggers, in the transaction that does it, whoever dies
// after that: the reservations that a job's metadata has ever had, the settlements, and each change
// of a balance. What a further attempt has paid is in the job's metadata when River writes what
// became of the attempt, and before that in the intent of its worker. No constraints: see tables.
const settledTables = `
CREATE TABLE ask (id text NOT NULL, job bigint NOT NULL);
CREATE TABLE intent (job bigint NOT NULL, attempt int NOT NULL, reservation text NOT NULL, metadata jsonb NOT NULL);
CREATE TABLE report (xact bigint NOT NULL, job bigint NOT NULL, attempt int NOT NULL, reservation text NOT NULL, used float8 NOT NULL);

CREATE TABLE job_log (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT clock_timestamp(), xact bigint NOT NULL,
	job bigint NOT NULL, inserted boolean NOT NULL, ticket jsonb, line text NOT NULL);
CREATE FUNCTION log_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO job_log (xact, job, inserted, ticket, line)
	VALUES (pg_current_xact_id()::text::bigint, NEW.id, TG_OP = 'INSERT',
		CASE WHEN TG_OP = 'INSERT' OR OLD.metadata->'weir' IS DISTINCT FROM NEW.metadata->'weir' THEN NEW.metadata->'weir' END,
		format('%s in %s, attempt %s by %s, scheduled for %s: backend %s, %s', NEW.state, NEW.queue, NEW.attempt,
			NEW.attempted_by[array_upper(NEW.attempted_by, 1)], NEW.scheduled_at, pg_backend_pid(), substr(current_query(), 1, 60)));
	RETURN NULL;
END $$;
CREATE TRIGGER log_job AFTER INSERT OR UPDATE ON river_job FOR EACH ROW EXECUTE FUNCTION log_job();

CREATE TABLE settled_log (xact bigint NOT NULL, reservation text NOT NULL);
CREATE FUNCTION log_settled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO settled_log VALUES (pg_current_xact_id()::text::bigint, NEW.id::text);
	RETURN NULL;
END $$;
CREATE TRIGGER log_settled AFTER INSERT ON weir_settled FOR EACH ROW EXECUTE FUNCTION log_settled();

CREATE TABLE balance_log (xact bigint NOT NULL, limit_name text NOT NULL, key text NOT NULL, delta float8 NOT NULL);
CREATE FUNCTION log_balance() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO balance_log VALUES (pg_current_xact_id()::text::bigint, NEW.name, NEW.key,
		NEW.value - CASE TG_OP WHEN 'INSERT' THEN NEW.capacity ELSE OLD.value END);
	RETURN NULL;
END $$;
CREATE TRIGGER log_balance AFTER INSERT OR UPDATE ON weir_balance FOR EACH ROW EXECUTE FUNCTION log_balance();`

// office is a crew of workers that call an upstream and settle, and those who keep asking them to.
type office struct {
	*shift
	upstream *upstream
	cancels  map[string]bool // asks that were to be cancelled
	given    map[string]callArgs

	kind  kind // of the crew
	total figures
	blows map[string]int

	unheard int // payments, at the most, of which blows have kept the workers from hearing
}

func newOffice(t *testing.T, k kind) *office {
	t.Helper()
	s := newShift(t)
	s.exec(t, settledTables)
	o := &office{shift: s, kind: k, upstream: newUpstream(t), cancels: map[string]bool{},
		given: map[string]callArgs{}, blows: map[string]int{}}
	s.env = []string{upstreamEnv + "=" + o.upstream.URL}
	return o
}

// ask keeps jobs coming; what it returns ends that.
func (o *office) ask(t *testing.T) (stop func()) {
	t.Helper()
	ctx := t.Context()
	stopping := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			pace := time.NewTicker(60 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-stopping:
					return
				case <-pace.C:
					o.insert(ctx)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(stopping)
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// insert reserves for a job, and cancels it, one in eight.
func (o *office) insert(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a := callArgs{Key: string(rune('a' + rand.N(20))), Flowing: rand.N(4) == 0,
		Once: rand.N(4) == 0, Estimate: float64(40+rand.N(480)) / 4}
	cancelled := rand.N(8) == 0
	opts := &river.InsertOpts{MaxAttempts: 1000}
	after := rand.N(300 * time.Millisecond)
	switch far := rand.N(2) == 0; {
	case !cancelled || a.Flowing: // it may or may not have begun
	case far:
		opts.ScheduledAt = time.Now().Add(time.Hour)
	default:
		after = rand.N(30 * time.Millisecond)
	}

	o.mu.Lock()
	o.ids++
	a.ID = fmt.Sprintf("call-%d", o.ids)
	o.given[a.ID] = a
	o.cancels[a.ID] = cancelled
	o.mu.Unlock()
	o.callers.begin(op{ID: a.ID})
	one, tokens := a.requests(a.Estimate)
	if a.Flowing {
		one, tokens = one.OrReserve(), tokens.OrReserve()
	}
	err := o.app.limiter.InTx(ctx, o.pool, func(ctx context.Context, tx pgx.Tx) error {
		in, err := o.jobs.InsertTx(ctx, tx, a, opts, one, tokens)
		if err == nil {
			err = in.Err()
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO ask VALUES ($1, $2)`, a.ID, in.Job.Job.ID)
		return err
	})
	r := resultOf(a.ID, err)
	o.callers.end(r)
	if cancelled && !r.Class.final() {
		time.Sleep(after)
		o.cancel(ctx, a.ID)
	}
}

// cancel does it, however often it takes, if the job is there.
func (o *office) cancel(ctx context.Context, id string) {
	for ctx.Err() == nil {
		err := pgx.BeginTxFunc(ctx, o.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			var job int64
			if err := tx.QueryRow(ctx, `SELECT job FROM ask WHERE id = $1`, id).Scan(&job); err != nil {
				return err
			}
			_, err := o.jobs.CancelTx(ctx, tx, job)
			return err
		})
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// rescueRows does what River's rescuer does with jobs whose clients are no more, an hour or so
// later, and its scheduler right after that: the attempt counts, and the next one may begin.
const rescueRows = `WITH left_over AS (
	UPDATE river_job SET
		state = CASE WHEN metadata ? 'cancel_attempted_at' THEN 'cancelled' ELSE 'available' END::river_job_state,
		finalized_at = CASE WHEN metadata ? 'cancel_attempted_at' THEN now() END,
		scheduled_at = CASE WHEN metadata ? 'cancel_attempted_at' THEN scheduled_at ELSE now() END,
		errors = array_append(errors, jsonb_build_object('at', now(), 'attempt', attempt, 'error', 'Stuck job rescued by JobRescuer', 'trace', '')),
		metadata = metadata || jsonb_build_object('river:rescue_count', coalesce((metadata->>'river:rescue_count')::int, 0) + 1)
	WHERE state = 'running' AND NOT attempted_by[array_upper(attempted_by, 1)] = ANY ($1)
	RETURNING queue
)
SELECT pg_notify(current_schema() || '.river_insert', json_build_object('queue', queue)::text) FROM left_over GROUP BY queue`

// rescue gives the jobs of those who are no more to the others.
func (o *office) rescue(t *testing.T) {
	t.Helper()
	o.rescueBut(t, slices.Collect(maps.Keys(o.crew)))
	o.age(t, ageLeader)
}

// rescueBut rescues the jobs of all who are not among the living.
func (s *shift) rescueBut(t *testing.T, living []string) {
	t.Helper()
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, rescueRows, append([]string{}, living...))
		for deadlocked(err) { // with a round, say, that moves the rows in another order
			_, err = conn.Exec(ctx, rescueRows, append([]string{}, living...))
		}
		return err
	})
}

func deadlocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40P01"
}

// finish waits until all jobs are over. If for two minutes no more of them are, the audit says what
// is wrong.
func (o *office) finish(t *testing.T) {
	t.Helper()
	o.upstream.mu.Lock()
	o.upstream.deaf = true
	o.upstream.mu.Unlock()
	// Whoever wanted to cancel a job may have been called off before: it is worked like the others.
	o.exec(t, `UPDATE river_job SET scheduled_at = now() WHERE state = 'scheduled' AND scheduled_at > now() + interval '10 min'`)
	last, fewer, since := -1, time.Now(), time.Now()
	for ; time.Since(fewer) < 2*time.Minute; time.Sleep(25 * time.Millisecond) {
		n := o.count(t, `SELECT count(*) FROM river_job WHERE state NOT IN ('completed', 'cancelled')`)
		if n == 0 {
			break
		}
		if n != last {
			last, fewer, since = n, time.Now(), time.Now()
		}
		// a client has never learned that it was given a job, as the server went away
		if time.Since(since) > 3*time.Second {
			o.unheard += atATime * len(o.crew)
			o.dismiss(t)
			o.rescue(t)
			o.hire(t, o.kind, o.kind, o.kind)
			since = time.Now()
		}
	}
	o.upstream.mu.Lock()
	o.upstream.deaf = false
	o.upstream.mu.Unlock()
	o.dismiss(t)
	o.settle(t)
}

// inspect is to be called when nobody works any more.
func (o *office) inspect(t *testing.T) *verdict {
	t.Helper()
	d := o.daybook(t)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.upstream.mu.Lock()
	defer o.upstream.mu.Unlock()
	o.callers.mu.Lock()
	defer o.callers.mu.Unlock()
	return inspect(d, &heard{records: o.callers.records, given: o.given, cancels: o.cancels,
		answers: o.upstream.answers, told: o.upstream.told, unheard: o.unheard})
}

func (o *office) clear(t *testing.T) {
	t.Helper()
	o.exec(t, `TRUNCATE ask, intent, report, job_log, settled_log, balance_log, river_job, river_leader, weir_balance, weir_settled`)
	o.callers.forget()
	o.upstream.forget()
	clear(o.given)
	clear(o.cancels)
	o.unheard = 0
}

// history tells what a job has gone through.
func (o *office) history(t *testing.T, job int64) string {
	t.Helper()
	var lines []string
	o.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT line FROM (
			SELECT n, concat_ws(' ', at, line, ticket) AS line FROM job_log WHERE job = $1
			UNION ALL SELECT NULL, concat_ws(' ', 'intent', i) FROM intent i WHERE job = $1
			UNION ALL SELECT NULL, concat_ws(' ', 'report', r) FROM report r WHERE job = $1) AS all_lines ORDER BY n NULLS LAST`,
			job)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return fmt.Sprintf("job %d:\n%s", job, strings.Join(lines, "\n"))
}

// blow is a fault at a point.
type blow struct {
	at  point
	how string
}

// What can happen to a worker that is caught, or to all of them.
const (
	killed         = "worker killed"
	killedMoving   = "worker killed while its COMMIT is under way"
	connectionCut  = "connection cut"
	serverKilled   = "server killed"
	serverMoving   = "server killed while a COMMIT is under way"
	serverShutDown = "server shut down immediately"
)

// strike lets a fault hit whoever comes by its point, and puts others in the place of the dead.
func (o *office) strike(t *testing.T, b blow) {
	t.Helper()
	c, let := o.upstream.catch(t, b.at)
	for o.crew[c.Worker] == nil { // the last words of one who was killed
		let <- cut
		c, let = o.upstream.catch(t, b.at)
	}
	h := o.crew[c.Worker]
	var err error
	o.unheard += atATime
	if strings.HasPrefix(b.how, "server") {
		o.unheard += atATime * (len(o.crew) - 1)
	}
	switch b.how {
	case killed:
		o.fire(h)
	case killedMoving:
		let <- proceed
		time.Sleep(rand.N(3 * time.Millisecond)) //nolint:gosec // before, after, or in the middle
		o.fire(h)
	case connectionCut:
		let <- cut
	case serverKilled:
		err = o.fixture.server.Kill()
		let <- cut // at the other points it is no different from proceed
	case serverMoving:
		let <- proceed
		time.Sleep(rand.N(2 * time.Millisecond)) //nolint:gosec // before, after, or in the middle
		err = o.fixture.server.Kill()
	case serverShutDown:
		err = o.fixture.server.Shutdown("immediate")
		let <- cut
	}
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(b.how, "server") {
		o.callers.await(t, away, 2)
		if err := o.fixture.server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.callers.await(t, granted, 5)
	}
	if b.how == killed || b.how == killedMoving {
		o.rescue(t)
		o.hire(t, o.kind)
	}
	o.rounds++
	o.blows[fmt.Sprintf("%s when %s", b.how, b.at)]++
}

// foreign says that the server is not ours to break.
func foreign() bool { return os.Getenv("DATABASE_URL") != "" }
