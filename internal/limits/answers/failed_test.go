package answers

import (
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// pgx adds methods to its interfaces now and then: TypeMap came with v5.11 and Tx with v5.12, and
// users may have those.
func TestAnswersThatWereNotSentHaveTheMethodsOfNewerVersions(t *testing.T) {
	t.Parallel()
	var rows, batch any = failedRows{err: errors.New("not sent")}, failedBatch{err: errors.New("not sent")}
	if r, ok := rows.(interface{ TypeMap() *pgtype.Map }); !ok || r.TypeMap() == nil {
		t.Error("no TypeMap")
	}
	if b, ok := batch.(interface{ Tx() pgx.Tx }); !ok || b.Tx() != nil {
		t.Error("no Tx, or one of a batch that began none")
	}
}

// Whatever pgx there is, each method answers.
func TestAnswersThatWereNotSentNeverPanic(t *testing.T) {
	t.Parallel()
	want := errors.New("not sent")
	for of, v := range map[reflect.Type]reflect.Value{
		reflect.TypeFor[pgx.Rows]():         reflect.ValueOf(failedRows{err: want}),
		reflect.TypeFor[pgx.BatchResults](): reflect.ValueOf(failedBatch{err: want}),
	} {
		for i := range of.NumMethod() {
			m := of.Method(i)
			for _, out := range v.MethodByName(m.Name).Call(nil) {
				if out.Type() == reflect.TypeFor[error]() && out.Interface() != any(want) {
					t.Errorf("%s.%s: %v, want %v", of, m.Name, out.Interface(), want)
				}
			}
		}
	}
}
