package ruleset

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/feed"
	"weir/tests/must"
)

// A source that has not answered yet is not called empty.
func TestSourceNotReadYet(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	must.Write(t, empty, "")
	for _, c := range []struct {
		source feed.Source
		read   bool
		want   string
	}{
		{feed.Source{URL: "https://feeds.example.net/drop.txt"}, false, `level=WARN msg="the source is not read yet"`},
		{feed.Source{File: feed.Path(empty)}, true, `level=INFO msg="the source is empty"`},
	} {
		f, err := feed.Open(t.Context(), feed.Config{Name: "drop", Spec: feed.DefaultSpec(c.source), MayBeEmpty: true}, "")
		if err != nil {
			t.Fatal(err)
		}
		if c.read {
			if _, err := f.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		p := &Ruleset{Lists: []*List{{From: f}}}
		p.LogFailures(slog.New(slog.NewTextHandler(&out, nil)), nil)
		if !strings.Contains(out.String(), c.want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%+v: %s, want %s", c.source, out.String(), c.want)
		}
	}
}
