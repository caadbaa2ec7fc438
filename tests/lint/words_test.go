package lint

import (
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/tests/long"
)

// phrases that a reader has to translate, and what to write instead.
var phrases = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(told|tells?|telling)\b`), "report, return, log, show, distinguish"},
	{regexp.MustCompile(`(?i)\bgiv(es|ing) (what|the|a|an|all|each|it|its|how|whether)\b`), "return"},
	{regexp.MustCompile(`(?i)\bin the place of\b`), "instead of"},
	{regexp.MustCompile(`(?i)\bsuch a one\b`), "one, it"},
	{regexp.MustCompile(`(?i)\bof so many\b`), "of n, of the given number of"},
	{regexp.MustCompile(`(?i)\bwhat is of\b`), "packets of, entries of"},
	{regexp.MustCompile(`(?i)\bwhence\b`), "from which, hence"},
	{regexp.MustCompile(`(?i)\b(nobody|whoever|whomever)\b`), "no one, the process that, or the passive"},
	{regexp.MustCompile(`(?i)\bcomes? about\b`), "happen"},
	{regexp.MustCompile(`(?i)\b(in|into) force\b`), "active"},
	{regexp.MustCompile(`(?i)\blaps(e|es|ed|ing)\b`), "expire"},
	{regexp.MustCompile(`(?i)\bby command\b`), "manual, manually"},
	{regexp.MustCompile(`(?i)\bbe it\b`), "even if, whether"},
	{regexp.MustCompile(`(?i)\bfor want of\b`), "without, for lack of"},
	{regexp.MustCompile(`(?i)\bof late\b`), "recent, recently"},
	{regexp.MustCompile(`(?i)\bnot to be had\b`), "unavailable"},
	{regexp.MustCompile(`(?i)\bso many as\b`), "as many as"},
	{regexp.MustCompile(`(?i)\bthis weir\b`), "this daemon"},
	{regexp.MustCompile(`(?i)\banother weir\b|\bof weirs\b`), "another daemon, of daemons"},
	{regexp.MustCompile(`(?i)\bheavy flows?\b`), "heavy hitter"},
	{regexp.MustCompile(`(?i)\b(is|returns|says|knows) who asks\b`), "the caller, the client"},
	{regexp.MustCompile(`(?i)\bby which (their|they|a|an|the) \w+ (is|are|rises?|falls?)\b`), "with which, the step of, or two sentences"},
	{regexp.MustCompile(`// \w+ (is|are) (that|those) of `), "the noun that is meant, or an active verb"},
	// Shapes of sentences whose subject a reader must find out: "header is that of the section",
	// "the names of what is left".
	{regexp.MustCompile(`(?i)\b(that|those) of (those|that|what|who)\b|\bof what\b|\b(is|are) (what|that of|those of)\b`), "the subject's noun, with an active verb"},
	{regexp.MustCompile(`// \w+ (is|are) who `), "a noun: the process, the source"},
}

// pending are the directories whose words are yet to be revised, each with the
// reason. It may only shrink.
var pending = []string{
	"tests/papers", // "gives the rate" and the like are the language of the papers
}

// textual reports whether the words of a file are checked: not those of generated
// files, licences, the changelog, which quotes former names, and this list.
func textual(name string) bool {
	switch {
	case strings.Contains(name, "_bpfe"), strings.Contains(name, "LICENSE"), strings.HasPrefix(name, "docs/papers/"),
		strings.Contains(name, "/testdata/"), name == "CHANGELOG.md", name == "tests/lint/words_test.go":
		return false
	}
	return slices.Contains([]string{".go", ".md", ".c", ".h", ".yaml", ".yml", ".sh", ".service", ""}, path.Ext(name))
}

// lineBreak joins the lines of a comment or a paragraph, so that a phrase is
// found across them.
var lineBreak = regexp.MustCompile(`\n[ \t]*(//|\*|#)?[ \t]*`)

// TestWords keeps phrases that must be translated out of code and documentation.
func TestWords(t *testing.T) {
	long.Seconds(t)
	cmd := exec.Command("git", "ls-files")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git repository: %v", err)
	}
	dirty := make(map[string]bool)
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSuffix(name, "\n")
		if !textual(name) {
			continue
		}
		text := lineBreak.ReplaceAllString(read(t, name), " ")
		for _, p := range phrases {
			at := p.pattern.FindStringIndex(text)
			if at == nil {
				continue
			}
			dirty[path.Dir(name)] = true
			if !slices.Contains(pending, path.Dir(name)) {
				around := text[max(0, at[0]-40):min(len(text), at[1]+40)]
				t.Errorf("%s: %q in %q: write %s", name, text[at[0]:at[1]], fmt.Sprintf("…%s…", around), p.instead)
			}
		}
	}
	for _, dir := range pending {
		if !dirty[dir] {
			t.Logf("%s is clean: remove it from pending", dir)
		}
	}
}
