package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/tests/must"
)

// configurations are those that a page shows: blocks, indented or fenced, or what
// the shell writes into weir.yaml, that begin with a key of one.
func configurations(page string) []string {
	const begins = `(?:#[^\n]*\n)?(?:interfaces|failsafe|lists|trackers|loop|multicast|digest|learning|metrics|console|api|notify|export):`
	page = "\n" + page
	var found []string
	for _, block := range regexp.MustCompile(`(?m)(?:^\n|^    .*\n)+`).FindAllString(page, -1) {
		block = regexp.MustCompile(`(?m)^    `).ReplaceAllString(strings.Trim(block, "\n"), "") + "\n"
		if _, here, written := strings.Cut(block, "weir.yaml <<END\n"); written {
			block, _, _ = strings.Cut(here, "END\n")
		}
		if regexp.MustCompile(`^` + begins).MatchString(block) {
			found = append(found, block)
		}
	}
	for _, fenced := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(page, -1) {
		if regexp.MustCompile(`^` + begins).MatchString(fenced[1]) {
			found = append(found, fenced[1]+"\n")
		}
	}
	return found
}

// Configurations on the pages are valid.
func TestDocumentedConfigurations(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := filepath.Glob("../../docs/hosts/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, hosts...)
	// What they take to be there.
	here := strings.NewReplacer("$PWD", t.TempDir(), "/usr/local/lib/weir/abuseipdb", "/bin/true", "/etc/weir/loop.key", file(t, "loop.key", strings.Repeat("0f", 16)+"\n"))
	checked := 0
	for _, page := range append(pages, "../../README.md", "../../vagrant/README.md") {
		text := must.Read(t, page)
		for _, written := range regexp.MustCompile("(?s)<<END\n.*?\n +END\n").FindAllString(string(text), -1) {
			if strings.Contains(written, "`") {
				t.Errorf("%s: the shell would run a command in\n%s", page, written)
			}
		}
		for _, c := range configurations(string(text)) {
			whole := here.Replace(c)
			if !regexp.MustCompile(`(?m)^interfaces:`).MatchString(c) {
				whole = "interfaces: [eth0]\n" + whole
			}
			path := file(t, "weir.yaml", whole)
			code, out, log := weir(t, "", "check", path)
			absent := strings.Count(log, ": no such file or directory\n") // files of lists are not here
			if strings.HasSuffix(log, ": fleet.enroll: open /etc/weir/fleet.json: no such file or directory\n") {
				code = exitOK // a node's, which a hub makes
			}
			if code != exitOK && (absent == 0 || strings.Count(log, "error: ") != absent) {
				t.Errorf("%s: exit code %d\n%s\n%s%s", page, code, c, out, log)
			}
			checked++
		}
	}
	if want := 5; checked < want { // start, loops, multicast, notifications, traceback
		t.Errorf("found %d configurations, want %d at least", checked, want)
	}
}
