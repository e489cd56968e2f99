package attempt

import (
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// A job that was charged in a round that then panicked comes again, and is not charged again: there
// is no database here to do it.
func TestAJobThatWasChargedBeforeAPanicIsNotChargedAgain(t *testing.T) {
	t.Parallel()
	v := &visit{res: ratelimit.Result{OK: true, At: time.Now()}}
	(&Attempts{}).charge([]*visit{v})
	if v.err != nil || !v.res.OK {
		t.Errorf("it was charged again: %v, %+v", v.err, v.res)
	}
}
