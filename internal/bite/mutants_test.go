package main

import (
	"os"
	"strings"
	"testing"
)

// What a mutant breaks stands in its file, once.
func TestEveryMutantFindsItsPlace(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		b, err := os.ReadFile("../../" + m.file)
		if n := strings.Count(string(b), m.from); err != nil || n != 1 {
			t.Errorf("%s: stands %d times in %s (%v): %q", m.name, n, m.file, err, m.from)
		}
	}
}
