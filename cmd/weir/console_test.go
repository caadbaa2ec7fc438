package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"weir/control/config"
)

// What is logged, and how, may change, also for who has a logger already.
func TestLogging(t *testing.T) {
	var out bytes.Buffer
	var how logging
	how.Configure(config.Log{Level: config.LogLevel(slog.LevelInfo), Format: config.LogText})
	log := newConsole(&out, &out).newLogger(&how).With("list", "feed")
	log.Debug("no")
	log.Info("one")
	how.Configure(config.Log{Level: config.LogLevel(slog.LevelDebug), Format: config.LogJSON})
	log.Debug("two")
	how.Configure(config.Log{Level: config.LogLevel(slog.LevelError), Format: config.LogText})
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
