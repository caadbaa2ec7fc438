package contract

import (
	"maps"
	"runtime"
	"testing"

	"weir/control/engine"
	"weir/control/replay"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

// kernels returns the program of each entry, for incoming packets.
func kernels(t testing.TB, lists []engine.List, c engine.Config) (*engine.Generation, map[string]*replay.Kernel) {
	t.Helper()
	_, xdp := engines(t, lists, c)
	tc := tcEntries(t, lists, c, "in")[0]
	return tc.Generation, map[string]*replay.Kernel{"XDP": xdp, "TC": tc.Kernel}
}

// A frame that is not IP is counted by its EtherType, by both entries.
func TestEtherTypes(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	frame := func(types ...byte) []byte {
		f := packet.Frame(r.tuple())
		return append(append(f[:12:12], types...), f[14:]...)
	}
	frames := [][]byte{
		frame(0x88, 0xe7), frame(0x88, 0xe7), frame(0x81, 0, 0, 7, 0x88, 0xe5),
		frame(0, 60), frame(5, 0xff), frame(6, 0), // a length, and the least type
		frame(0x88, 0x47, 0, 0, 1, 64), frame(0x88, 0x64, 0x11, 0, 0, 1, 0, 9, 0, 0x3d),
		frame(0x88, 0xcc), frame(8, 6), // counted under other reasons
	}
	types := make(map[uint16]bool) // there is room for 31
	for range 2000 {
		f := r.mutate(packet.Frame(r.tuple()))
		f = f[:min(len(f), tcPage)]
		if p, _ := packet.Parse(f); types[p.EtherType] || len(types) < 20 {
			types[p.EtherType] = true
			frames = append(frames, f)
		}
	}
	g, kernels := kernels(t, nil, engine.Config{Policy: verdict.Policy{DropNotIP: true}})
	for name, k := range kernels {
		want := make(map[uint16]loader.Counter)
		for _, f := range frames {
			o, err := agree(g, k, f)
			if err != nil {
				t.Fatalf("%s: %v: % x", name, err, f)
			}
			if p, _ := packet.Parse(f); o.Reason == verdict.NotIP && len(f) > 14 {
				c := want[p.EtherType]
				want[p.EtherType] = loader.Counter{Packets: c.Packets + 1, Bytes: c.Bytes + uint64(len(f))}
			}
		}
		got := k.Stats().EtherTypes()
		if !maps.Equal(got.ByType, want) || got.Others.Packets != 0 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if len(want) < 8 {
			t.Errorf("%s: %d types: the test is too narrow", name, len(want))
		}
	}
}

// The memory for types is bounded: what finds no room is counted, too.
func TestInventedEtherTypes(t *testing.T) {
	lab.Root(t)
	_, k := engines(t, nil, engine.Config{})
	r := newRandom(t)
	invented := 64 * runtime.NumCPU()
	for i := range invented {
		f := packet.Frame(r.tuple())
		f[12], f[13] = 0x70+byte(i>>8), byte(i)
		if _, err := k.Decide(f); err != nil {
			t.Fatal(err)
		}
	}
	got := k.Stats().EtherTypes()
	sum := got.Others.Packets
	for _, c := range got.ByType {
		sum += c.Packets
	}
	if got.Others.Packets == 0 || len(got.ByType) < 31 || sum != uint64(invented) {
		t.Errorf("%d types, %d packets of others, %d in all", len(got.ByType), got.Others.Packets, sum)
	}
}
