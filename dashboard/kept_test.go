package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
)

func TestWhatIsReadIsNotKept(t *testing.T) {
	t.Parallel()
	d := newDashboard(t, pgtest.Pool(t), Config{})
	r := get(t, d, http.MethodGet, "/api/limits")
	if r.Header().Get("Cache-Control") != "no-store" || r.Header().Get("Content-Security-Policy") != policy {
		t.Error(r.Header())
	}
	if body := r.Body.String(); !strings.Contains(body, `"limits":[]`) {
		t.Error(body)
	}
}
