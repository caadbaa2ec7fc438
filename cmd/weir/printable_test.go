package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"weir/control/api"
)

// What is printed gives no orders to the terminal, whatever files are called: here
// those to clear it, and to turn the text around.
func TestNamesAreNotOrders(t *testing.T) {
	list := filepath.Join(t.TempDir(), "a\x1b[2Jb\u009bc\u202ed\r\x9be.txt")
	for _, c := range []struct {
		code int
		args []string
	}{
		{exitFailure, []string{"check", list}},
		{exitFailure, []string{"diff", list, list}},
		{exitFailure, []string{"replay", "--engine", "go", "--block", list, list}},
		{exitUsage, []string{"explain", "--direction", "\x1b[2J", "192.0.2.1"}},
	} {
		code, out, log := weir(t, "", c.args...)
		text := out + log
		if code != c.code || strings.ContainsAny(text, "\x1b\u009b\u202e\r") || !utf8.ValidString(text) {
			t.Errorf("weir %q: exit code %d\n%q", c.args, code, text)
		}
		if !strings.Contains(text, `\u001b[2J`) && !strings.Contains(text, `\x1b[2J`) {
			t.Errorf("weir %q does not show the name: %q", c.args, text)
		}
	}
}

// fullDisk takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Output that cannot be written is an error, unless the command ends with another.
func TestOutputThatIsLost(t *testing.T) {
	feed := file(t, "feed.txt", "192.0.2.1\n")
	conf := file(t, "weir.yaml", "interfaces: [lo]\nstate_dir: \"\"\nlists: {a: {sources: [{file: "+feed+"}]}}\n")
	socket := serveDaemon(t, &fakeDaemon{lists: []api.List{{Name: "drop"}}})
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"explain", "--block", feed, "192.0.2.1"}, exitFailure},
		{[]string{"explain", "--block", feed, "192.0.2.1", "--exit-code"}, exitDropped},
		{[]string{"plan", "--entries", "10"}, exitFailure},
		{[]string{"check", conf}, exitFailure},
		{[]string{"lists", "--socket", socket}, exitFailure},
		{[]string{"flush", "manual", "--socket", socket}, exitFailure},
		{[]string{"help"}, exitFailure},
	} {
		var log bytes.Buffer
		code := execute(t.Context(), c.args, strings.NewReader(""), fullDisk{}, &log)
		if code != c.code || strings.Contains(log.String(), "weir: no space left on device\n") != (c.code == exitFailure) {
			t.Errorf("weir %q: exit code %d\n%s", c.args, code, &log)
		}
	}
}
