package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/serve"
)

// journal returns a stream that claims to be the journal's, and a function that
// returns what was written to it.
func journal(t *testing.T) (*os.File, func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &s); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", s.Dev, s.Ino))
	return w, func() string {
		w.Close()
		text, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// The journal gets priorities, and no second timestamp.
func TestLogToJournal(t *testing.T) {
	stream, written := journal(t)
	var how logging
	how.Configure(config.Log{Level: config.LogLevel(slog.LevelDebug), Format: config.LogText})
	log := newConsole(io.Discard, terminal.NewWriter(stream)).newLogger(&how).With("list", "feed")
	log.Debug("one")
	log.Info("two", "x", "a\nb")
	log.Warn("three")
	log.WithGroup("g").Error("four", "time", "kept")
	how.Configure(config.Log{Level: config.LogLevel(slog.LevelWarn), Format: config.LogJSON})
	log.Info("no")
	log.Warn("five")
	lines := strings.Split(strings.TrimSpace(written()), "\n")
	want := []string{
		`<7>msg=one list=feed`, `<6>msg=two list=feed x="a\nb"`, `<4>msg=three list=feed`, `<3>msg=four list=feed g.time=kept`,
	}
	if len(lines) != 5 || strings.Join(lines[:4], "|") != strings.Join(want, "|") || !strings.HasPrefix(lines[4], `<4>{"time":"`) {
		t.Errorf("logged %q", lines)
	}
}

// The error that a command ends with is one in the journal, in all its lines.
func TestErrorToJournal(t *testing.T) {
	stream, written := journal(t)
	code := execute(t.Context(), []string{"check", t.TempDir() + "/none.yaml", "and more"}, strings.NewReader(""), io.Discard, stream)
	text := written()
	if code != exitUsage || strings.Count(text, "\n") != strings.Count(text, "<3>") || !strings.HasPrefix(text, "<3>weir: ") {
		t.Errorf("exit code %d, %q", code, text)
	}
}

// A terminal that systemd has nothing to do with gets no priorities, even if the
// environment has been inherited from a service.
func TestInheritedJournal(t *testing.T) {
	_, written := journal(t)
	defer written()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, stream := range []io.Writer{w, terminal.NewWriter(w), io.Discard} {
		if serve.ToJournal(terminal.Raw(stream)) {
			t.Errorf("%T is taken for the journal", stream)
		}
	}
}
