package ticket

import (
	"testing"

	"github.com/weir-go/weir/ratelimit"
)

// Gaps that are old are forgotten, and so are the oldest of many.
func TestGapsAreForgotten(t *testing.T) {
	t.Parallel()
	a, b := Row{"limit", "a"}, Row{"limit", "b"}
	g := Gaps{}
	for at := range int64(100) {
		g[a] = append(g[a], gap{at, ratelimit.Take{}})
	}
	g[b] = []gap{{10, ratelimit.Take{}}}
	g.Forget(20, 30)
	if n := len(g[a]); n != 30 || g[a][0].at != 70 || len(g) != 1 {
		t.Errorf("%d are left of %d limits and keys, the first of %+v", n, len(g), g[a][:1])
	}
	if g.Forget(90, 30); len(g[a]) != 10 || g[a][0].at != 90 {
		t.Errorf("%d are left", len(g[a]))
	}
}
