package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/tests/must"
)

func TestShare(t *testing.T) {
	dir := t.TempDir()
	if code, out, log := weir(t, "", "share", dir); code != exitOK || out+log != "" {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	read := func(name string) string {
		b := must.Read(t, filepath.Join(dir, name))
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
	if _, err := os.Stat(filepath.Join(dir, "man/man8/weir-hub.8")); err == nil {
		t.Error("a page of weir is one of weir-hub, too")
	}
}

// A line that begins with a dot is a request; these are the ones in use.
var requests = regexp.MustCompile(`^\.(TH|SH|PP|TP|I|nf|fi)( |$)`)

func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if code, out, log := weir(t, "", "share", dir); code != exitOK {
		t.Fatalf("exit code %d\n%s%s", code, out, log)
	}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if c.Hidden || c.CommandPath() == "weir hub" { // which has its pages from weir-hub
			return
		}
		b, err := os.ReadFile(filepath.Join(dir, "man/man8", strings.ReplaceAll(c.CommandPath(), " ", "-")+".8"))
		if err != nil {
			t.Error(err)
			return
		}
		page := string(b)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if !strings.Contains(page, "\n\\fB"+strings.ReplaceAll(name, "-", `\-`)+"\\fR") {
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
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}
