package contract

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/replay"
	"weir/control/stage"
	"weir/control/stage/connections"
	"weir/filter/blocked"
	"weir/filter/conntrack"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/recent"
	"weir/loader"
	"weir/tests/lab"
)

// connectionIn returns a connection as the program has it.
func connectionIn(c conntrack.Connection) connections.Connection {
	words := func(a netip.Addr) (w [4]uint32) {
		var b [16]byte
		copy(b[:], a.AsSlice())
		for i := range w {
			w[i] = binary.NativeEndian.Uint32(b[4*i:])
		}
		return w
	}
	ports := binary.BigEndian.AppendUint16(nil, c.Local.Port())
	ports = binary.BigEndian.AppendUint16(ports, c.Remote.Port())
	return connections.Connection{
		Local: words(c.Local.Addr()), Remote: words(c.Remote.Addr()),
		Ports: binary.NativeEndian.Uint32(ports), Proto: uint32(c.Proto), Scope: stage.Scope(""),
	}
}

// sameConnections compares what both sides remember. The clocks of both are read one after
// the other.
func sameConnections(known connections.Known, want map[conntrack.Connection]conntrack.ConnectionState) error {
	left := make(map[connections.Connection]conntrack.ConnectionState)
	for c, s := range want {
		left[connectionIn(c)] = s
	}
	err := known.All(func(c connections.Connection, s connections.State) error {
		w, ok := left[c]
		delete(left, c)
		if apart := time.Duration(s.Until) - w.Until; !ok || (s.Closing != 0) != w.Closing || apart.Abs() > 10*time.Minute {
			return fmt.Errorf("the program remembers %+v as %+v, the reference %+v (%v)", c, s, w, ok)
		}
		return nil
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the program does not remember %+v", left)
	}
	return err
}

// Both sides remember the same connections of outgoing packets, and have the same packets
// pass as their replies, on every way through the programs.
func TestReplies(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	seen := map[string]int{}
	missing := func() (all []string) {
		for _, reason := range []string{"in/reply", "in/blocked", "in/clean", "out/clean", "out/blocked"} {
			if seen[reason] == 0 {
				all = append(all, reason)
			}
		}
		return all
	}
	for i := range 40 {
		if i >= 4 && len(missing()) == 0 {
			break
		}
		known, err := connections.NewKnown(1 << 14)
		if err != nil {
			t.Fatal(err)
		}
		round := newRound(t)
		round.Cleanup(func() { known.Close() })
		c := r.config(i)
		lean := i%4 == 2
		c.Monitor = i%8 == 3
		twin := &conntrack.Replies{
			Opening: time.Hour, Established: 3 * time.Hour, UDP: 2 * time.Hour, Ephemeral: 32768, Now: loader.Monotonic,
			Open: make(map[conntrack.Connection]conntrack.ConnectionState),
		}
		c.Shared, c.Parts = known.Shared, []engine.Part{&connections.RepliesPart{Replies: twin}}
		var lists []engine.List
		for i := range 3 {
			entries := r.entries([]int{100, 30, 3}[i])
			if lean {
				entries.Flows = nil
			}
			lists = append(lists, engine.List{
				Name: fmt.Sprint(i), Allow: i == 2, Direction: []engine.Direction{engine.Source, engine.Out, engine.Destination}[i], Contents: entries.Set(),
			})
		}
		entries := tcEntries(round, lists, c, "in", "out")
		in, tcKernel := entries[0].Generation, entries[0].Kernel
		out, outKernel := entries[1].Generation, entries[1].Kernel
		if why := append(in.General(), out.General()...); lean != (len(why) == 0) {
			t.Fatalf("the lean path is not taken: %v", why)
		}
		kernel, err := replay.NewKernel(in, len(lists))
		if err != nil {
			t.Fatal(err)
		}
		round.Cleanup(func() { kernel.Close() })

		tuples := make([]key.Tuple, 24)
		for i := range tuples {
			v6 := r.IntN(2) == 0
			tuples[i] = key.Tuple{
				Src: r.addr(v6), Dst: r.addr(v6), Proto: uint8(r.pick(6, 6, 17, 17, 132)), HasPorts: true,
				SrcPort: uint16(r.pick(32767, 32768, 50000)), DstPort: uint16(r.pick(53, 443)),
			}
		}
		frame := func(t key.Tuple) []byte {
			f := packet.Frame(t)
			if at := len(f) - 20 + 13; t.Proto == 6 {
				f[at] = byte(r.pick(0x02, 0x02, 0x10, 0x12, 0x11, 0x14, 0x18, 0x04, 0x03, r.IntN(256)))
			}
			if r.IntN(8) == 0 {
				f = r.mutate(f)
			}
			return f[:min(len(f), tcPage)]
		}
		for n := range 2000 {
			tuple := tuples[r.IntN(len(tuples))]
			switch r.IntN(5) {
			case 0:
				o, err := agree(out, outKernel, frame(tuple))
				if err != nil {
					t.Fatalf("outgoing: %v", err)
				}
				seen["out/"+o.Reason.String()]++
			case 1: // time passes
				for c, s := range twin.Open {
					if r.IntN(4) > 0 {
						continue
					}
					// An hour and three ago, if the host has run for so long.
					s.Until = max(1, loader.Monotonic()+time.Duration(r.pick(-2, 1, 2, -6))*time.Hour/2)
					if err := known.Put(connectionIn(c), connections.State{Until: uint64(s.Until), Closing: flagOf(s.Closing)}); err != nil {
						t.Fatal(err)
					}
					twin.Open[c] = s
				}
			default:
				tuple.Src, tuple.Dst, tuple.SrcPort, tuple.DstPort = tuple.Dst, tuple.Src, tuple.DstPort, tuple.SrcPort
				f := frame(tuple)
				o, err := agree(in, kernel, f)
				if err == nil {
					_, err = agree(in, tcKernel, f)
				}
				if err != nil {
					t.Fatalf("incoming: %v: % x", err, f)
				}
				seen["in/"+o.Reason.String()]++
			}
			if n%50 == 0 {
				if err := sameConnections(known, twin.Open); err != nil {
					t.Fatal(err)
				}
			}
		}
		round.end()
	}
	t.Log(seen)
	for _, reason := range missing() {
		t.Errorf("no packet left as %s: the test is too narrow", reason)
	}
}

// What the host answers to spoofed sources opens no connection, or, where it could be what a
// client sends, evicts none of the host's own.
func TestRepliesToSpoofedSources(t *testing.T) {
	lab.Root(t)
	const room = 1 << 10
	known, err := connections.NewKnown(room)
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	c := engine.Config{Shared: known.Shared, Parts: []engine.Part{&connections.RepliesPart{Replies: &conntrack.Replies{
		Opening: time.Hour, Established: time.Hour, UDP: time.Hour, Ephemeral: 32768, Now: loader.Monotonic,
	}}}}
	out := tcEntries(t, nil, c, "out")[0]
	host := netip.MustParseAddr("192.0.2.1")
	leaves := func(proto uint8, to netip.Addr, from, port uint16, flags byte) {
		t.Helper()
		f := packet.Frame(key.Tuple{Src: host, Dst: to, Proto: proto, HasPorts: from != 0, SrcPort: from, DstPort: port})
		if proto == 6 {
			f[len(f)-20+13] = flags
		}
		if _, err := out.Kernel.Decide(f); err != nil {
			t.Fatal(err)
		}
	}
	own := netip.MustParseAddr("198.51.100.1")
	ownAddress := connectionIn(conntrack.Connection{Local: netip.AddrPortFrom(host, 0), Remote: netip.AddrPortFrom(own, 0)}).Remote
	count := func() (all, kept int) {
		t.Helper()
		if err := known.All(func(c connections.Connection, _ connections.State) error {
			all++
			if c.Remote == ownAddress {
				kept++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all, kept
	}
	spoofed := netip.MustParseAddr("203.0.113.1")
	leaves(6, spoofed, 50000, 443, 0x12) // SYN and ACK
	leaves(6, spoofed, 50000, 443, 0x14) // RST and ACK
	leaves(1, spoofed, 0, 0, 0)
	leaves(17, spoofed, 53, 50000, 0)
	if all, _ := count(); all != 0 {
		t.Fatalf("answers have opened %d connections", all)
	}

	for port := range uint16(100) {
		leaves(6, own, 40000+port, 443, 0x02)
		// As a socket with a remote address sends, which packets of test runs have not.
		connected := conntrack.Connection{Local: netip.AddrPortFrom(host, 40000+port), Remote: netip.AddrPortFrom(own, 53), Proto: 17}
		if err := known.Put(connectionIn(connected), connections.State{Until: math.MaxUint64}); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 * room { // a server at an ephemeral port
		if spoofed = spoofed.Next(); spoofed == own {
			continue
		}
		leaves(17, spoofed, 51820, 9, 0)
	}
	all, kept := count()
	t.Logf("%d connections, %d of the host's own", all, kept)
	if kept != 200 {
		t.Errorf("%d of 200 connections are left", kept)
	}
	if all < 200+room/8 || all > 200+room/2 {
		t.Errorf("%d connections of a server's socket, of some %d", all-kept, room/4)
	}
}

func flagOf(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// The alternative of exact memory are two generations of a Bloom filter, which take less of it,
// and let a share of all packets from listed sources pass.
func TestRepliesInBloomFilters(t *testing.T) {
	lab.Root(t)
	const known, probes = 1 << 16, 1 << 19
	exact, err := connections.NewKnown(known)
	if err != nil {
		t.Fatal(err)
	}
	defer exact.Close()
	if n := exact.Bytes() / known; n > 0 && (n < 100 || n > 250) { // old kernels do not say
		t.Errorf("%d bytes a connection, where the documentation says 128", n)
	}
	t.Logf("exact: %d bytes for %d connections, no false passes", exact.Bytes(), known)
	r := newRandom(t)
	for _, lines := range []uint32{known / 128, known / 64, known / 32, known / 16} { // 4 to 32 bits a connection and generation
		var generations [2]*blocked.Filter
		for i := range generations {
			generations[i] = blocked.New(blocked.Geometry{Lines: lines, Bits: recent.Bits})
			for range known {
				generations[i].Observe(r.Uint64())
			}
		}
		passes := 0
		for range probes {
			if h := r.Uint64(); generations[0].Contains(h) || generations[1].Contains(h) {
				passes++
			}
		}
		got, want := float64(passes)/probes, recent.FalsePositive(lines, known, known)
		t.Logf("Bloom filters: %d bytes, false passes %.3g, predicted %.3g", 2*64*lines, got, want)
		if math.Abs(got-want) > want/10+1e-4 {
			t.Errorf("%d lines: %.3g of unsolicited packets pass, predicted is %.3g", lines, got, want)
		}
	}
}
