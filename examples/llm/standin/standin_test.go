package standin

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// ask makes calls one after another, each of 3 + 100 tokens at the most, and returns what they
// used.
func ask(t *testing.T, s *Server, n int) (used []int) {
	t.Helper()
	for range n {
		resp, err := http.Post(s.BaseURL()+"/chat/completions", "application/json",
			strings.NewReader(`{"model": "m", "messages": [{"role": "user", "content": "why not"}], "max_tokens": 100}`))
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			Usage struct {
				Total int `json:"total_tokens"`
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&out)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", resp.Status, err)
		}
		used = append(used, out.Usage.Total)
	}
	return used
}

func TestTheServerSaysWhatItsLogCounts(t *testing.T) {
	t.Parallel()
	var runs [2][]int
	for i := range runs {
		s, err := Start(NewLog(time.Hour, 10_000, 100), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Stop() }()
		runs[i] = ask(t, s, 20)
		for n, c := range s.Log.Calls() {
			if used := runs[i][n]; !c.Done || c.Tokens != used || used < 23 || used > 103 {
				t.Errorf("call %d has used %d, and stands in the log as %+v", n, used, c)
			}
		}
		if s.Log.Refused() != 0 {
			t.Errorf("%d refused", s.Log.Refused())
		}
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Errorf("with the same seed %v and %v", runs[0], runs[1])
	}
}
