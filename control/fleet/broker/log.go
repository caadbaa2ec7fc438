package broker

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// logger logs what the server does, but for what a connection makes it say: that is bounded,
// and the guard counts what a node may not do.
type logger struct {
	log    *slog.Logger
	guard  *guard
	names  func(key string) string // of nodes and sites, by their public keys; "": unknown
	failed chan<- string           // has room for why the server cannot run

	mu    sync.Mutex
	lines map[string]*line // by what they say, without numbers
}

// line is a line of the log of which there may be many.
type line struct {
	logged time.Time
	more   uint64 // since then
}

// maxLines bounds the kinds of lines that are distinguished.
const maxLines = 256

var (
	ofConnection = regexp.MustCompile(` - (cid|lid):([0-9]+) - `)
	violations   = regexp.MustCompile(` - ((?:Publish|Subscription) Violation.*)$`)
	keys         = regexp.MustCompile(`U[A-Z2-7]{55}`)
	details      = regexp.MustCompile(`"[^"]*"|[0-9]+|U[A-Z2-7]{55}`)
)

func (l *logger) Noticef(format string, v ...any) {
	l.log.Debug("broker: " + fmt.Sprintf(format, v...))
}
func (l *logger) Warnf(format string, v ...any)  { l.say(slog.LevelWarn, fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any) { l.say(slog.LevelError, fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}

// Fatalf is called by a server that cannot run, as without a port to listen on. It does
// not end the process.
func (l *logger) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	select {
	case l.failed <- fmt.Sprintf(format, v...):
	default: // it has started
	}
}

// say logs a line. Of those that connections cause, one of a kind is logged each minute,
// with the number of those in between.
func (l *logger) say(level slog.Level, text string) {
	found := ofConnection.FindStringSubmatchIndex(text)
	if found == nil {
		l.log.Log(context.Background(), level, "broker: "+text)
		return
	}
	if text[found[2]:found[3]] == "cid" {
		if what := violations.FindStringSubmatch(text); what != nil {
			if id, err := strconv.ParseUint(text[found[4]:found[5]], 10, 64); err == nil {
				l.guard.violation(id, what[1])
				return
			}
		}
	}
	kind := details.ReplaceAllString(text[found[1]:], "#")
	now := time.Now()
	l.mu.Lock()
	if l.lines == nil {
		l.lines = make(map[string]*line)
	}
	if l.lines[kind] == nil && len(l.lines) >= maxLines {
		kind = "" // the others together
	}
	last := l.lines[kind]
	if last == nil {
		last = &line{}
		l.lines[kind] = last
	}
	if now.Sub(last.logged) < logInterval {
		last.more++
		l.mu.Unlock()
		return
	}
	more := last.more
	*last = line{logged: now}
	l.mu.Unlock()
	text = keys.ReplaceAllStringFunc(text, func(key string) string {
		if l.names != nil {
			if name := l.names(key); name != "" {
				return name
			}
		}
		return key
	})
	if more > 0 {
		l.log.Log(context.Background(), level, "broker: "+text, "more", more)
		return
	}
	l.log.Log(context.Background(), level, "broker: "+text)
}
