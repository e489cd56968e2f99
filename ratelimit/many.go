package ratelimit

import (
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/statements"
	"github.com/weir-go/weir/internal/limits/where"
)

// many is what a statement over many rows is about.
type many struct {
	rows  []*standing
	locks bool // it answers with numbers alone: those of the rows that it has locked
}

// standing is a row, the calls for it, and what the database answered about it.
type standing struct {
	c       *call // the place, and the rule by which it is written
	waiters []*waiter
	count   float64 // what all of them ask for
	taken   bool    // Many.Take has taken all of it
	made    bool    // and the row was inserted
	locked  bool    // by this transaction
	found   bool    // the row exists
	left    algebra.Balance
	at      int64 // the clock when it was read
	changed bool
}

// forms returns the statements over rows, and whether each is for one row. So are those of the
// portable form. On Citus one reaches several rows if their keys are in one range of hashes.
func (l *Limiter) forms(rows []*standing) (of *statements.Many, each bool) {
	switch {
	case !l.cfg.Portable:
		return &l.sql.Many, false
	case l.cfg.Citus && len(rows) > 1 && l.inOneRange(rows):
		return &l.sql.InRange, false
	default:
		return &l.sql.Many, true
	}
}

func (l *Limiter) inOneRange(rows []*standing) bool {
	return !slices.ContainsFunc(rows[1:], func(r *standing) bool {
		return !l.ranges.together(r.c.Key, rows[0].c.Key)
	})
}

// columnar returns the statements for rows: one for all, or one for each.
func columnar(each bool, sql string, rows []*standing, columns ...any) []*statement {
	if !each {
		return []*statement{{sql: sql, args: columns, many: &many{rows: rows}}}
	}
	statements := make([]*statement, len(rows))
	for i := range rows {
		args := make([]any, len(columns))
		for k, column := range columns {
			args[k] = column // the clock
			if v := reflect.ValueOf(column); v.Kind() == reflect.Slice {
				args[k] = v.Index(i).Interface()
			}
		}
		statements[i] = &statement{sql: sql, args: args, many: &many{rows: rows[i : i+1]}}
	}
	return statements
}

// placesOf returns $1 and $2, and rulesOf returns $1 to $6.
func placesOf(rows []*standing) (names, keys []string) {
	names, keys = make([]string, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		names[i], keys[i] = r.c.Name, r.c.Key
	}
	return names, keys
}

func rulesOf(rows []*standing) []any {
	n := len(rows)
	capacities, rates := make([]float64, n), make([]float64, n)
	periods, origins := make([]int64, n), make([]pgtype.Timestamptz, n)
	for i, r := range rows {
		capacities[i], rates[i], periods[i] = r.c.Capacity, r.c.Rate, r.c.Period
		if r.c.Windowed {
			origins[i] = pgtype.Timestamptz{Time: fromMicro(r.c.Origin), Valid: true}
		}
	}
	names, keys := placesOf(rows)
	return []any{names, keys, capacities, rates, periods, origins}
}

// takeMany takes from rows. With makes, which is not for the portable form, it also inserts those
// that do not exist.
func (l *Limiter) takeMany(rows []*standing, makes bool) []*statement {
	of, each := l.forms(rows)
	sql := of.Take
	if makes {
		sql = of.Make
	}
	counts := make([]float64, len(rows))
	for i, r := range rows {
		counts[i] = r.count
	}
	return columnar(each, sql, rows, append(rulesOf(rows), counts, l.now())...)
}

func (l *Limiter) lookMany(rows []*standing) []*statement {
	of, each := l.forms(rows)
	names, keys := placesOf(rows)
	statements := columnar(each, of.Look, rows, names, keys, l.now())
	for _, s := range statements {
		s.looks, s.here = true, l.here()
	}
	return statements
}

func (l *Limiter) lockMany(rows []*standing) []*statement {
	of, each := l.forms(rows)
	names, keys := placesOf(rows)
	statements := columnar(each, of.Lock, rows, names, keys)
	for _, s := range statements {
		s.many.locks = true
	}
	return statements
}

// waitFor waits for one row and locks it. The statements after it lock it again, which costs no
// wait.
func (l *Limiter) waitFor(at where.Place) *statement {
	return &statement{sql: l.sql.Many.Wait, args: []any{at.Name, at.Key}, many: &many{locks: true}}
}

// putMany writes the rows that have changed. Those that do not exist are inserted, and returned as
// missing.
func (l *Limiter) putMany(rows []*standing) (statements []*statement, missing []*standing) {
	var there []*standing
	for _, r := range rows {
		switch {
		case !r.changed:
		case r.found:
			there = append(there, r)
		default:
			missing = append(missing, r)
		}
	}
	put := func(sql string, rows []*standing) {
		if len(rows) == 0 {
			return
		}
		values := make([]float64, len(rows))
		times, pauses := make([]pgtype.Timestamptz, len(rows)),
			make([]pgtype.Timestamptz, len(rows))
		for i, r := range rows {
			values[i] = r.left.Value
			times[i] = pgtype.Timestamptz{Time: fromMicro(r.left.TS), Valid: true}
			if r.left.PausedUntil != algebra.Open {
				pauses[i] = pgtype.Timestamptz{Time: fromMicro(r.left.PausedUntil), Valid: true}
			}
		}
		statements = append(statements,
			columnar(l.cfg.Portable, sql, rows, append(rulesOf(rows), values, times, pauses)...)...)
	}
	put(l.sql.Many.Put, there)
	put(l.sql.Many.New, missing)
	return statements, missing
}

// read reads the answer. With looks, each row of it has the clock.
func (m *many) read(rows pgx.Rows, looks bool) error {
	defer rows.Close()
	for _, r := range m.rows { // see statement.read
		r.locked = r.locked && !m.locks
		r.taken = r.taken && (m.locks || looks)
	}
	one := statement{looks: looks, found: true}
	for n := 1; rows.Next(); n++ {
		if looks && n > len(m.rows) { // it answers with one for each
			return prunedSince
		}
		raw, fields := rows.RawValues(), rows.FieldDescriptions()
		nr := int64(0)
		if fields[0].Format == pgx.BinaryFormatCode {
			nr = int64(bits(raw[0])) //nolint:gosec // the same bits
		}
		if nr == 0 || !m.locks && !one.decodeFrom(fields[1:], raw[1:]) {
			dest := []any{&nr}
			if !m.locks {
				dest = append(dest, one.dest()...)
			}
			if err := rows.Scan(dest...); err != nil {
				return err
			}
		}
		switch {
		case m.rows == nil: // Many.Wait
		case m.locks:
			m.rows[nr-1].locked = true
		case looks:
			r := m.rows[nr-1]
			r.found, r.left, r.at = one.answer.value.Valid, one.balance(), one.answer.at.UnixMicro()
		default:
			r := m.rows[max(nr, -nr)-1]
			r.taken, r.made, r.left = true, nr < 0, one.balance()
		}
	}
	return rows.Err()
}

// closed reports whether the row is closed, because the limit has shards.
func (r *standing) closed() bool { return r.found && r.left.IsClosed() }
