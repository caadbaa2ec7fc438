package netns

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// The packet of a scan that exceeds the threshold is the first that is dropped, however fast
// the scan is: of a thousand ports, it reaches no more than the threshold and one. The daemon
// reports it. The scan stays on one CPU: each reports a flow from its second packet on.
func TestScanIsCut(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	const threshold, ports = 64, 1000
	for name, sources := range map[string][]string{"IPv4": {"198.51.100.9", "198.51.100.10"}, "IPv6": {"2001:db8::9", "2001:db8::a"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lab.New(t)
			c := configuration(t, target(l.B))
			g := tracker.DefaultScan("src")
			g.Action, g.Threshold = tracker.Block, threshold
			c.Scans = []tracker.Scan{g}
			d := serve(t, c)
			time.Sleep(5 * tracker.Tick) // it has looked once
			receiver, sender := l.B.Receiver(t), l.A.Sender(t)
			scan := func(source string) (reached int64) {
				src := netip.MustParseAddr(source)
				dst := netip.MustParseAddr("203.0.113.1")
				if src.Is6() {
					dst = netip.MustParseAddr("2001:db8:1::1")
				}
				var through atomic.Int64
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						frame, err := receiver.Receive(time.Second)
						if err != nil {
							return
						}
						if p, _ := packet.Parse(frame); p.HasAddresses && p.Src == src {
							through.Add(1)
						}
					}
				}()
				release, err := loader.StayOnCPU()
				if err != nil {
					t.Fatal(err)
				}
				defer release()
				began := time.Now()
				for port := range uint16(ports) {
					f := frameOf(key.Tuple{Src: src, Dst: dst, Proto: 17, HasPorts: true, SrcPort: 50_000, DstPort: 1 + port})
					if err := sender.Send(f); err != nil {
						t.Fatal(err)
					}
				}
				took := time.Since(began)
				<-done
				t.Logf("%d of %d ports were reached in %v", through.Load(), ports, took)
				d.log.await(t, began, wait.Patience, "scan", source)
				return through.Load()
			}
			n := scan(sources[0])
			if n > threshold+1 && n <= 2*threshold+1 {
				// An interval ended meanwhile. The next one ends in several seconds.
				n = scan(sources[1])
			}
			if n < threshold-1 || n > threshold+1 {
				t.Errorf("%d ports were reached, want %d or one more", n, threshold)
			}
		})
	}
}
