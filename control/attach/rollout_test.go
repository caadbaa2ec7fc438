package attach

import (
	"bytes"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
)

// A rollout loads the programs for interfaces that are added, and those that wait for interfaces,
// before it is committed: neither Commit nor Follow waits for the verifier.
func TestRolloutLoadsAhead(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	config, both := options(t, &log, l.B, l.A)
	m := begin(t, config, both[:1])
	defer func() {
		if err := m.Stop(false); err != nil {
			t.Error(err)
		}
	}()
	if err := m.Follow(); err != nil {
		t.Fatal(err)
	}
	glob := Target{Target: netif.Target{Netns: l.B.Netns, Iface: "none-*"}}
	for _, targets := range [][]Target{append(both, glob), nil} {
		added := targets != nil
		g, d := buildKernel(t, "10.0.0.1\n", engine.Config{}, 1)
		r, err := m.Prepare(g, d, targets)
		if err != nil {
			t.Fatal(err)
		}
		if added != (len(r.ahead) == 1) || len(r.preloaded) != maxPreloaded {
			t.Fatalf("%d programs are loaded ahead, %d are preloaded", len(r.ahead), len(r.preloaded))
		}
		var stats *loader.Stats
		if added {
			stats = r.ahead[0].prepared.Stats()
		}
		preloaded := slices.Clone(r.preloaded)
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(m.hotplug.preloaded, preloaded) {
			t.Errorf("others wait for interfaces: %v, want %v", m.hotplug.preloaded, preloaded)
		}
		if n := len(m.interfaces); n != 2 || !m.interfaces[n-1].filtered() || added && m.interfaces[1].Stats() != stats {
			t.Errorf("%d interfaces, or not by the program that was loaded ahead\n%s", n, &log)
		}
		if len(m.ahead) > 0 || len(m.hotplug.ahead) > 0 {
			t.Error("a program that was loaded ahead is kept")
		}
	}
}

// A rollout that is not committed leaves nothing behind, and a program of another engine is
// not used.
func TestRolloutAheadUnused(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	config, both := options(t, &log, l.B, l.A)
	m := begin(t, config, both[:1])
	defer func() {
		if err := m.Stop(false); err != nil {
			t.Error(err)
		}
	}()
	for _, another := range []bool{false, true} {
		g, d := buildKernel(t, "10.0.0.1\n", engine.Config{}, 1)
		r, err := m.Prepare(g, d, both)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.ahead) != 1 {
			t.Fatal("nothing is loaded ahead")
		}
		if !another {
			if err := r.Close(); err != nil || len(r.ahead) > 0 {
				t.Errorf("%v, %d programs are left", err, len(r.ahead))
			}
			continue
		}
		r.ahead[0].engine = m.engine // of another engine it must not be attached
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		if len(m.interfaces) != 2 || !m.interfaces[1].filtered() {
			t.Errorf("the added interface is not filtered\n%s", &log)
		}
	}
}
