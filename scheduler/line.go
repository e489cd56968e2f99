package scheduler

import (
	"time"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share fairly. Jobs that [Jobs.QueueTx] inserts for it wait in line,
// and when tokens come, the tenant that has had the least goes next. Each key of the limit is a
// line of its own. Put the Line into [Config.Lines] of each program that queues jobs for the limit
// or works them.
//
// [Jobs.InsertTx] may reserve tokens of the same limit. Such jobs keep their RunAt: they go ahead
// of the line, by at most the rule's MaxReserved. Callers that take tokens at once, without waiting
// in line, go ahead only if Others allows it.
type Line struct {
	// Limit is what the tenants share. Its rule must have a MaxReserved, which should be at least
	// the largest count. A job with a larger count waits until the tokens exist, and other callers
	// may take them first. If the limit has shards, each grant takes from all of them alike.
	Limit ratelimit.Limit

	// OverAll compares River's priorities, 1 to 4, across tenants: a job of priority 1 goes ahead
	// of all jobs of priority 2. Tenants with jobs of the same priority share fairly. Default:
	// priorities order only the jobs of one tenant.
	OverAll bool

	// Patience bounds how long jobs of higher priority can pass over a job. Within a tenant, a job
	// goes ahead of jobs one priority lower that were due up to Patience earlier, of jobs two
	// priorities lower that were due up to twice Patience earlier, and so on. With OverAll, a job
	// that has waited for Patience counts as one priority higher in the comparison with other
	// tenants. Default: an hour.
	Patience time.Duration

	// Others is the weight of all callers that take from the limit without waiting in line, such as
	// HTTP handlers. Together they count as one tenant. While they have had no more than their
	// share, the line leaves them Leave tokens. Once they have had more, the line takes all tokens
	// that come until it has caught up, and the others are denied. Default: 0, which gives them
	// tokens only while no job waits in line. Others needs a TokenBucket.
	Others float64

	// Leave is how many tokens are left for Others. The capacity must be at least Leave plus what
	// flows in within 2 s. Default: half of the capacity.
	Leave float64
}

// linesOf checks lines.
func linesOf(all []Line) (fairline.Lines, error) {
	lines := make([]fairline.Line, len(all))
	for i, l := range all {
		lines[i] = fairline.Line(l)
	}
	return fairline.Check(lines)
}
