package contract

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/observe/heavy"
	"weir/control/quantity"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/lab"
)

// scanTraffic is the traffic of a window, a packet a pair of source and destination.
type scanTraffic struct {
	legitimate int // sources of 1 to 40 destinations, most of which have few
	scans      int // of each speed
	spoofed    int // sources of one packet
}

const (
	fastScan   = 1000 // destinations
	mediumScan = 150
)

// pairs returns the packets in a random order. Scans have the sources 10.1.x.x (fast)
// and 10.2.x.x (medium), the others other ones.
func (c scanTraffic) pairs(r *rand.Rand) (all [][2]uint32) {
	add := func(src uint32, destinations int) {
		for range destinations {
			all = append(all, [2]uint32{src, r.Uint32()})
		}
	}
	for i := range c.legitimate {
		add(20<<24|uint32(i), min(40, int(math.Pow(r.Float64(), -1/1.2))))
	}
	for i := range c.scans {
		add(10<<24|1<<16|uint32(i), fastScan)
		add(10<<24|2<<16|uint32(i), mediumScan)
	}
	for i := range c.spoofed {
		add(1<<31|uint32(i)*2654435761>>1, 1)
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Guards in the kernel find scans among many sources and in a flood of spoofed ones,
// without false alarms.
func TestScans(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	for _, x := range []struct {
		name   string
		crowd  scanTraffic
		memory quantity.Size
		medium float64 // share of the medium scans that are found
		long   bool
	}{
		{"small", scanTraffic{5_000, 20, 0}, 32 << 10, 0.95, false},
		{"small flood", scanTraffic{5_000, 20, 25_000}, 64 << 10, 0.95, false},
		{"legitimate sources", scanTraffic{100_000, 50, 0}, 512 << 10, 0.95, true},
		{"flood", scanTraffic{100_000, 50, 1_000_000}, 512 << 10, 0.95, true},
		{"large flood", scanTraffic{100_000, 50, 4_000_000}, 512 << 10, 0, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.long {
				if os.Getenv("WEIR_LONG") != "1" {
					t.Skip("needs WEIR_LONG=1: millions of packets")
				}
			}
			found := make(map[netip.Addr]bool)
			g := heavy.DefaultGuard("src")
			g.Distinct, g.Memory = heavy.Addresses, x.memory
			full := watchScans(t, g, x.crowd.pairs(rand.New(rand.NewPCG(3, 4))), found)
			var scans [3]int
			for a := range found {
				if b := a.As4(); b[0] == 10 {
					scans[b[1]]++
				} else {
					scans[0]++
				}
			}
			t.Logf("found %d fast and %d medium scans of %d, %d others; %d windows ended early",
				scans[1], scans[2], x.crowd.scans, scans[0], full)
			if scans[0] > 0 || scans[1] < x.crowd.scans || float64(scans[2]) < x.medium*float64(x.crowd.scans) {
				t.Errorf("want all fast ones, %g %% of the medium ones and no others", 100*x.medium)
			}
		})
	}
}

// watchScans lets the kernel see the packets, evenly over a window, and adds the sources
// that the guard reports. It returns how many windows ended early.
func watchScans(t *testing.T, g heavy.Guard, pairs [][2]uint32, found map[netip.Addr]bool) (full int) {
	t.Helper()
	watched := heavy.Watched{Spec: g.Spec()}
	c := newScanned(t, watched.Tracker())
	w := heavy.NewWatcher([]heavy.Watched{watched})
	stats := []*loader.Stats{c.stats}
	tick := func(at time.Duration) {
		reports, events := w.Tick(at, c.generation, stats)
		for _, e := range events {
			if !e.Released {
				found[e.Flow.Key.Src] = true
			}
		}
		for _, r := range reports {
			if r.Full {
				full++
			}
		}
	}
	tick(time.Hour)
	tuple := key.Tuple{Proto: 17, HasPorts: true, SrcPort: 40_000, DstPort: 53}
	const ticks = 99 // of a tenth of a second: the window has not ended
	for i := range ticks {
		for _, p := range pairs[len(pairs)*i/ticks : len(pairs)*(i+1)/ticks] {
			var src, dst [4]byte
			binary.BigEndian.PutUint32(src[:], p[0])
			binary.BigEndian.PutUint32(dst[:], p[1])
			tuple.Src, tuple.Dst = netip.AddrFrom4(src), netip.AddrFrom4(dst)
			if _, err := c.program.Test(packet.Frame(tuple)); err != nil {
				t.Fatal(err)
			}
		}
		tick(time.Hour + time.Duration(i+1)*heavy.Tick)
	}
	return full
}

// newScanned returns a program with a guard.
func newScanned(t *testing.T, tracker engine.Tracker) *counters {
	t.Helper()
	c := &counters{}
	var err error
	c.generation, err = engine.Build(nil, engine.Config{Telemetry: engine.Telemetry{Trackers: []engine.Tracker{tracker}, TrackerSeed: hash.NewSeed()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.generation.Close() })
	if c.stats, err = loader.NewStats(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stats.Close() })
	if c.program, err = c.generation.Load(c.stats); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.program.Close() })
	if err := c.stats.Take(c.program); err != nil {
		t.Fatal(err)
	}
	return c
}
