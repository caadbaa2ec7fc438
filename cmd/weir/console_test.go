package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// What is logged, and how, may change, also for who has a logger already.
func TestLogging(t *testing.T) {
	var out bytes.Buffer
	var how logging
	how.set(slog.LevelInfo, false)
	log := newConsole(&out, &out).logger(&how).With("list", "feed")
	log.Debug("no")
	log.Info("one")
	how.set(slog.LevelDebug, true)
	log.Debug("two")
	how.set(slog.LevelError, false)
	log.Warn("no")
	log.Error("three")
	text := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"level=INFO msg=one list=feed", `"level":"DEBUG","msg":"two","list":"feed"}`, "level=ERROR msg=three list=feed"} {
		if i >= len(text) || !strings.HasSuffix(text[i], want) {
			t.Fatalf("logged %q, want %q in line %d", text, want, i)
		}
	}
	if len(text) != 3 {
		t.Errorf("logged %q", text)
	}
}
