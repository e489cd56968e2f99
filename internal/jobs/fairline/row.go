package fairline

import (
	"context"
	"math"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

// Row is a row of weir_turn.
type Row struct {
	Name     string    `json:"name"`
	Key      string    `json:"key"`
	Tenant   string    `json:"tenant"`
	Priority int       `json:"priority"` // 0: a correction
	Due      time.Time `json:"due"`
	Job      int64     `json:"job"`
	Cost     float64   `json:"cost"`
	Weight   float64   `json:"weight"`
}

// RowOf is the row of a job that waits. It is always the same for the same job.
func RowOf(s *ticket.Seat, job *rivertype.JobRow) *Row {
	due := job.CreatedAt
	if s.From != 0 {
		due = time.UnixMicro(s.From)
	}
	return &Row{s.Limit, s.Key, s.Tenant, job.Priority, due, job.ID, s.Cost, s.Weight}
}

// enterSQL puts jobs into line that are not there yet.
//
// $1 an array of Rows
const enterSQL = `INSERT INTO {ours}weir_turn (name, key, tenant, priority, due, job, cost, weight)
SELECT name, key, tenant, priority, due, job, cost, weight
FROM jsonb_to_recordset($1::text::jsonb) AS t (name text, key text, tenant text, priority smallint,
	due timestamptz, job bigint, cost double precision, weight double precision)
ON CONFLICT (name, key, tenant, priority, due, job) DO NOTHING`

// Enter puts jobs into line that are not there yet.
func Enter(ctx context.Context, s riverjob.Store, q riverjob.Querier, rows ...*Row) error {
	return riverjob.Send(ctx, s, q, enterSQL, rows)
}

// Leave has a job leave its line.
func Leave(ctx context.Context, s riverjob.Store, q riverjob.Querier, row *Row) error {
	return s.Query(ctx, q, leaveSQL, row.key(), nil)
}

// key is the row's primary key.
func (t *Row) key() []any { return []any{t.Name, t.Key, t.Tenant, t.Priority, t.Due, t.Job} }

// correctSQL notes what a job has used beyond what its tenant was charged.
//
// $1 name $2 key $3 tenant $4 job $5 beyond $6 weight
const correctSQL = `INSERT INTO {ours}weir_turn (name, key, tenant, priority, due, job, cost, weight)
VALUES ($1::text, $2::text, $3::text, 0, clock_timestamp(), $4::bigint, $5::double precision, $6::double precision)`

// Correct notes that, if it is anything. exec is the transaction's Exec, or its ExecContext if it
// is one of database/sql.
func Correct[T any](
	ctx context.Context, s riverjob.Store, exec func(context.Context, string, ...any) (T, error),
	job int64, seat *ticket.Seat, beyond float64,
) error {
	if seat == nil || seat.Waits || beyond == 0 || math.IsNaN(beyond) {
		return nil
	}
	_, err := exec(ctx, s.SQL(correctSQL),
		seat.Limit, seat.Key, seat.Tenant, job, beyond, seat.Weight)
	return err
}
