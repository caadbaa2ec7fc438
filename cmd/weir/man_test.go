package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestShare(t *testing.T) {
	dir := t.TempDir()
	if code, out, log := weir(t, "", "share", dir); code != exitOK || out+log != "" {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for name, want := range map[string]string{
		"bash-completion/completions/weir":    "complete -o default -F __start_weir weir",
		"zsh/site-functions/_weir":            "#compdef weir\n",
		"fish/vendor_completions.d/weir.fish": "complete -c weir ",
		"man/man8/weir.8":                     ".SH FILES\n",
		"man/man8/weir-run.8":                 "\\fB\\-\\-block\\fR \\fIfile\\fR\n",
		"man/man8/weir-block.8":               ".SH EXIT STATUS\n0 on success,",
	} {
		if !strings.Contains(read(name), want) {
			t.Errorf("%s: no %q", name, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "man/man8/weir-share.8")); err == nil {
		t.Error("a hidden command has a page")
	}
}

// A line that begins with a dot is a request; these are the ones in use.
var requests = regexp.MustCompile(`^\.(TH|SH|PP|TP|I|nf|fi)( |$)`)

func TestManPages(t *testing.T) {
	for _, c := range documented(newRoot()) {
		page := manPage(c)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if !strings.Contains(page, "\n\\fB"+roff(name)+"\\fR") {
				t.Errorf("%s: no %s", c.CommandPath(), name)
			}
		})
		for line := range strings.Lines(page) {
			line = strings.TrimSuffix(line, "\n")
			if line == "" || line[0] == '\'' || line[0] == '.' && !requests.MatchString(line) {
				t.Errorf("%s: line %q", c.CommandPath(), line)
			}
		}
		if begun, ended := strings.Count(page, "\n.nf\n"), strings.Count(page, "\n.fi\n"); begun != ended {
			t.Errorf("%s: %d times .nf, %d times .fi", c.CommandPath(), begun, ended)
		}
	}
}

func TestManText(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a paragraph", "one\ntwo", "one\ntwo\n"},
		{"two paragraphs", "one\n\ntwo\n", "one\n.PP\ntwo\n"},
		{"indented lines", "one:\n  a\n  b\ntwo", "one:\n.nf\n  a\n  b\n.fi\ntwo\n"},
		{"columns", "one\n\na  1\nb  2\n\ntwo", "one\n.PP\n.nf\na  1\nb  2\n.fi\n.PP\ntwo\n"},
		{"indented to the end", "  a", ".nf\n  a\n.fi\n"},
		{"a request", ".data[].ip", "\\&.data[].ip\n"},
		{"what is printed as it is", `weir -x 'tcp \n' ~ ^`, `weir \-x \(aqtcp \en\(aq \(ti \(ha` + "\n"},
	} {
		if got := manText(c.text); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
