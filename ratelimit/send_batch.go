package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/answers"
)

// SendBatch takes what the requests ask for and runs a batch of statements, in one transaction, at
// the level of [Config], and in one round trip: BEGIN, the take, the batch and COMMIT go out
// together. Use it for statements that need neither each other's results nor that of the take.
//
//	res, err := limiter.SendBatch(ctx, pool, func(b *pgx.Batch) error {
//		b.Queue(`INSERT INTO message (sender, text) VALUES ($1, $2)`, user, text)
//		return nil
//	}, SendMessage.For(user))
//
// If the limits deny, the database runs none of the statements, nothing is written, and the Result
// says so: a denial is no error. A denial that the limiter expects, because it has lately denied
// the same, takes one round trip. Any other takes two, makes the driver prepare the take again, and
// appears in the server's log as an ERROR.
//
// queue fills the batch. If the transaction conflicts with another one, queue is called again for a
// new batch, and the transaction runs again as in [Limiter.InTx]: so queue must have no side
// effects. The callbacks that it sets (QueryRow, Query, Exec of a queued query) are called after
// COMMIT, once and in order. If one of them fails, SendBatch returns its error together with the
// Result, and the writes stay.
//
// Limits with shards, and transactions that run again, take the round trips of InTx. A take that
// finds its shard locked has no tokens, but is no error either, as it tries another shard next. In
// one round trip the batch would run and commit without tokens.
//
// Any error without an OK Result means that nothing was written, except one that matches
// [ErrOutcomeUnknown]: the connection was lost, and the transaction was committed whole or not at
// all.
func (l *Limiter) SendBatch(
	ctx context.Context, db Beginner, queue func(b *pgx.Batch) error, requests ...Request,
) (Result, error) {
	o := l.observe(ctx, requests)
	calls, err := resolveAll(requests)
	switch {
	case err != nil:
	case !l.made():
		err = errNotMade()
	case isNil(db):
		err = errNoBeginner()
	case queue == nil:
		err = &InvalidError{Field: "queue", Value: plain("nil"),
			Want: "a function that fills a batch"}
	case nested(ctx, db):
		err = errNested
	}
	if err != nil {
		return o.told(Result{}, err)
	}
	s := sending{l: l, db: db, queue: queue, o: o}
	if enforced, _ := apart(calls); len(enforced) == 0 { // shadows decide nothing
		if _, err := s.send(ctx, nil); err != nil {
			return o.told(Result{}, err)
		}
	}
	res, err := o.told(beside(calls, true, func(calls []call) (Result, error) {
		if calls[0].shadow {
			return s.shadow(ctx, calls)
		}
		return s.send(ctx, calls)
	}))
	if err == nil {
		err = s.called
	}
	return res, err
}

// sending is a call of SendBatch.
type sending struct {
	l       *Limiter
	db      Beginner
	queue   func(b *pgx.Batch) error
	o       *observation
	begun   bool // the last round trip got an answer to BEGIN
	answers answers.Answers
	called  error // the error of a callback
}

// errAgain says that one round trip was not enough, and InTx has to run the transaction.
var errAgain = errors.New("ratelimit: to be run by InTx")

// send takes tokens for calls and runs the batch.
func (s *sending) send(ctx context.Context, calls []call) (res Result, err error) {
	l := s.l
	if res, ok := l.recall(calls); ok {
		return res, nil
	}
	conn, release, err := connect(ctx, s.db)
	if err != nil {
		return Result{}, errBegin(err)
	}
	defer release()
	if conn == nil {
		return Result{}, errNoBeginner()
	}
	err = errAgain
	if !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' && !l.sharded(calls) {
		if l.expected(calls) {
			s.trip()
			res, err := s.look(ctx, conn, calls)
			if err != nil && !errors.Is(err, errAgain) || err == nil && !res.OK {
				return res, err
			}
		}
		res, err = s.sendOnce(ctx, conn, calls)
	}
	if errors.Is(err, errAgain) {
		res, err = s.sendInTx(ctx, conn, calls)
	}
	if err == nil && res.OK {
		s.called = s.answers.Call(conn)
	}
	return res, err
}

// look is checkRateLimit, sent after statements without an answer. It returns errAgain if a limit
// has shards now.
func (s *sending) look(
	ctx context.Context, conn *pgx.Conn, calls []call, first ...*statement,
) (Result, error) {
	looks := forEach(calls, s.l.lookOf)
	if _, err := sendBatch(ctx, conn, append(first, looks...)); err != nil {
		return Result{}, explain(ctx, err, "look at", calls)
	}
	if slices.ContainsFunc(looks, (*statement).closed) {
		return Result{}, errAgain
	}
	seen, err := s.l.seen(ctx, executor{}, looks, calls)
	if err != nil {
		return Result{}, err
	}
	return s.l.judge(seen, calls), nil
}

// trip counts a round trip for the Observer.
func (s *sending) trip() {
	if s.o != nil {
		s.o.e.Trips++
	}
}

// shadow decides for a shadow, in a transaction of its own.
func (s *sending) shadow(ctx context.Context, calls []call) (res Result, err error) {
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = s.l.inTx(ctx, s.db, opts, func(ctx context.Context, tx pgx.Tx) error {
		res, err = s.l.rateLimit(ctx, s.o.counting(s.l.transaction(tx)), calls)
		return err
	}, nil)
	return res, err
}

// sendOnce sends everything in one round trip; a denial takes a second one. It returns errAgain if
// the transaction conflicts with another, or cannot be decided this way.
func (s *sending) sendOnce(ctx context.Context, conn *pgx.Conn, calls []call) (Result, error) {
	takes := forEach(calls, s.l.takeOrFailOf)
	if len(queueable(takes, s.l.contended.Has)) > 0 {
		return Result{}, errAgain // InTx queues for the rows
	}
	batch, fns, err := s.fill()
	if err != nil {
		return Result{}, err
	}
	whole := &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, 0, len(takes)+batch.Len()+2)}
	whole.Queue(s.l.begin)
	for _, take := range takes {
		whole.Queue(take.sql, take.args...)
	}
	whole.QueuedQueries = append(whole.QueuedQueries, batch.QueuedQueries...)
	mark := s.l.cfg.Citus && batch.Len() > 0
	if mark {
		whole.Queue(s.l.sql.TwoPhaseIf)
	}
	whole.Queue(endSQL)
	s.trip()
	failed, err := s.readAll(conn.SendBatch(ctx, whole), takes, fns, mark)
	if err == nil {
		if len(calls) == 0 {
			return Result{OK: true}, nil
		}
		res, _ := granted(takes, calls)
		return res, nil
	}
	return s.failed(ctx, conn, failed, err, calls)
}

// endSQL is COMMIT, on a line of its own: pgx's simple protocol sends all statements as one text, and
// a comment at the end of the caller's last one must not hide it.
const endSQL = "\n" + commitSQL

// fill calls queue for a new batch, and sets its callbacks aside until COMMIT.
func (s *sending) fill() (*pgx.Batch, []answers.Callback, error) {
	batch := &pgx.Batch{}
	if err := s.queue(batch); err != nil {
		return nil, nil, err
	}
	fns := make([]answers.Callback, batch.Len())
	for i, q := range batch.QueuedQueries {
		fns[i], q.Fn = q.Fn, nil
	}
	return batch, fns, nil
}

// readAll reads the answers to the whole transaction, which was marked before COMMIT or not. If a
// take failed, it returns that take with the error.
func (s *sending) readAll(
	results pgx.BatchResults, takes []*statement, fns []answers.Callback, marked bool,
) (failed *statement, err error) {
	// All answers are read below. An error after that to COMMIT is not the transaction's: see
	// sendBatch.
	defer func() { _ = results.Close() }()
	_, err = results.Exec()
	if s.begun = err == nil; !s.begun {
		return nil, errBegin(err)
	}
	for _, t := range takes {
		rows, err := results.Query()
		if err == nil {
			err = t.read(rows)
		}
		if err != nil {
			return t, err
		}
	}
	if s.answers, err = answers.Read(results, fns); err != nil {
		return nil, err
	}
	if marked {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	tag, err := results.Exec()
	if err == nil && tag.String() != "COMMIT" {
		err = fmt.Errorf("COMMIT was answered with %q: has one Queue several statements?", tag)
	}
	return nil, err
}

// failed handles the error of a transaction that was sent in one round trip: it ends the
// transaction, and works out whether the error is a denial, a conflict, or final.
func (s *sending) failed(
	ctx context.Context, conn *pgx.Conn, take *statement, err error, calls []call,
) (Result, error) {
	s.answers = nil
	var unbuilt pgx.ErrPreprocessingBatch
	switch {
	case isConflict(err):
		(&attempt{l: s.l, queues: !s.l.cfg.Portable}).observe(s.l, take, err)
		// Ending the failed transaction costs a round trip, but otherwise the pool would close the
		// connection, and its next user would have to connect.
		rollBack(ctx, conn)
		return Result{}, errAgain
	case take != nil && stateOf(err) == "22P02": // the take was denied: see orFail
		defer rollBack(ctx, conn) // if ctx has ended, the look sends nothing
		s.trip()
		res, err := s.look(ctx, conn, calls, &statement{sql: `ROLLBACK`})
		// pgx prepares statements that are new to it first, which fails before the ROLLBACK is sent
		if stateOf(err) == "25P02" {
			rollBack(ctx, conn)
			res, err = s.look(ctx, conn, calls)
		}
		if err == nil && res.OK { // tokens have come meanwhile
			err = errAgain
		}
		return res, err
	case isRolledBack(err):
		rollBack(ctx, conn)
		return Result{}, fmt.Errorf("ratelimit: batch: %w", hint(err))
	// pgx has not sent its COMMIT, or Postgres has not executed it
	case !s.begun && (!conn.IsClosed() || errors.As(err, &unbuilt)),
		!conn.IsClosed() && conn.PgConn().TxStatus() != 'I':
		rollBack(ctx, conn)
		return Result{}, fmt.Errorf("ratelimit: batch: %w", ended(ctx, err))
	}
	return Result{}, unknown(ended(ctx, err))
}

// rollBack ends a transaction that has failed.
func rollBack(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := grace.Now(ctx)
	defer cancel()
	if _, err := conn.Exec(ctx, `ROLLBACK`); err != nil {
		_ = conn.Close(ctx)
	}
}

// sendInTx runs the same in a transaction of InTx.
func (s *sending) sendInTx(
	ctx context.Context, conn *pgx.Conn, calls []call,
) (res Result, err error) {
	err = s.l.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		s.answers = nil
		res = Result{OK: true}
		if len(calls) > 0 {
			res, err = s.l.rateLimit(ctx, s.o.counting(s.l.transaction(tx)), calls)
			if err != nil || !res.OK {
				return err
			}
		}
		batch, fns, err := s.fill()
		if err != nil || batch.Len() == 0 {
			return err
		}
		results := tx.SendBatch(ctx, batch)
		s.answers, err = answers.Read(results, fns)
		if closing := results.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return fmt.Errorf("ratelimit: batch: %w", err)
		}
		return nil
	})
	if err != nil {
		return Result{}, err
	}
	return res, nil
}
