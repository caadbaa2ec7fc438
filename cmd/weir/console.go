package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
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

	failed *atomic.Uint64 // lines that could not be written
	late   uint64         // of them, those since the last one that could
	logger *slog.Logger   // says so afterwards; nil: none does
}

// newConsole takes a terminal for the live line only if the output is one.
func newConsole(stdout, stderr io.Writer) *console {
	c := &console{log: stderr, failed: new(atomic.Uint64), journal: serve.ToJournal(terminal.Raw(stderr))}
	c.live = terminalOf(stdout)
	return c
}

// isTerminal reports whether a command's input or output is a terminal.
func isTerminal(stream any) bool { return terminalOf(stream) != nil }

// terminalOf returns the terminal that a command's input or output is, nil if it is
// none.
func terminalOf(stream any) *os.File {
	switch s := stream.(type) {
	case *terminal.Writer:
		stream = terminal.Raw(s)
	case *interrupt.Reader:
		stream = s.From
	}
	if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

func (c *console) terminal() bool { return c.live != nil }

// newLogger returns what logs to the console, or as the journal expects it.
func (c *console) newLogger(l *logging) *slog.Logger {
	c.failed = &l.failed
	c.logger = l.New(c, c.journal)
	return c.logger
}

// logging has the log's level and format, which may change at any time.
type logging struct {
	serve.Logging
	forceJSON bool // whatever the configuration says

	failed atomic.Uint64 // lines that could not be written
}

// Failed returns how many lines could not be written, as to a pipe without a reader.
func (l *logging) Failed() uint64 { return l.failed.Load() }

// Configure sets what is logged, and how.
func (l *logging) Configure(c config.Log) {
	l.Set(slog.Level(c.Level), l.forceJSON || c.Format == config.LogJSON)
}

const eraseLine = "\r\x1b[K"

// Write writes to the log, above the live line.
func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line != "" {
		fmt.Fprint(c.live, eraseLine)
		defer func() { fmt.Fprint(c.live, c.line) }()
	}
	n, err := c.log.Write(b)
	switch {
	case err != nil:
		lines := uint64(bytes.Count(b, []byte("\n")))
		c.failed.Add(lines)
		c.late += lines
	case c.late > 0 && c.logger != nil:
		late := c.late
		c.late = 0
		go c.logger.Warn("lines before this one could not be written to the log", "lines", late) // not here: the handler is locked
	}
	return n, err
}

// show replaces the live line with a text; an empty one removes it.
// Without a terminal it does nothing.
func (c *console) show(text string) {
	if c.live == nil {
		return
	}
	text = terminal.Escape(text)
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
