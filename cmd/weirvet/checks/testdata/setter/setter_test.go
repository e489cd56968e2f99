package setter

import (
	"testing"

	"github.com/weir-go/weir/ratelimit"
)

func TestDropped(*testing.T) {
	var request ratelimit.Request
	request.Count(5) // want `the result of Count is dropped`
}
