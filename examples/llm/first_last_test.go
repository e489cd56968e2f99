package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// A newcomer runs the demo first: it says what there is to see, and where to go on.
func TestTheDemoSaysWhatItShowsAndWhatToTryNext(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o := options{requests: 20, budget: budget{api: "first ", tokens: 20_000, requests: 400,
		minute: 2 * time.Second}, within: 2 * time.Minute, shards: 1}
	if err := run(ctx, &progress{out: &out, start: time.Now()}, o); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if first := lines[0]; !strings.HasPrefix(first, "You will see 20 calls") {
		t.Errorf("the first line is %q", first)
	}
	if last := lines[len(lines)-1]; last != tryNext {
		t.Errorf("the last line is %q", last)
	}
}
