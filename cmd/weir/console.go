package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"weir/control/config"
	"weir/control/serve"
)

// console is where a command that goes on writes to: a log, and, on a
// terminal, one line below it that is written over and over.
type console struct {
	mu      sync.Mutex
	log     io.Writer
	journal bool     // the log is systemd's
	live    *os.File // nil where the output is no terminal
	line    string   // that stands there
}

// newConsole takes a terminal for the live line only if the output is one.
func newConsole(stdout, stderr io.Writer) *console {
	c := &console{log: stderr, journal: serve.ToJournal(raw(stderr))}
	c.live = terminalOf(stdout)
	return c
}

// isTerminal reports whether a command's input or output is a terminal.
func isTerminal(stream any) bool { return terminalOf(stream) != nil }

// terminalOf returns the terminal that a command's input or output is, nil if it is
// none.
func terminalOf(stream any) *os.File {
	if p, ok := stream.(*printable); ok {
		stream = p.to
	}
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

func (c *console) terminal() bool { return c.live != nil }

// logger logs to the console, or as the journal expects it.
func (c *console) logger(l *logging) *slog.Logger {
	text, json := slog.HandlerOptions{Level: &l.least}, slog.HandlerOptions{Level: &l.least}
	if c.journal {
		text.ReplaceAttr = serve.WithoutTime
	}
	newHandler := func(w io.Writer) slog.Handler {
		return &handler{slog.NewTextHandler(w, &text), slog.NewJSONHandler(w, &json), &l.asJSON}
	}
	if c.journal {
		return slog.New(serve.NewJournalHandler(c, newHandler))
	}
	return slog.New(newHandler(c))
}

// logging is what is logged, and how: it may change at any time.
type logging struct {
	least     slog.LevelVar
	asJSON    atomic.Bool // otherwise as text
	forceJSON bool        // whatever the configuration says
}

// Configure sets what is logged, and how.
func (l *logging) Configure(c config.Log) {
	l.least.Set(slog.Level(c.Level))
	l.asJSON.Store(l.forceJSON || c.Format == config.LogJSON)
}

// handler logs as text or as JSON, as is wanted at the moment.
type handler struct {
	slog.Handler // as text
	json         slog.Handler
	asJSON       *atomic.Bool
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if h.asJSON.Load() {
		return h.json.Handle(ctx, r)
	}
	return h.Handler.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.json.WithAttrs(attrs), h.asJSON}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.json.WithGroup(name), h.asJSON}
}

const eraseLine = "\r\x1b[K"

// Write writes to the log, above the live line.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line == "" {
		return c.log.Write(b)
	}
	fmt.Fprint(c.live, eraseLine)
	n, err := c.log.Write(b)
	fmt.Fprint(c.live, c.line)
	return n, err
}

// show replaces the live line with a text; an empty one removes it.
// Without a terminal it does nothing.
func (c *console) show(text string) {
	if c.live == nil {
		return
	}
	text = escape(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if width, _, err := term.GetSize(int(c.live.Fd())); err == nil && width > 0 {
		if r := []rune(text); len(r) >= width {
			text = string(r[:width-1])
		}
	}
	c.line = text
	fmt.Fprint(c.live, eraseLine, text)
}

// reading shows how far a file has been read; total is 0 where its size is
// unknown.
func (c *console) reading(file string, done, total int64) {
	text := fmt.Sprintf("reading %s: %s", file, humanize.Bytes(uint64(done)))
	if total > 0 {
		text += fmt.Sprintf(" (%d %%)", 100*done/total)
	}
	c.show(text)
}
