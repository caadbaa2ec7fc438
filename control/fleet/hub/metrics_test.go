package hub

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/control/metrics"
	"weir/tests/wait"
)

// The metrics of a hub say what its nodes report, and what it has published.
func TestMetrics(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	feed := filepath.Join(f.dir, "drop.txt")
	if err := os.WriteFile(feed, []byte("192.0.2.1\n192.0.2.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start(fmt.Sprintf("lists: {drop: {sources: [{file: %s}]}}\n", feed))
	_, one := f.enroll("one")
	_, slow := f.enroll("slow")
	f.enroll("unseen")
	f.enroll("gone")
	if err := f.authority.Revoke("gone"); err != nil {
		t.Fatal(err)
	}
	before := f.has("block")
	f.change(block("198.51.100.1"))
	place := f.change(block("198.51.100.2")).Version

	handler := metrics.HubHandler(f.hub, testLog())
	scrape := func() string {
		r := httptest.NewRecorder()
		handler.ServeHTTP(r, httptest.NewRequest("GET", metrics.Path, nil))
		return r.Body.String()
	}
	wants := func(lines ...string) {
		t.Helper()
		var body, missing string
		for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			body, missing = scrape(), ""
			for _, l := range lines {
				if !strings.Contains(body, "\n"+l+"\n") {
					missing += l + "\n"
				}
			}
			if missing == "" {
				return
			}
		}
		t.Fatalf("there is no\n%sin\n%s", missing, body)
	}
	wants(
		`weir_hub_connected 1`, `weir_hub_publishing_failing 0`, `weir_hub_list_entries{action="block",list="drop"} 2`,
		`weir_hub_list_manual_entries{action="block",list="block"} 2`,
		fmt.Sprintf(`weir_hub_list_version{list="block"} %d`, place.Version), fmt.Sprintf(`weir_hub_list_published_version{list="block"} %d`, place.Version),
		`weir_hub_nodes{state="unseen"} 3`, `weir_hub_nodes{state="revoked"} 1`, `weir_hub_node_packets_total{verdict="drop"} 0`,
	)
	var current []wire.ListStatus
	for _, l := range f.hub.noted.Load().wanted {
		current = append(current, f.has(l.Name))
	}
	behind := append([]wire.ListStatus{}, current...)
	for i := range behind {
		if behind[i].Name == "block" {
			behind[i] = before
		}
	}
	report := func(dropped uint64) {
		t.Helper()
		for name, s := range map[string]wire.Status{"one": {Lists: current, Dropped: dropped}, "slow": {Lists: behind, Dropped: 7}} {
			c := one
			if name == "slow" {
				c = slow
			}
			if err := c.Publish(wire.StatusSubject(name), status(t, s)); err != nil {
				t.Fatal(err)
			}
		}
	}
	report(100)
	wants(`weir_hub_nodes{state="current"} 1`, `weir_hub_nodes{state="behind"} 1`, `weir_hub_nodes{state="unseen"} 1`,
		`weir_hub_list_lag_versions{list="block"} 2`, `weir_hub_list_lag_versions{list="drop"} 0`)
	report(150)
	wants(`weir_hub_node_packets_total{verdict="drop"} 50`)
	report(5) // it has been restarted
	wants(`weir_hub_node_packets_total{verdict="drop"} 55`)
	s := f.hub.Metrics()
	if s.StoreBytes == 0 || s.StreamBytes == 0 || s.DiskFree == 0 || s.DiskBytes < s.DiskFree || s.Connections == nil || *s.Connections < 4 ||
		s.Published.Catalogs == 0 || s.Published.Deltas < 2 || s.Published.Snapshots == 0 {
		t.Errorf("%+v", s)
	}

	if err := os.WriteFile(feed, []byte("not an address\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wants(fmt.Sprintf(`weir_feed_failed_attempts{list="drop",source=%q} 1`, feed))
	f.broker.Close()
	wants(`weir_hub_connected 0`, `weir_hub_publishing_failing 1`)
}

// A certificate that expires soon is a problem and counted, but not a revoked one.
func TestExpiring(t *testing.T) {
	f := newFleet(t)
	for _, name := range []string{"one", "gone", "later"} {
		if _, err := f.authority.Enroll(name, nil, []string{"tls://127.0.0.1:4222"}); err != nil {
			t.Fatal(err)
		}
		if name == "later" {
			continue
		}
		path := filepath.Join(f.dir, "keys", "nodes", name+".json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var m authority.Member
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		m.Expires = time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
		if text, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.authority.Revoke("gone"); err != nil {
		t.Fatal(err)
	}
	f.start("")
	status, err := f.hub.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range status.Problems {
		if strings.Contains(p, "certificate") {
			got = append(got, p)
		}
	}
	if want := []string{"the certificate of node one has expired on 2020-02-03: it should have renewed that by itself, and weir status there says why it has not"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	wait.For(t, "the metric", func() bool { return f.hub.Metrics().Expiring == 1 })
}
