package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ToJournal reports whether a stream is connected to systemd's journal, which says
// so in $JOURNAL_STREAM: systemd.exec(5).
func ToJournal(stream io.Writer) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	var s unix.Stat_t
	return unix.Fstat(int(f.Fd()), &s) == nil && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// Prefixes of lines by which the journal knows their priority: sd-daemon(3).
const (
	journalError   = "<3>"
	journalWarning = "<4>"
	journalInfo    = "<6>"
	journalDebug   = "<7>"
)

// journalPrefix returns the prefix of a level.
func journalPrefix(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return journalError
	case l >= slog.LevelWarn:
		return journalWarning
	case l >= slog.LevelInfo:
		return journalInfo
	}
	return journalDebug
}

// journalHandler logs each record with the prefix of its level.
type journalHandler struct {
	by map[string]slog.Handler // by prefix
}

// newJournalHandler returns a handler for the journal that writes as the handlers of
// newHandler do, which write a record at once.
func newJournalHandler(to io.Writer, newHandler func(io.Writer) slog.Handler) slog.Handler {
	h := &journalHandler{by: map[string]slog.Handler{}}
	for _, prefix := range []string{journalError, journalWarning, journalInfo, journalDebug} {
		h.by[prefix] = newHandler(prefixed{to, prefix})
	}
	return h
}

func (h *journalHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.by[journalPrefix(l)].Enabled(ctx, l)
}

func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.by[journalPrefix(r.Level)].Handle(ctx, r)
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.derive(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	return h.derive(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (h *journalHandler) derive(from func(slog.Handler) slog.Handler) slog.Handler {
	d := &journalHandler{by: map[string]slog.Handler{}}
	for prefix, handler := range h.by {
		d.by[prefix] = from(handler)
	}
	return d
}

// JournalError returns a writer of errors to the journal.
func JournalError(to io.Writer) io.Writer { return prefixed{to, journalError} }

// prefixed puts a prefix before each line of a text.
type prefixed struct {
	to     io.Writer
	prefix string
}

func (p prefixed) Write(b []byte) (int, error) {
	text := p.prefix + strings.ReplaceAll(strings.TrimSuffix(string(b), "\n"), "\n", "\n"+p.prefix) + "\n"
	if _, err := io.WriteString(p.to, text); err != nil {
		return 0, err
	}
	return len(b), nil
}

// withoutTime leaves out a record's time, which the journal has, and its level, which
// the prefix says.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
		return slog.Attr{}
	}
	return a
}
