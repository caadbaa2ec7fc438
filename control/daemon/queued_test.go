package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/queue"
	"weir/tests/must"
)

// recorded makes changes, or fails.
type recorded struct {
	fails error
	made  []string
}

var errUntried = errors.New("the journal cannot be written")

func (m *recorded) CarryOut(_ context.Context, c api.Change) (api.Changed, error) {
	if m.fails == nil {
		m.made = append(m.made, c.Entries...)
	}
	return api.Changed{}, m.fails
}

func (m *recorded) Untried(err error) bool { return errors.Is(err, errUntried) }
func (m *recorded) Ended(error) bool       { return false }

// Changes are made in their order. One that the engine cannot take holds up the others for some time, and one
// that was not tried for as long as that lasts.
func TestTake(t *testing.T) {
	c := &config.Config{StateDir: config.Path(t.TempDir())}
	m, log := new(recorded), slog.New(slog.DiscardHandler)
	records := audit.New("", log)
	n := newNotices("", log)
	t.Cleanup(func() { n.Close(0) })
	w := newQueuedChanges(m, records, n, log)
	if err := w.Open(c, ""); err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{"192.0.2.1", "192.0.2.2"} {
		if done, err := w.Queue(t.Context(), api.Change{Action: api.Block, Entries: []string{entry}}); err != nil || !done.Queued || done.List != config.DefaultBlock {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	if _, err := w.Queue(t.Context(), api.Change{Action: api.Block, Entries: []string{"nonsense"}}); err == nil {
		t.Error("nonsense is queued")
	}
	for _, fails := range []error{errUntried, errors.New("cannot allocate memory")} {
		m.fails = fails
		w.SetPatience(time.Hour)
		if !w.Take(t.Context()) || !w.Some() || len(m.made) > 0 {
			t.Errorf("%v: made %q", fails, m.made)
		}
	}
	m.fails = nil
	if !w.Take(t.Context()) || len(m.made) > 0 {
		t.Errorf("tried again at once: %q", m.made)
	}
	w.SetPatience(time.Hour)
	if w.Take(t.Context()) || w.Some() || len(m.made) != 2 || m.made[0] != "192.0.2.1" {
		t.Errorf("made %q", m.made)
	}
	if names, err := queue.In(w.StateDir()).Waiting(); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}

	// One that cannot be read is set aside, and recorded.
	bad := filepath.Join(w.StateDir(), "queue", "1-0.json")
	must.Write(t, bad, "nonsense")
	if w.Take(t.Context()) || w.Some() || len(m.made) != 2 {
		t.Errorf("made %q", m.made)
	}
	if _, err := os.Stat(bad + ".bad"); err != nil {
		t.Error(err)
	}
	if last := records.Last(1); len(last) != 1 || last[0].Change != audit.Unreadable || last[0].Source != "queue" || last[0].Error == "" {
		t.Errorf("recorded: %+v", last)
	}
}
