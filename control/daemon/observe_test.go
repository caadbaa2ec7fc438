package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"weir/control/observe/heavy"
)

// The end of a heavy hitter needs no attention; its begin and a penalty that
// could not be set do.
func TestLevelsOfHeavyHitters(t *testing.T) {
	var out bytes.Buffer
	o := observers{}
	o.logHeavy([]heavy.Event{{}, {Released: true}, {Unmet: true}}, slog.New(slog.NewTextHandler(&out, nil)))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("logged %q", lines)
	}
	for i, want := range []string{"level=WARN", "level=INFO", "level=ERROR"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("logged %q, want %s", lines[i], want)
		}
	}
}
