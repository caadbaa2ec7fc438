package contract

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	recorder "weir/control/stage/digest"
	"weir/control/stage/tracker"
	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
)

// leanLists returns lists that leave the lean path to IPv4 packets, and in part to those of
// IPv6: of IPv4 they have addresses, prefixes, of many lengths at times, and one or two kinds of flows, of
// IPv6 a few lengths and kinds, or anything. What the allow list has may be anything.
func (r random) leanLists(mode membership.Mode, directions ...engine.Direction) (lists []engine.List) {
	few, many, kinds := r.IntN(3) > 0, r.IntN(2) == 0, 1+r.IntN(2)
	lengths := []int{64, 128}[r.IntN(2):]
	for i := range 4 {
		e := r.entries(r.pick(0, 5, 100, 1000))
		if few && i < 3 {
			e.V6 = slices.DeleteFunc(e.V6, func(p netip.Prefix) bool { return !slices.Contains(lengths, p.Bits()) })
		}
		if mode == membership.Approximate && i < 3 {
			e.V4 = slices.DeleteFunc(e.V4, func(p list.V4Prefix) bool { return p.Bits() != 24 && p.Bits() != 32 })
		}
		switch i {
		case 0:
			flows := e.Flows
			e.Flows = ofKinds(flows, kinds)
			if !few {
				e.Flows = append(e.Flows, slices.DeleteFunc(flows, func(k key.Key) bool { return !k.Shape.V6() })...)
			}
		case 1, 2: // too many kinds of flows otherwise
			e.Flows = nil
		}
		if i == 2 && mode == membership.Exact && many {
			for bits := 9; bits < 32; bits++ { // of private addresses, or next to those of packets
				private := netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})
				e.V4 = append(e.V4, list.V4Of(netip.PrefixFrom(private, bits).Masked()))
				if bits > 24 {
					e.V4 = append(e.V4, list.V4Of(netip.PrefixFrom(r.addr4(), bits).Masked()))
				}
			}
		}
		lists = append(lists, engine.List{Name: string(rune('a' + i)), Allow: i == 3, Direction: directions[r.IntN(len(directions))], Contents: e.Set()})
	}
	return lists
}

// ofKinds returns the flows of the first n kinds of each family.
func ofKinds(flows []key.Key, n int) (of []key.Key) {
	kinds := map[bool][]key.Shape{}
	for _, k := range flows {
		v6 := k.Shape.V6()
		if !slices.Contains(kinds[v6], k.Shape) {
			if len(kinds[v6]) == n || !k.Shape.Tuple() {
				continue
			}
			kinds[v6] = append(kinds[v6], k.Shape)
		}
		of = append(of, k)
	}
	return of
}

// packetOnLeanPath returns a frame of which most are plain or have a VLAN tag, and some are not in
// one respect.
func (r random) packetOnLeanPath() []byte {
	f := r.untaggedOnLeanPath()
	for r.IntN(3) == 0 && len(f) >= 12 {
		protocol := r.pick(0x8100, 0x8100, 0x88a8, 0x9100)
		f = slices.Insert(f, 12, byte(protocol>>8), byte(protocol), byte(r.IntN(256)), byte(r.IntN(4)))
	}
	return f
}

func (r random) untaggedOnLeanPath() []byte {
	t := r.tuple()
	for r.IntN(2) > 0 && !t.Src.Is4() {
		t = r.tuple()
	}
	f := packet.Frame(t)
	if r.IntN(2) == 0 { // padding, or bytes that no header counts
		f = append(f, make([]byte, r.pick(1, 6, 40, 1500, 3000))...)
	}
	if r.IntN(3) > 0 || len(f) < 42 {
		return f
	}
	if !t.Src.Is4() {
		return r.notQuiteLeanV6(f)
	}
	switch r.IntN(5) {
	case 0: // a fragment
		f[20], f[21] = byte(r.pick(0x20, 0x40, 0x60, 0x80, 0)), byte(r.pick(0, 0, 1))
	case 1: // lengths, options
		f[14+r.pick(0, 2, 3)] = byte(r.IntN(256))
	case 2: // aggregated beyond 64 KiB
		f[16], f[17] = 0, 0
	case 3:
		return f[:r.IntN(len(f)+1)]
	case 4:
		return r.mutate(f)
	}
	return f
}

// notQuiteLeanV6 changes a frame of IPv6 in a respect that the lean path looks at.
func (r random) notQuiteLeanV6(f []byte) []byte {
	const next, transport = 20, 54
	switch r.IntN(5) {
	case 0: // extension headers, and transports that the lean path leaves out
		f[next] = byte(r.pick(0, 1, 17, 43, 44, 58, 60, 132, 255))
	case 1: // neighbour discovery and its neighbours
		f = append(f[:min(len(f), transport)], make([]byte, 60)...)
		f[next], f[next+1] = 58, byte(r.pick(64, 255, 255))
		f[18], f[19] = 0, byte(r.pick(7, 8, 16, 24, 40, 60))
		f[transport] = byte(r.pick(128, 132, 133, 134, 135, 136, 137, 138))
	case 2: // lengths, version
		f[14+r.pick(0, 1, 4, 5)] = byte(r.pick(0, 7, 8, r.IntN(256)))
	case 3:
		return f[:r.IntN(len(f)+1)]
	case 4:
		return r.mutate(f)
	}
	return f
}

// byPenalty are the reasons for which a packet with a penalty leaves.
var byPenalty = []verdict.Reason{verdict.Heavy, verdict.WouldBlock, verdict.Allowed}

// kernelOf has the state that a program of a generation leaves behind.
type kernelOf struct {
	*engine.Generation
	stats  *loader.Stats
	events []loader.Event
}

func (k *kernelOf) trackers(t *testing.T) *tracker.Memory {
	t.Helper()
	n, err := tracker.Open(k.Generation, k.stats)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// punish blocks the flows of one of the four networks that packets come from.
func (k *kernelOf) punish(t *testing.T) {
	t.Helper()
	n, tr := k.trackers(t), tracker.Of(k.Generation)[0]
	defer n.Close()
	table, err := penalty.NewTable(n.Penalties)
	if err != nil {
		t.Fatal(err)
	}
	flow := tr.Hash(tr.Key(key.Tuple{Src: netip.MustParseAddr("192.0.3.0")}))
	table.Set(flow, penalty.Penalty{Until: loader.Monotonic() + time.Hour})
	n.SetPenalized(table.Len())
}

// admit has the cold filters count most packets.
func (k *kernelOf) admit(t *testing.T) {
	t.Helper()
	if len(tracker.Of(k.Generation)) == 0 {
		return
	}
	n := k.trackers(t)
	defer n.Close()
	for i := range tracker.Of(k.Generation) {
		for _, b := range n.Banks(i, n.Active(i)) {
			b.Admit(20_000, 0)
		}
	}
}

// sameBanks compares all that trackers have counted.
func (k *kernelOf) sameBanks(t *testing.T, other *kernelOf) {
	t.Helper()
	if len(tracker.Of(k.Generation)) == 0 {
		return
	}
	a, b := k.trackers(t), other.trackers(t)
	defer a.Close()
	defer b.Close()
	for i, tr := range tracker.Of(k.Generation) {
		for cpu := range a.CPUs {
			for bank := range 2 {
				a.Banks(i, bank)[cpu].Begin(0) // they were made one after the other
				b.Banks(i, bank)[cpu].Begin(0)
				lines, flows := a.Bank(i, cpu, bank)
				otherLines, otherFlows := b.Bank(i, cpu, bank)
				compareWords(t, "lines of a tracker", lines, otherLines)
				compareWords(t, "flows of a tracker", flows, otherFlows)
			}
		}
		if a.Banks(i, a.Active(i))[0].Packets() == 0 && !tr.Dropped {
			t.Errorf("tracker %d has counted nothing", i)
		}
	}
}

// sameSecret has programs with memories of their own record by the same secret.
type sameSecret struct{ *recorder.Part }

func (p sameSecret) Constants(t netif.Target, _ loader.Seed) map[string]any {
	return p.Part.Constants(t, loader.Seed{1})
}

// sameDigests compares all that was recorded of packets that passed, and returns how many
// did.
func (k *kernelOf) sameDigests(t *testing.T, digests *recorder.Part, other *kernelOf) (recorded uint64) {
	t.Helper()
	var a, b *recorder.Memory
	digests.Read(k.stats, func(m *recorder.Memory) { a = m })
	digests.Read(other.stats, func(m *recorder.Memory) { b = m })
	if a == nil || b == nil {
		t.Fatal("a program has no memory of its digests")
	}
	for cpu := range loader.CPUs() {
		bank, words := a.Bank(cpu, a.Active())
		otherBank, otherWords := b.Bank(cpu, b.Active())
		if *bank != *otherBank {
			t.Errorf("digests of CPU %d: lean %+v, general %+v", cpu, *bank, *otherBank)
		}
		compareWords(t, "a filter of digests", words, otherWords)
		recorded += bank.Packets
	}
	return recorded
}

// sameEvent compares what an event says about a packet. Words of a packet that mean
// nothing may be left from earlier ones.
func sameEvent(a, b loader.Event) bool {
	p, q := &a.Packet, &b.Packet
	if p.Len != q.Len || p.Reason != q.Reason || p.Family != q.Family || !slices.Equal(a.Frame, b.Frame) {
		return false
	}
	return p.Family == 0 || engine.TupleOf(p) == engine.TupleOf(q) && p.List == q.List && p.Plain == q.Plain && p.Punished == q.Punished &&
		p.Network == q.Network && p.Encapsulated == q.Encapsulated && p.Loop == q.Loop && p.Exempt == q.Exempt
}

// The lean path answers, counts and reports as the general one does, and as the reference.
func TestLeanPath(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	r := newRandom(t)
	small := sketch.Geometry{Lines: 100, Cold: 32, Buckets: 9}
	seen := map[verdict.Reason]int{}
	var recorded uint64
	ways := map[string]int{ // of lookups
		"a directory": 0, "flows of IPv4, 1": 0, "flows of IPv4, 2": 0, "flows of IPv6, 1": 0, "flows of IPv6, 2": 0,
	}
	missing := func() (all []string) {
		for way, n := range ways {
			if n == 0 {
				all = append(all, way)
			}
		}
		return all
	}
	for i := range 96 {
		if i >= 16 && seen[verdict.Heavy] > 0 && missing() == nil { // which depends on what r lists
			break
		}
		c := r.config(2 * i) // exact
		if i%3 == 1 {
			c = r.config(2*i + 1)
			c.BitsPerKey, c.Hot = 64, r.pick(0, 100) // without false positives, under whichever secret
		}
		c.Inner = false // which takes the general path
		c.Seed, c.NearCache = hash.NewSeed(), r.machine(t, i).near
		switch i % 4 {
		case 1:
			c.Parts = append(c.Parts, &tracker.Part{In: trackersOfAllKinds()[:1]})
		case 2:
			c.Parts = append(c.Parts, &tracker.Part{In: []tracker.Counting{{Tracker: sketch.Tracker{
				V4: key.Shape{SrcBits: 24}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 48}, Unit: sketch.Bytes, Geometry: small,
			}, Punishes: true, Unexempt: true}}})
			c.Monitor = false // some are dropped for it
		case 3:
			all := trackersOfAllKinds()
			all[2].Punishes = true
			c.Parts = append(c.Parts, &tracker.Part{In: []tracker.Counting{all[2], all[4]}})
		}
		records := i%3 == 0
		digests := &recorder.Part{Filter: blocked.Geometry{Lines: 300, Bits: 5}}
		if records {
			c.Parts = append(c.Parts, sameSecret{digests})
		}
		lists := r.leanLists(c.Mode, engine.Source, engine.Source, engine.Destination, engine.Both)
		round := newRound(t)
		lean, kernel := engines(round, lists, c)
		if why := lean.General(); why != nil {
			t.Fatalf("general path: %v", why)
		}
		if lean.Block.Directory.Bits > 0 {
			ways["a directory"]++
		}
		if n := len(lean.Block.V4Flow); n > 0 {
			ways[fmt.Sprint("flows of IPv4, ", n)]++
		}
		if n := len(lean.Block.V6Flow); n > 0 && n+len(lean.Block.V6) <= 4 {
			ways[fmt.Sprint("flows of IPv6, ", n)]++
		}
		c.NoLean = true
		general, other := engines(round, lists, c)
		if why := general.General(); len(why) != 1 {
			t.Fatalf("lean path, or more reasons than one against it: %q", why)
		}
		kernels := []*kernelOf{{Generation: lean, stats: kernel.Stats()}, {Generation: general, stats: other.Stats()}}
		for _, k := range kernels {
			if i/4%2 == 0 { // what has no event may leave by a shorter way
				k.stats.Sample(everything(1))
			}
			if i%4 == 2 {
				k.punish(t)
			}
			if i/4%2 == 1 {
				k.admit(t)
			}
		}
		split := kernel.DecideSplit
		_, noSplit := split(make([]byte, 60), 14)
		if _, err := other.DecideSplit(make([]byte, 60), 14); (err == nil) != (noSplit == nil) {
			t.Fatal(err, noSplit)
		}
		for range 1000 {
			frame := r.packetOnLeanPath()
			first := len(frame)
			if noSplit == nil && r.IntN(3) == 0 {
				first = r.IntN(min(len(frame), r.pick(60, 120, 4000)) + 1)
			}
			decide := func(k interface {
				Decide([]byte) (verdict.Outcome, error)
				DecideSplit([]byte, int) (verdict.Outcome, error)
			}) (verdict.Outcome, error) {
				if first == len(frame) {
					return k.Decide(frame)
				}
				return k.DecideSplit(frame, first)
			}
			got, err := decide(kernel)
			if err != nil {
				t.Fatalf("%d bytes in the first buffer: %v: % x", first, err, frame)
			}
			beside, err := decide(other)
			if err != nil || got != beside {
				t.Fatalf("%d bytes in the first buffer: lean %+v, general %+v, %v: % x", first, got, beside, err, frame)
			}
			// The reference has no penalties.
			if want := lean.Decide(frame); got != want && (i%4 != 2 || !slices.Contains(byPenalty, got.Reason)) {
				t.Fatalf("%d bytes in the first buffer: kernel %+v, reference %+v: % x", first, got, want, frame)
			}
			seen[got.Reason]++
			for _, k := range kernels {
				k.events = drain(t, k.stats)
			}
			if !slices.EqualFunc(kernels[0].events, kernels[1].events, sameEvent) {
				t.Fatalf("events: lean %+v, general %+v: % x", kernels[0].events, kernels[1].events, frame)
			}
		}
		kernels[0].sameBanks(t, kernels[1])
		if records {
			recorded += kernels[0].sameDigests(t, digests, kernels[1])
		}
		round.end()
	}
	t.Log(seen, recorded, ways)
	if all := missing(); all != nil {
		t.Errorf("no set has %q: the test is too narrow", all)
	}
	if recorded == 0 {
		t.Error("no digest was recorded")
	}
	for _, reason := range []verdict.Reason{
		verdict.Clean, verdict.Blocked, verdict.Allowed, verdict.WouldBlock, verdict.Failsafe, verdict.DHCP,
		verdict.Truncated, verdict.Malformed, verdict.Heavy,
	} {
		if seen[reason] == 0 {
			t.Errorf("no packet left as %v: the test is too narrow", reason)
		}
	}
}
