package newflow

import (
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/recent"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

// A program shows a watcher the packets with addresses: a flow is new once, important flows have
// events where the budget has no room for others, and packets that pass before any list begin none.
func TestWatcher(t *testing.T) {
	w := &Watcher{
		Flow:  sketch.Tracker{V4: key.Shape{Fields: key.FieldDstPort | key.FieldProto, SrcBits: 32, DstBits: 32}, Secret: hash.NewSecret(hash.Seed{1})},
		Known: recent.New(16), Gap: share, Now: func() uint64 { return 1 },
		Ports: []verdict.FailsafePort{{Proto: 17, Port: 53}},
	}
	p := &verdict.Program{Policy: verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 17, Port: 22}}}, Watcher: w}
	see := func(port uint16) {
		p.Decide(packet.Frame(key.Tuple{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 17, HasPorts: true, DstPort: port,
		}))
	}
	for _, port := range []uint16{80, 80, 81, 53, 22} {
		see(port)
	}
	p.Decide([]byte("no addresses"))
	want := Counts{Spent: 1 + 2*share, Entered: 3}
	want.Flows[1], want.Events[1], want.Suppressed[1] = 2, 1, 1 // of 80 and 81
	want.Flows[MaxImportance], want.Events[MaxImportance] = 1, 1
	if w.Counts != want {
		t.Errorf("%+v, want %+v", w.Counts, want)
	}
	p.Watcher = nil
	see(82)
	if w.Counts != want {
		t.Error("a watcher sees packets that it is not shown")
	}
}
