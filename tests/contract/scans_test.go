package contract

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weir/control/capture"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage/tracker"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/data"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
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
	long.Seconds(t)
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
			// A seed in twenty misses a tenth of the medium scans: a few turns may have too few
			// of them, all turns have not.
			few, turns := 4, 16
			if x.long {
				long.Only(t, "millions of packets")
				few, turns = 1, 4
			}
			g := tracker.DefaultScan("src")
			g.Distinct, g.Memory = tracker.Addresses, x.memory
			pairs := x.crowd.pairs(rand.New(rand.NewPCG(3, 4)))
			full := 0 // at most, in a turn
			var scans [3]int
			sent := 0 // scans of each speed
			enough := func() bool { return float64(scans[2]) >= x.medium*float64(sent) }
			for turn := 0; turn < few || turn < turns && !enough(); turn++ {
				found := make(map[netip.Addr]bool)
				full = max(full, watchScans(t, g, pairs, found))
				sent += x.crowd.scans
				for a := range found {
					if b := a.As4(); b[0] == 10 {
						scans[b[1]]++
					} else {
						scans[0]++
					}
				}
			}
			all := map[[2]uint32]bool{}
			for _, p := range pairs {
				all[p] = true
			}
			planned, err := tracker.ScanFor(tracker.ScanRequest{
				Pairs: len(all), Threshold: int(g.Threshold), Memory: int(x.memory), Destinations: mediumScan,
			})
			if err != nil {
				t.Fatal(err)
			}
			if share := float64(scans[2]) / float64(sent); *planned.Found > share+0.1 || planned.Windows > float64(full+1)+0.1 {
				t.Errorf("%.2f of the medium scans are found, %d windows ended early; planned %.2f, %.1f windows", share, full, *planned.Found, planned.Windows)
			}
			t.Logf("found %d fast and %d medium scans of %d, %d others; %d windows ended early",
				scans[1], scans[2], sent, scans[0], full)
			if scans[0] > 0 || scans[1] < sent || !enough() {
				t.Errorf("want all fast ones, %g %% of the medium ones and no others", 100*x.medium)
			}
		})
	}
}

// watchScans lets the kernel see the packets, evenly over a window, and adds the sources
// that the scan detector reports. It returns how many windows ended early.
func watchScans(t *testing.T, g tracker.Scan, pairs [][2]uint32, found map[netip.Addr]bool) (full int) {
	t.Helper()
	w := newWatch(t, g)
	full = w.tick(time.Hour, found)
	tuple := key.Tuple{Proto: 17, HasPorts: true, SrcPort: 40_000, DstPort: 53}
	const ticks = 99 // of a tenth of a second: the window has not ended
	for i := range ticks {
		for _, p := range pairs[len(pairs)*i/ticks : len(pairs)*(i+1)/ticks] {
			var src, dst [4]byte
			binary.BigEndian.PutUint32(src[:], p[0])
			binary.BigEndian.PutUint32(dst[:], p[1])
			tuple.Src, tuple.Dst = netip.AddrFrom4(src), netip.AddrFrom4(dst)
			if _, err := w.program.Test(packet.Frame(tuple)); err != nil {
				t.Fatal(err)
			}
		}
		full += w.tick(time.Hour+time.Duration(i+1)*tracker.Tick, found)
	}
	return full
}

// watch is a program with a scan detector, and what reads it.
type watch struct {
	*counters
	watcher *tracker.Watcher
	ended   int // windows
}

func newWatch(t *testing.T, g tracker.Scan) *watch {
	t.Helper()
	watched := tracker.Watched{Spec: g.Spec()}
	return &watch{counters: newScanned(t, watched.Counting()), watcher: tracker.NewWatcher([]tracker.Watched{watched})}
}

// tick adds the addresses that are reported, and returns how many windows ended early.
func (w *watch) tick(at time.Duration, found map[netip.Addr]bool) (full int) {
	reports, events := w.watcher.Tick(func() time.Duration { return at }, w.generation, []*loader.Stats{w.stats})
	for _, e := range events {
		if e.Released {
			continue
		}
		if e.Spec.Key == "dst" {
			found[e.Flow.Key.Dst] = true
		} else {
			found[e.Flow.Key.Src] = true
		}
	}
	for _, r := range reports {
		w.ended++
		if r.Full {
			full++
		}
	}
	return full
}

// newScanned returns a program with a scan detector.
func newScanned(t *testing.T, guard tracker.Counting) *counters {
	t.Helper()
	seed.Secrets(t)
	c := &counters{}
	var err error
	c.generation, err = engine.Build(nil, engine.Config{Parts: []engine.Part{&tracker.Part{In: []tracker.Counting{guard}}}, Seed: hash.NewSeed()})
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

// On captures of real traffic, one of them a port scan, scan detectors report those that reach
// the threshold by an exact count, and no others.
func TestScansOfCaptures(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	ofPorts := tracker.DefaultScan("src")
	ofHosts, ofSources := tracker.DefaultScan("src"), tracker.DefaultScan("dst")
	ofHosts.Distinct, ofSources.Distinct = tracker.Addresses, tracker.Addresses
	for _, c := range []struct {
		capture string
		guard   tracker.Scan
		found   int // at least
		long    bool
	}{
		{"synscan", ofPorts, 1, false},
		{"synscan", ofHosts, 0, false},
		{"sanitized4k", ofPorts, 0, false},
		{"synflood", ofPorts, 0, true},
		{"synflood", ofSources, 1, true},
		{"gnutella", ofHosts, 1, false},
		{"mix-dev", ofPorts, 1, true},
		{"mix-dev", ofHosts, 1, true},
		{"mix-dev", ofSources, 0, true},
	} {
		t.Run(c.capture+" "+c.guard.String(), func(t *testing.T) {
			if c.long {
				long.Only(t, "a large capture")
			}
			w := newWatch(t, c.guard)
			found, most := make(map[netip.Addr]bool), make(map[netip.Addr]int)
			exact := make(map[netip.Addr]map[pair]bool)
			var began time.Time
			at := time.Hour
			w.tick(at, found)
			watched := 0
			data.Captures(t, func(name string, r *capture.Reader) {
				if !strings.Contains(name, c.capture) {
					return
				}
				watched++
				for p, err := range r.All() {
					if err != nil {
						t.Fatal(err)
					}
					if began.IsZero() {
						began = p.Time
					}
					for time.Hour+p.Time.Sub(began) >= at+tracker.Tick {
						ended := w.ended
						at += tracker.Tick
						w.tick(at, found)
						if w.ended > ended {
							clear(exact)
						}
					}
					if len(p.Data) < 14 {
						continue
					}
					if _, err := w.program.Test(p.Data[:min(len(p.Data), 2048)]); err != nil {
						t.Fatal(err)
					}
					who, of, ok := begins(p.Data, c.guard)
					if !ok {
						continue
					}
					if exact[who] == nil {
						exact[who] = make(map[pair]bool)
					}
					exact[who][of] = true
					most[who] = max(most[who], len(exact[who]))
				}
			})
			if watched != 1 {
				t.Fatalf("%d captures are called %s", watched, c.capture)
			}
			w.tick(at+time.Minute, found)
			surely := 0
			for who, n := range most {
				// A source is counted exactly from half of the threshold on at the latest.
				if n >= int(c.guard.Threshold)*3/2 {
					surely++
					if !found[who] {
						t.Errorf("%v reaches %d in a window, and is not reported", who, n)
					}
				}
			}
			for who := range found {
				if most[who] < int(c.guard.Threshold) {
					t.Errorf("%v is reported, and reaches %d in a window", who, most[who])
				}
			}
			if surely < c.found {
				t.Errorf("%d are to be found, want at least %d: the capture is another one", surely, c.found)
			}
			t.Logf("%d of %d are reported, in %d windows", len(found), len(most), w.ended)
		})
	}
}

// pair is a pair that a scan detector counts for an address: the other one, with a port or without.
type pair struct {
	other netip.Addr
	proto layers.IPProtocol
	port  uint16
}

// begins reports of whom a packet may begin a conversation, and what it reaches.
func begins(frame []byte, g tracker.Scan) (who netip.Addr, of pair, ok bool) {
	var src, dst netip.Addr
	ephemeral := g.Spec().Counting().Pairs.Ephemeral
	for _, l := range gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true}).Layers() {
		switch l := l.(type) {
		case *layers.IPv4:
			if src.IsValid() {
				return who, of, false // a tunnel
			}
			src, _ = netip.AddrFromSlice(l.SrcIP)
			dst, _ = netip.AddrFromSlice(l.DstIP)
		case *layers.IPv6:
			if src.IsValid() {
				return who, of, false
			}
			src, _ = netip.AddrFromSlice(l.SrcIP)
			dst, _ = netip.AddrFromSlice(l.DstIP)
		case *layers.TCP:
			of.proto, of.port, ok = layers.IPProtocolTCP, uint16(l.DstPort), l.SYN && !l.ACK
		case *layers.UDP:
			answers := l.SrcPort < 1024 && l.DstPort >= 1024 && g.Key != "dst"
			of.proto, of.port, ok = layers.IPProtocolUDP, uint16(l.DstPort), uint16(l.DstPort) < ephemeral && !answers
		case *layers.ICMPv4:
			of.proto, ok = layers.IPProtocolICMPv4, l.TypeCode.Type() == layers.ICMPv4TypeEchoRequest
		case *layers.ICMPv6:
			of.proto, ok = layers.IPProtocolICMPv6, l.TypeCode.Type() == layers.ICMPv6TypeEchoRequest
		}
		if of.proto != 0 {
			break
		}
	}
	who, of.other = src, dst
	if g.Key == "dst" {
		who, of.other = dst, src
	}
	if g.Distinct == tracker.Addresses {
		of.proto, of.port = 0, 0
	}
	return who, of, ok && src.IsValid()
}

// The answers of a name server to a resolver that asks from any port are no scan; packets of
// a scanner from the same port to those of services are, and so are packets from any other port.
// An address that many answers reach is reported: they may be a flood that others have caused.
func TestAnswersAreNoScan(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	ports, addresses, sources := tracker.DefaultScan("src"), tracker.DefaultScan("src"), tracker.DefaultScan("dst")
	addresses.Distinct, sources.Distinct = tracker.Addresses, tracker.Addresses
	for _, c := range []struct {
		what     string
		guard    tracker.Scan
		from, to func(i int) netip.AddrPort
		found    bool
	}{
		{"answers to ports", ports, server(53), client(1024), false},
		{"answers of NTP to ports", ports, server(123), client(1024), false},
		{"a scan of services from port 53", ports, server(53), client(1), true},
		{"a scan from a port above 1023", ports, server(1024), client(1024), true},
		{"answers to many addresses", addresses, server(53), clients, false},
		{"answers of many servers", sources, servers, client(1024), true},
	} {
		t.Run(c.what, func(t *testing.T) {
			w, found := newWatch(t, c.guard), make(map[netip.Addr]bool)
			w.tick(time.Hour, found)
			for i := range 500 {
				from, to := c.from(i), c.to(i)
				f := packet.Frame(key.Tuple{Src: from.Addr(), Dst: to.Addr(), Proto: 17, HasPorts: true, SrcPort: from.Port(), DstPort: to.Port()})
				if _, err := w.program.Test(f); err != nil {
					t.Fatal(err)
				}
			}
			w.tick(time.Hour+time.Duration(c.guard.Window), found)
			if got := len(found) > 0; got != c.found {
				t.Errorf("reported: %v, want %t", found, c.found)
			}
		})
	}
}

var (
	serverAddr = netip.MustParseAddr("192.0.2.53")
	clientAddr = netip.MustParseAddr("198.51.100.7")
)

// server returns the same port of one server for all packets.
func server(port uint16) func(int) netip.AddrPort {
	return func(int) netip.AddrPort { return netip.AddrPortFrom(serverAddr, port) }
}

// servers returns the port of names of another server for each packet.
func servers(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 53)
}

// client returns another port of one client for each packet.
func client(first uint16) func(int) netip.AddrPort {
	return func(i int) netip.AddrPort { return netip.AddrPortFrom(clientAddr, first+uint16(i)) }
}

// clients returns a port of another client for each packet.
func clients(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 5353)
}
