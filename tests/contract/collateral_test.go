package contract

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/replay"
	"weir/control/stage/connections"
	"weir/control/stage/sampler"
	"weir/filter/conntrack"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// newRecord returns what programs need that record conversations, with room for a number of
// connections and of addresses, and the twins of both.
func newRecord(t testing.TB, room, sources int, drop bool) (*loader.Shared, *conntrack.Replies, *conntrack.Collateral, []engine.Part) {
	t.Helper()
	entries := connections.Maps(room)
	maps.Copy(entries, connections.CollateralMaps(sources))
	s, err := loader.NewShared(entries)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	known := &conntrack.Replies{
		Opening: time.Hour, Established: 3 * time.Hour, UDP: 2 * time.Hour, Ephemeral: 32768, Now: loader.Monotonic, Drop: drop,
		Open: make(map[conntrack.Connection]conntrack.ConnectionState),
	}
	measured := connections.NewCollateralTwin()
	return s, known, measured, []engine.Part{&connections.RepliesPart{Replies: known}, &connections.CollateralPart{Collateral: measured}}
}

// sameStates compares the connections in a map with those that the reference has.
func sameStates(s *loader.Shared, want map[conntrack.Connection]conntrack.ConnectionState, names ...string) error {
	left := make(map[connections.Connection]conntrack.ConnectionState)
	for c, s := range want {
		left[connectionIn(c)] = s
	}
	var c connections.Connection
	var got connections.State
	for _, name := range names {
		if err := s.Each(name, &c, &got, func() error {
			w, ok := left[c]
			delete(left, c)
			apart := time.Duration(got.Until) - w.Until
			if !ok || (got.Closing != 0) != w.Closing || (got.Answered != 0) != w.Answered || got.Expected != w.Expected || apart.Abs() > 10*time.Minute {
				return fmt.Errorf("%s: the program has %+v as %+v, the reference %+v (%v)", name, c, got, w, ok)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%s: the program does not have %+v", names[0], left)
	}
	return nil
}

// sameRecord compares what both sides have recorded.
func sameRecord(s *loader.Shared, want map[conntrack.Partner]conntrack.Conversation) error {
	record := connections.Record{Shared: s}
	all, err := record.Partners()
	if err != nil {
		return err
	}
	if len(all) != len(want) {
		return fmt.Errorf("the program has recorded %d partners, the reference %d: %+v, %+v", len(all), len(want), all, want)
	}
	for p, got := range all {
		w, ok := want[p]
		if !ok || got.How != w.How || (got.First-w.First).Abs() > time.Minute || (got.Last-w.Last).Abs() > time.Minute {
			return fmt.Errorf("the program has recorded %v as %+v, the reference %+v (%v)", p, got, w, ok)
		}
	}
	return nil
}

// Both sides record the same conversations, on every way through the programs.
func TestCollateral(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r := newRandom(t)
	seen := map[string]int{}
	missing := func() (all []string) {
		for _, what := range []string{"in/1", "in/2", "in/4", "out/1", "out/4", "would-block", "reply", "blocked",
			"sampled 6 1", "sampled 6 2", "sampled 17 0", "sampled 17 1", "sampled 17 2"} {
			if seen[what] == 0 {
				all = append(all, what)
			}
		}
		return all
	}
	for i := range 40 {
		if i >= 4 && len(missing()) == 0 {
			break
		}
		c := r.config(i)
		c.Monitor = i%8 == 3
		lean := i%4 == 2
		c.Inner = c.Inner && !lean
		var known *conntrack.Replies
		var measured *conntrack.Collateral
		round := newRound(t)
		c.Shared, known, measured, c.Parts = newRecord(round, 1<<14, 1<<14, i%2 == 0)
		part := new(sampler.Part)
		c.Parts = append(c.Parts, part)
		if n := c.Shared.Bytes() / (1 << 14); n > 0 && (n < 350 || n > 450) { // old kernels do not say
			t.Errorf("%d bytes for 1.25 connections, another and an address, where the documentation says 400", n)
		}
		var lists []engine.List
		for j := range 3 {
			entries := r.entries([]int{100, 30, 3}[j])
			if lean {
				entries.Flows = nil
			}
			l := engine.List{
				Name: fmt.Sprint(j), Allow: j == 2, Direction: []engine.Direction{engine.Source, engine.Out, engine.Destination}[j], Contents: entries.Set(),
			}
			if i%4 < 2 && j < 2 {
				c.Mode, l.Rule = 0, &verdict.Rule{Trial: true}
			}
			lists = append(lists, l)
		}
		entries := tcEntries(round, lists, c, "in", "out")
		in, tcKernel := entries[0].Generation, entries[0].Kernel
		out, outKernel := entries[1].Generation, entries[1].Kernel
		if why := append(in.General(), out.General()...); lean && len(why) > 0 {
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
				Src: r.addr(v6), Dst: r.addr(v6), Proto: uint8(r.pick(6, 6, 6, 17, 132)), HasPorts: true,
				SrcPort: uint16(r.pick(80, 32768, 50000)), DstPort: uint16(r.pick(53, 443)),
			}
		}
		frame := func(t key.Tuple) []byte {
			f := packet.Frame(t)
			if t.Proto == 6 {
				tcp := f[len(f)-20:]
				binary.BigEndian.PutUint32(tcp[4:], uint32(r.pick(1, 2, 0xffffffff)))
				binary.BigEndian.PutUint32(tcp[8:], uint32(r.pick(0, 1, 2, 3)))
				tcp[12] = byte(r.pick(0x50, 0x50, 0x60, 0xf0))
				tcp[13] = byte(r.pick(0x02, 0x02, 0x10, 0x10, 0x12, 0x12, 0x11, 0x14, 0x18, 0x04, 0x03, r.IntN(256)))
				if r.IntN(2) == 0 { // data
					f = append(f, 1, 2, 3, 4)
					length := f[16:18]
					if f[12] == 0x86 {
						length = f[18:20]
					}
					binary.BigEndian.PutUint16(length, binary.BigEndian.Uint16(length)+4)
				}
			}
			if r.IntN(8) == 0 {
				f = r.mutate(f)
			}
			return f[:min(len(f), tcPage)]
		}
		compare := func() error {
			if err := sameStates(c.Shared, known.Open, bpf.WeirMapConnections, bpf.WeirMapUnconnected); err != nil {
				return err
			}
			if err := sameStates(c.Shared, measured.Accepted, bpf.WeirMapAccepted); err != nil {
				return err
			}
			return sameRecord(c.Shared, measured.Partners)
		}
		for n := range 2000 {
			tuple := tuples[r.IntN(len(tuples))]
			switch r.IntN(6) {
			case 0, 1:
				o, err := agree(out, outKernel, frame(tuple))
				if err != nil {
					t.Fatalf("outgoing: %v", err)
				}
				seen[o.Reason.String()]++
			case 2: // time passes, or a connected socket sends
				connected := conntrack.Connection{Local: netip.AddrPortFrom(tuple.Src, tuple.SrcPort), Remote: netip.AddrPortFrom(tuple.Dst, tuple.DstPort), Proto: 17}
				if s, ok := known.Open[connected]; tuple.Proto == 17 && (!ok || s.Connected) && r.IntN(2) == 0 {
					known.Open[connected] = conntrack.ConnectionState{Until: loader.Monotonic() + time.Hour, Connected: true}
				}
				for name, all := range map[string]map[conntrack.Connection]conntrack.ConnectionState{bpf.WeirMapConnections: known.Open, bpf.WeirMapAccepted: measured.Accepted} {
					for c2, s := range all {
						at := name
						if c2.Proto == 17 && !s.Connected {
							at = bpf.WeirMapUnconnected
						}
						if r.IntN(8) == 0 {
							s.Until = max(1, loader.Monotonic()+time.Duration(r.pick(-2, 1, 2, -6))*time.Hour/2)
						}
						all[c2] = s
						k, v := connectionIn(c2), connections.State{Until: uint64(s.Until), Closing: flagOf(s.Closing), Answered: flagOf(s.Answered), Expected: s.Expected}
						if err := c.Shared.Put(at, &k, &v, ebpf.UpdateAny); err != nil {
							t.Fatal(err)
						}
					}
				}
			default:
				tuple.Src, tuple.Dst, tuple.SrcPort, tuple.DstPort = tuple.Dst, tuple.Src, tuple.DstPort, tuple.SrcPort
				f := frame(tuple)
				sampled(part)
				o, err := agree(in, kernel, f)
				if err == nil {
					_, err = agree(in, tcKernel, f)
				}
				var want flood.Conversing
				p, _ := packet.Parse(f)
				if is, ok := measured.Conversing(known, f, p); ok && is {
					want = flood.Conversant
				} else if ok {
					want = flood.Stranger
				}
				for _, r := range sampled(part) {
					if seen[fmt.Sprint("sampled ", p.Proto, " ", want)]++; r.Conversing != want {
						t.Fatalf("a sampled packet is %v, the reference says %v: % x", r.Conversing, want, f)
					}
				}
				if err != nil {
					t.Fatalf("incoming: %v: % x", err, f)
				}
				seen[o.Reason.String()]++
			}
			if n%20 == 0 {
				if err := compare(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for p, of := range measured.Partners {
			for _, how := range []conntrack.How{conntrack.OpenedTCP, conntrack.OpenedUDP, conntrack.AcceptedTCP} {
				if of.How&how != 0 {
					seen[fmt.Sprintf("%s/%d", map[bool]string{false: "in", true: "out"}[p.Out], how)]++
				}
			}
		}
		round.end()
	}
	t.Log(seen)
	for _, what := range missing() {
		t.Errorf("there was no %s: the test is too narrow", what)
	}
}
