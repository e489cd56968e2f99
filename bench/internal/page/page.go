// Package page writes what was measured into the pages of docs/.
package page

import (
	"fmt"
	"os"
	"strings"
)

// Fill writes each part between its two marks, <!-- name --> and <!-- end -->, and leaves the rest
// of the page as it is. A part whose first mark is missing is an error, and nothing is written
// then.
func Fill(file string, parts map[string]string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page := string(old)
	for name, part := range parts {
		begin, end := "<!-- "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(page, begin)
		if !ok {
			return fmt.Errorf("%s has no mark %q", file, begin)
		}
		_, after, ok := strings.Cut(rest, end)
		if !ok {
			return fmt.Errorf("%s has no mark %q after %q", file, end, begin)
		}
		page = before + begin + "\n" + strings.TrimSpace(part) + "\n\n" + end + after
	}
	return os.WriteFile(file, []byte(page), 0o644)
}
