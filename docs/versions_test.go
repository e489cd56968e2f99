package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var supported = regexp.MustCompile(`(?m)^\| (Go|Postgres|(?:github\.com|go\.opentelemetry\.io)/[^ ,|]+)[^|]* \| ([^ |]+) \| ([^|]+) \|$`)

// The table of supported versions says what go.mod requires, which scripts/floors holds an
// application to, and what weir doctor refuses to work below.
func TestTheSupportedVersionsAreThoseThatAreRequired(t *testing.T) {
	t.Parallel()
	_, page, _ := strings.Cut(read(t, "operations.md"), "\n## Supported versions\n")
	page, _, _ = strings.Cut(page, "\n## ")
	mods := read(t, "../go.mod") + read(t, "../otelweir/go.mod")
	lines := supported.FindAllStringSubmatch(page, -1)
	if len(lines) != 5 {
		t.Fatalf("operations.md has %d supported versions, want 5", len(lines))
	}
	for _, line := range lines {
		name, lowest, tested := line[1], line[2], line[3]
		file, want := mods, name+" "+lowest+"\n"
		switch name {
		case "Go":
			want = "\ngo " + lowest + ".0\n"
		case "Postgres":
			file, want = read(t, "../cmd/weir/doctor_server.go"), "n < "+lowest+"0000 "
		}
		if !strings.Contains(file, want) {
			t.Errorf("by operations.md the lowest version of %s is %s, and nothing says %q", name, lowest, want)
		}
		if first, _, _ := strings.Cut(tested, ", "); !strings.HasPrefix(lowest, first) {
			t.Errorf("%s is tested with %s, and not with %s, the lowest", name, tested, lowest)
		}
	}
}
