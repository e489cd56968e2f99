package result

import (
	"log"
	"testing"
)

// A test may take without looking.
func TestTakes(t *testing.T) {
	if _, err := auto.RateLimit(ctx, request); err != nil {
		t.Fatal(err)
	}
}

// An example is copied.
func Example() {
	if _, err := auto.RateLimit(ctx, request); err != nil { // want `the Result of RateLimit is dropped`
		log.Fatal(err)
	}
}
