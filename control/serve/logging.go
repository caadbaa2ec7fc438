package serve

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
)

// Logging holds the level and format of the log, which may change at any time.
type Logging struct {
	least  slog.LevelVar
	asJSON atomic.Bool // otherwise as text
}

// Set sets what is logged, and how.
func (l *Logging) Set(least slog.Level, asJSON bool) {
	l.least.Set(least)
	l.asJSON.Store(asJSON)
}

// New returns what logs to a stream, or as the journal expects it.
func (l *Logging) New(to io.Writer, journal bool) *slog.Logger {
	text, json := slog.HandlerOptions{Level: &l.least}, slog.HandlerOptions{Level: &l.least}
	if journal {
		text.ReplaceAttr = withoutTime
	}
	newHandler := func(w io.Writer) slog.Handler {
		return &handler{slog.NewTextHandler(w, &text), slog.NewJSONHandler(w, &json), &l.asJSON}
	}
	if journal {
		return slog.New(newJournalHandler(to, newHandler))
	}
	return slog.New(newHandler(to))
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
