package daemon

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/stage/tracker"
)

// The end of a heavy hitter needs no attention; its begin and a penalty that
// could not be set do.
func TestLevelsOfHeavyHitters(t *testing.T) {
	var out bytes.Buffer
	o := observers{}
	o.logHeavy([]tracker.Event{{}, {Released: true}, {Unmet: true}}, time.Now(), slog.New(slog.NewTextHandler(&out, nil)))
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

// A flood of heavy hitters adds ten lines to the log, and then one a second, which say how
// many are left out.
func TestLinesOfHeavyHittersAreBounded(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var o observers
	now := time.Now()
	const seconds = 60
	for range 10 * seconds {
		o.logHeavy(make([]tracker.Event, 200), now, log)
		now = now.Add(100 * time.Millisecond)
	}
	of, left := 0, 0
	for line := range strings.Lines(out.String()) {
		if _, n, ok := strings.Cut(line, " lines="); ok {
			more, err := strconv.Atoi(strings.TrimSpace(n))
			if err != nil {
				t.Fatal(err)
			}
			left += more
			continue
		}
		of++
	}
	if of < seconds || of > 10+seconds || left+of < 200*10*(seconds-1) {
		t.Errorf("%d lines, %d left out, in %d s of 2000 a second", of, left, seconds)
	}
}
