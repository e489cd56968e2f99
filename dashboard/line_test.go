package dashboard

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

type lineAnswer struct {
	Balance *keyAnswer
	Line    []struct {
		Tenant, NextKind, PassedOver string
		Jobs, Turn                   int
		NextID                       int64
		Charged                      float64
	}
	LineError string
	LineMore  bool
}

// Tenants in a fair line are shown, and hidden like keys.
func TestTheLineIsToldAndHidden(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	take(t, pool, nil, search.For("ann"))
	inLine := func(_ context.Context, limit, key string) ([]Tenant, bool, error) {
		if limit != "search" || key != "ann" && key != "nobody" {
			return nil, false, errors.New("another key: " + key)
		}
		all := []Tenant{{Key: "modest", Jobs: 1, Next: Job{ID: 41, Kind: "call"}, Turn: 1, PassedOver: "orgTokens"}}
		for range mostTenants {
			all = append(all, Tenant{Key: "greedy", Jobs: 7, Charged: 30.5})
		}
		return all, false, nil
	}
	shown := newDashboard(t, pool, Config{Clock: clock, InLine: inLine})
	for _, key := range []string{"ann", "nobody"} { // with a balance, and without
		l := data[lineAnswer](t, shown, "/api/balance?limit=search", "Weir-Key", key)
		if len(l.Line) != mostTenants || !l.LineMore || l.LineError != "" || (l.Balance == nil) != (key == "nobody") {
			t.Fatalf("%s: %d tenants, %v, %q", key, len(l.Line), l.LineMore, l.LineError)
		}
		if first := l.Line[0]; first.Tenant != "modest" || first.Jobs != 1 || first.Turn != 1 ||
			first.NextID != 41 || first.NextKind != "call" ||
			first.PassedOver != "orgTokens" || l.Line[1].Charged != 30.5 || l.Line[1].Jobs != 7 {
			t.Errorf("%+v", l.Line[:2])
		}
	}
	if l := data[lineAnswer](t, shown, "/api/balance?limit=search", "Weir-Key",
		"ben"); l.Line != nil || !strings.Contains(l.LineError, "another key: ben") {
		t.Errorf("%+v", l)
	}
	if l := data[lineAnswer](t, newDashboard(t, pool, Config{Clock: clock}),
		"/api/balance?limit=search", "Weir-Key", "ann"); l.Line != nil || l.LineError != "" {
		t.Errorf("%+v", l)
	}

	hidden := newDashboard(t, pool,
		Config{Clock: clock, HideKeys: true, Secret: []byte("0123456789abcdef"), InLine: inLine})
	keys := data[keysAnswer](t, hidden, "/api/keys?limit=search")
	l := data[lineAnswer](t, hidden, "/api/balance?limit=search", "Weir-Key", keys.Keys[0].ID)
	if name := hidden.name("modest").Key; len(l.Line) != mostTenants || l.Line[0].Tenant != name || len(name) != 8 {
		t.Errorf("%+v", l.Line)
	}
	l = data[lineAnswer](t, hidden, "/api/balance?limit=search", "Weir-Key", hidden.name("ben").ID)
	if l.LineError == "" || strings.Contains(l.LineError, "ben") {
		t.Errorf("%+v", l)
	}
}
