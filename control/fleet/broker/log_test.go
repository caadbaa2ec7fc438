package broker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"weir/control/fleet/wire"
)

// What connections cause is in the log once a minute, with a name instead of a key; what the
// server says of itself always.
func TestLogger(t *testing.T) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	key, err := kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	l := &logger{log: log, guard: newGuard(log), names: func(k string) string { return map[string]string{key: "site paris"}[k] }}
	for i := range 1000 {
		l.Errorf("192.0.2.1:%d - lid:%d - authentication error - Nkey %q", 1000+i, i, key)
		l.Errorf("192.0.2.2:%d - cid:%d - TLS handshake error: remote error: %d", 1000+i, i, i)
		l.Errorf("192.0.2.3:%d - cid:%d - \"v1:go:n8\" - Publish Violation - Subject %q", 1000+i, i, fmt.Sprint("weir.v1.", i))
	}
	for range 2 {
		l.Warnf("the disk is full")
	}
	if n := strings.Count(text.String(), "\n"); n != 4 {
		t.Errorf("%d lines:\n%s", n, &text)
	}
	for _, want := range []string{"site paris", "TLS handshake error", "the disk is full"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), key) {
		t.Errorf("the log has a key:\n%s", &text)
	}
	if n := l.guard.violations; n != 1000 {
		t.Errorf("%d violations, want 1000", n)
	}
	l.mu.Lock()
	for _, line := range l.lines {
		line.logged = line.logged.Add(-2 * logInterval)
	}
	l.mu.Unlock()
	text.Reset()
	l.Errorf("192.0.2.1:1 - lid:1 - authentication error - Nkey %q", key)
	if !strings.Contains(text.String(), "more=999") {
		t.Errorf("a minute later: %s", &text)
	}
	// Kinds without end.
	for i := range 10 * maxLines {
		l.Errorf("192.0.2.1:1 - lid:1 - %s", strings.Repeat("x", i))
	}
	if len(l.lines) > maxLines+1 {
		t.Errorf("%d kinds of lines are remembered", len(l.lines))
	}
}

// Who asks on the subject of former versions, and has the answer sent elsewhere, is counted.
func TestTrace(t *testing.T) {
	g := newGuard(discard)
	l := &logger{log: discard, guard: g}
	g.connected("n8", "", fingerprint{}, connection{id: 7})
	trace := func(id int, operation, text string) uint64 {
		before := g.violations
		l.Tracef(fmt.Sprintf("192.0.2.1:1 - cid:%d - \"v1:go:n8\" - <<- %%s", id), []any{operation, text})
		return g.violations - before
	}
	for _, c := range []struct {
		text string
		want uint64
	}{
		{wire.FetchSubject + " _INBOX.n8.a.b 55", 0},
		{wire.FetchSubject + " _INBOX.n9.a.b 55", 1},
		{wire.FetchSubject + " _INBOX.n8 55", 1},
		{wire.FetchSubject + " " + wire.DownPrefix + wire.CatalogSubject() + " 55", 1},
		{wire.FetchSubject + " 55", 0},                       // nothing is answered
		{wire.NodeFetchSubject("n8") + " _INBOX.n9.a 55", 0}, // the fetcher says so
		{"foo bar 55", 0}, {"", 0},
	} {
		for _, operation := range []string{"PUB", "HPUB"} {
			if got := trace(7, operation, c.text); got != c.want {
				t.Errorf("%s %s: %d violations, want %d", operation, c.text, got, c.want)
			}
		}
	}
	if trace(8, "PUB", wire.FetchSubject+" foo 55") != 0 || trace(7, "SUB", wire.FetchSubject+" foo 55") != 0 {
		t.Error("another's connection, or another operation, is counted")
	}
	l.Tracef("no arguments")
	l.Tracef("%s", "text")
}
