package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	released  = regexp.MustCompile(`(?m)^## \[(\d[^\]]*)\](.*)$`)
	dated     = regexp.MustCompile(`^ - \d{4}-\d{2}-\d{2}$`)
	unwritten = regexp.MustCompile(`(?ms)^## \[Unreleased\]$(.*?)(^## |\z)`)
)

func readChangelog(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	return string(text), err
}

// checkChangelog sees that the newest section of the changelog is that of the version, with a date
// and something to read.
func checkChangelog(text, version string) error {
	if m := unwritten.FindStringSubmatch(text); m != nil && strings.TrimSpace(m[1]) != "" {
		return fmt.Errorf("CHANGELOG.md has entries under Unreleased: move them to a section of %s",
			version)
	}
	at := released.FindStringSubmatchIndex(text)
	if at == nil || "v"+text[at[2]:at[3]] != version {
		return fmt.Errorf("CHANGELOG.md: the newest section is not that of %s: it begins with ## [%s] - <date>",
			version, version[1:])
	}
	if !dated.MatchString(text[at[4]:at[5]]) {
		return fmt.Errorf("CHANGELOG.md: the section of %s needs a date: ## [%s] - 2006-01-02",
			version, version[1:])
	}
	body, _, _ := strings.Cut(text[at[1]:], "\n## ")
	if strings.TrimSpace(body) == "" {
		return fmt.Errorf("CHANGELOG.md: the section of %s is empty", version)
	}
	return nil
}

// since is what the changelog says of the time after a version: all above its section.
func since(text, version string) string {
	above, _, _ := strings.Cut(text, "\n## ["+strings.TrimPrefix(version, "v")+"]")
	return above
}
