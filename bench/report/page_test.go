package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The whole run, for a moment each: every contender is in every table of the real page, and every
// mark is filled.
func TestARunWritesThePage(t *testing.T) {
	t.Parallel()
	docs := t.TempDir()
	old, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(docs, "benchmarks.md")
	if err := os.WriteFile(file, []byte(emptied(string(old))), 0o644); err != nil {
		t.Fatal(err)
	}
	needsRedis(t, run(t.Context(), quick, docs))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, table := range []string{"contenders", "many", "one", "audit"} {
		part := between(page, table)
		for _, c := range contenders() {
			if !strings.Contains(part, "\n| "+c.name+" | ") {
				t.Errorf("table %q has no row of %s:\n%s", table, c.name, part)
			}
		}
	}
	for _, c := range contenders() {
		in := strings.Contains(between(page, "durable"), "\n| "+c.name+" | ")
		if want := c.family == weir || c.family == postgres; in != want {
			t.Errorf("the table with synchronous_commit = on has a row of %s: %v, want %v", c.name, in, want)
		}
	}
	for _, name := range append(named, "cores", "CPU", "memory", "kernel", "Go", "Postgres", "Redis") {
		if !strings.Contains(between(page, "machine"), "\n| "+name+" | ") {
			t.Errorf("the machine's table does not have %s", name)
		}
	}
	for _, c := range contenders() {
		if c.family != weir && !strings.Contains(between(page, "loses"),
			"**"+c.name+"** was faster than every way of Weir in") {
			t.Errorf("the page does not say where %s is faster", c.name)
		}
	}
	for _, mark := range []string{"short", "run"} {
		if strings.TrimSpace(between(page, mark)) == "" {
			t.Errorf("nothing is written at the mark %q", mark)
		}
	}
	for _, picture := range []string{"benchmarks-many-keys.svg", "benchmarks-one-key.svg", "benchmarks-granted.svg"} {
		if svg, err := os.ReadFile(filepath.Join(docs, picture)); err != nil ||
			!strings.HasSuffix(strings.TrimSpace(string(svg)), "</svg>") {
			t.Errorf("%s is no picture: %v", picture, err)
		}
		if !strings.Contains(page, "]("+picture+")") {
			t.Errorf("the page does not show %s", picture)
		}
	}
}

// between is what stands at a mark.
func between(page, mark string) string {
	_, rest, _ := strings.Cut(page, "<!-- "+mark+" -->\n")
	part, _, _ := strings.Cut(rest, "<!-- end -->")
	return part
}

// emptied is a page without what is generated.
func emptied(page string) string {
	parts := strings.Split(page, "<!-- end -->")
	for i, part := range parts[:len(parts)-1] {
		before, _, _ := strings.Cut(part, " -->\n")
		parts[i] = before + " -->\n"
	}
	return strings.Join(parts, "<!-- end -->")
}
