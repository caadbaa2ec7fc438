package newflow_test

import (
	"fmt"
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/newflow"
	"weir/filter/packet"
	"weir/filter/recent"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

func watcher() *newflow.Watcher {
	return &newflow.Watcher{
		Flow:  sketch.Tracker{V4: key.Shape{SrcBits: 32, DstBits: 32}, Secret: hash.NewSecret(hash.Seed{1})},
		Known: recent.New(16), Now: func() uint64 { return 0 },
	}
}

func packetTo(dst netip.Addr) packet.Packet {
	p, _ := packet.Parse(packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: dst, Proto: 17, HasPorts: true, SrcPort: 40000, DstPort: 53,
	}))
	return p
}

// A flow is counted when its first packet is seen.
func ExampleWatcher() {
	w := watcher()
	for _, to := range []string{"198.51.100.7", "198.51.100.8", "198.51.100.7"} {
		w.Observe(packetTo(netip.MustParseAddr(to)), verdict.Outcome{}, 60)
	}
	fmt.Println(w.Flows[1])
	// Output: 2
}

func BenchmarkWatcher(b *testing.B) {
	w, p := watcher(), packetTo(netip.MustParseAddr("198.51.100.7"))
	for b.Loop() {
		w.Observe(p, verdict.Outcome{}, 60)
	}
}
