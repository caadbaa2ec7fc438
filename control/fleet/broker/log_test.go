package broker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
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
