package result

import "testing"

// A test may take without looking.
func TestTakes(t *testing.T) {
	if _, err := auto.RateLimit(ctx, request); err != nil {
		t.Fatal(err)
	}
}
