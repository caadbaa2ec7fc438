package loader

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/tests/lab"
)

// Earlier versions have pinned counters, and a record of the entries, beside the maps that
// programs read. Such a filter is taken over without them, and they go with the pins of the
// program that is replaced.
func TestFilterOfEarlierVersion(t *testing.T) {
	l, pins := lab.New(t), testPins(t)
	g, frame := keeping(t, false), udp(l, addrA, addrB, 1)
	a := attach(t, pins, target(l.B), hooks.Native, g)
	want := pinsOf(t, a)
	earlier := []string{"block_counters", "block_record"}
	for _, name := range earlier {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 64, MaxEntries: 8})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join((bpffs.Map{Map: m}).PinAt(filepath.Join(a.path, pinFilter, name)), m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	f, err := pins.OpenFilter(target(l.B))
	if err != nil || string(f.Description) != "a description" {
		t.Fatal(f, err)
	}
	next, err := NewGenerationOver(g.config, f)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := next.Keep([]byte("the next one")); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(next.Block().Lines, g.Block().Lines) {
		t.Error("the bits are others")
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := next.Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(p); err != nil {
		t.Fatal(err)
	}
	if now := pinsOf(t, a); !slices.Equal(now, want) {
		t.Errorf("pins %v, want %v", now, want)
	}
	if reaches(t, l, frame) {
		t.Error("nothing filters")
	}
	detach(t, a)
}
