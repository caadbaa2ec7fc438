package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// notes writes the section of a version of the changelog.
func notes(version, changelog, out string) error {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return err
	}
	section, err := cut(string(text), version)
	if err != nil {
		return fmt.Errorf("%s: %w", changelog, err)
	}
	return os.WriteFile(out, []byte(section), 0o644)
}

// candidate matches what follows a version that is not final.
var candidate = regexp.MustCompile(`-.*$`)

// cut returns the section of a version, whose heading may end with a date. Before a release,
// its candidates have its section.
func cut(changelog, version string) (string, error) {
	for _, name := range []string{version, candidate.ReplaceAllString(version, "")} {
		heading := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(name) + `( - \d{4}-\d\d-\d\d)?$`)
		at := heading.FindStringIndex(changelog)
		if at == nil {
			continue
		}
		body := changelog[at[1]:]
		if next := strings.Index(body, "\n## "); next >= 0 {
			body = body[:next]
		}
		if body = strings.TrimSpace(body); body == "" {
			return "", fmt.Errorf("the section of %s is empty", name)
		}
		return "# weir " + version + "\n\n" + body + "\n", nil
	}
	return "", fmt.Errorf("no section %q", "## "+version)
}
