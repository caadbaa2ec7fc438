package hub

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/wait"
)

// What commands have added is shown by page, exported with what a feed has, and removed on all nodes at once.
func TestEntries(t *testing.T) {
	f := newFleet(t)
	f.start("lists: {drop: {sources: [{file: " + f.feed("198.51.100.0/24") + "}]}}\n")
	n, c := f.enroll("edge-1")
	w := f.follower(n, c)
	has := func(entries ...string) {
		t.Helper()
		wait.Until(t, func() error {
			s, _, _, err := w.read("drop")
			if err != nil {
				return err
			}
			return wantEntries(s, entries...)
		})
	}
	has("198.51.100.0/24")
	f.change(api.Change{Action: api.Block, List: "drop", Entries: []string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}, TTL: 3600, Reason: "scans"})
	f.change(api.Change{Action: api.Block, Entries: []string{"203.0.113.7"}})
	has("192.0.2.1", "192.0.2.2", "2001:db8::1", "198.51.100.0/24")

	shown := func(asked api.EntriesQuestion) (all []string) {
		t.Helper()
		for asked.Limit = 2; ; {
			page, err := f.hub.Entries(t.Context(), asked)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Entries {
				if all = append(all, e.Entry); e.List == "drop" && (e.Reason != "scans" || e.Expires == nil || !e.Manual) {
					t.Errorf("%+v", e)
				}
			}
			if asked.After = page.Next; page.Next == "" {
				return all
			}
		}
	}
	if all := shown(api.EntriesQuestion{}); !slices.Equal(all, []string{"203.0.113.7", "192.0.2.1", "192.0.2.2", "2001:db8::1"}) {
		t.Errorf("shown %q", all)
	}
	if all := shown(api.EntriesQuestion{List: "drop", Expiring: 2 * time.Hour}); len(all) != 3 {
		t.Errorf("shown %q of one list", all)
	}
	if all := shown(api.EntriesQuestion{Expiring: time.Minute}); len(all) != 0 {
		t.Errorf("%q expire within a minute", all)
	}
	if _, err := f.hub.Entries(t.Context(), api.EntriesQuestion{List: "none", Limit: 1}); err == nil {
		t.Error("there is no such list")
	}

	e, err := f.hub.Export(t.Context(), "drop", api.FormatPlain)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if _, err := e.Text.WriteTo(&text); err != nil || strings.Count(text.String(), "\n") < 4 || !strings.Contains(text.String(), "198.51.100.0/24") || !strings.Contains(text.String(), "192.0.2.2") {
		t.Errorf("%v: %s", err, &text)
	}

	changed, err := f.hub.Flush(t.Context(), "drop", api.FlushChange{})
	if err != nil || changed.Removed != 3 || !changed.Published {
		t.Errorf("%+v, %v", changed, err)
	}
	has("198.51.100.0/24")
	if all := shown(api.EntriesQuestion{}); !slices.Equal(all, []string{"203.0.113.7"}) {
		t.Errorf("left %q", all)
	}
	if changed, err := f.hub.Flush(t.Context(), "drop", api.FlushChange{}); err != nil || changed.Removed != 0 {
		t.Errorf("again: %+v, %v", changed, err)
	}
	if r := f.hub.Audit(10); !slices.ContainsFunc(r, func(r api.AuditRecord) bool { return r.Change == "unblock" && r.List == "drop" && r.Changed == 3 }) {
		t.Errorf("audit: %+v", r)
	}
}
