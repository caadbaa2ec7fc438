package trial

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/durable/durabletest"
)

// TestFile lets the machine crash, and steps fail, while trials are saved. Saved decisions are
// read again; a file that is broken or of another version counts for nothing.
func TestFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	since, at := time.Unix(1, 0), time.Unix(1e9, 0)
	on := Decisions{"a": {Since: &since, EnforcedAt: &at, By: "root"}}
	path := func(dir string) string { return filepath.Join(dir, File) }
	durabletest.Test{
		Begin: "none",
		Work: func(t *testing.T, d *durabletest.Disk) {
			file := path(d.Dir)
			for range 2 {
				_ = d.Do(func() error { return on.Save(file) }, "on")
				for range 2 { // the second time it may be gone, but not for good
					_ = d.Do(func() error { return Decisions(nil).Save(file) }, "none")
				}
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			same := func(a, b api.Trial) bool {
				return a.EnforcedAt.Equal(*b.EnforcedAt) && a.Since.Equal(*b.Since) && a.By == b.By
			}
			switch got := Load(path(dir), log); {
			case maps.EqualFunc(got, on, same):
				return "on", nil
			case len(got) > 0:
				t.Errorf("read %+v", got)
			}
			return "none", nil
		},
	}.Run(t)
	dir := t.TempDir()
	for _, text := range []string{"", "{", "[]", "null", `{"version": 2, "lists": {"a": {"since": "2026-01-02T03:04:05Z"}}}`, `{"version": 1, "lists": {"a": {"enforced": true}}}`} {
		if err := os.WriteFile(path(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Load(path(dir), log); len(got) > 0 {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
