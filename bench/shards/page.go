package main

import (
	"fmt"
	"os"
	"strings"
)

// fill writes each table between its two marks, <!-- name --> and <!-- end -->, and leaves the rest of the page as it is.
func fill(file string, tables map[string]string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page := string(old)
	for name, table := range tables {
		begin, end := "<!-- "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(page, begin)
		if !ok {
			return fmt.Errorf("%s has no mark %q", file, begin)
		}
		_, after, ok := strings.Cut(rest, end)
		if !ok {
			return fmt.Errorf("%s has no mark %q after %q", file, end, begin)
		}
		page = before + begin + "\n" + strings.TrimSpace(table) + "\n\n" + end + after
	}
	return os.WriteFile(file, []byte(page), 0o644)
}
