package scheduler_test

import (
	"testing"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/scheduler"
)

// Metadata is anybody's: what no ticket can say explains nothing, and breaks nothing.
func TestOddTicketsAreRead(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{
		`null`, `[]`, `{}`, `{"due":1e300}`, `{"more":"{\"v\":1,\"due\":1,\"by\":-1,\"on\":[[\"a\",\"b\",0]]}"}`,
		`{"more":"{\"v\":1,\"due\":1,\"by\":9}"}`,
		`{"more":"{\"v\":1,\"due\":1,\"on\":[null,[]]}"}`, `{"more":"{\"v\":1,\"due\":1,\"r\":null}"}`,
		`{"more":"{\"v\":1,\"due\":1,\"r\":{\"takes\":[[]]}}"}`,
	} {
		for _, state := range rivertype.JobStates() {
			job := &rivertype.JobRow{State: state, Metadata: []byte(`{"weir":` + odd + `}`)}
			w, ok := scheduler.Explain(job)
			t.Log(odd, state, w.Limit, ok)
			scheduler.ReservationOf(job)
		}
	}
}
