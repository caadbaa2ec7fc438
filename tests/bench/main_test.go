package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestRefuses(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"lookups", exitUsage, `unknown benchmark "lookups"`},
		{"--rounds 0", exitUsage, "--rounds"},
		{"--entries 1000,0", exitUsage, "--entries"},
		{"wire --zipf 0.5", exitUsage, "--zipf 0.5"},
		{"--fast", exitUsage, "--fast"},
		{"--against none.json", exitFailure, "none.json"},
		{"--feed none.txt", exitFailure, "none.txt"},
	} {
		var out, log bytes.Buffer
		code := execute(context.Background(), strings.Fields(c.line), &out, &log)
		if code != c.code || out.Len() > 0 || !strings.HasPrefix(log.String(), "bench: ") || !strings.Contains(log.String(), c.want) {
			t.Errorf("bench %s: exit code %d, want %d and %q\n%s%s", c.line, code, c.code, c.want, out.String(), log.String())
		}
	}
}
