package contract

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/control/stage/tracker"
	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// onOneCPU keeps the test, and the programs that it runs, on one CPU.
func onOneCPU(t testing.TB) {
	t.Helper()
	release, err := loader.StayOnCPU()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
}

// trackersOfAllKinds are small, so that their memories fill up.
func trackersOfAllKinds() []tracker.Counting {
	const v6 = key.FieldV6
	const flow = key.FieldSrcPort | key.FieldDstPort | key.FieldProto
	small := sketch.Geometry{Lines: 100, Buckets: 9}
	cold := sketch.Geometry{Lines: 100, Cold: 32, Buckets: 9}
	return []tracker.Counting{
		{Tracker: sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: v6, SrcBits: 128}, Unit: sketch.Packets, Geometry: cold}},
		{Tracker: sketch.Tracker{V4: key.Shape{DstBits: 24}, V6: key.Shape{Fields: v6, DstBits: 48}, Unit: sketch.Bytes, Geometry: cold}},
		{Tracker: sketch.Tracker{V4: key.Shape{Fields: flow, SrcBits: 32, DstBits: 32},
			V6: key.Shape{Fields: flow | v6, SrcBits: 128, DstBits: 128}, Unit: sketch.Packets, Geometry: sketch.Geometry{Lines: 4096, Cold: 1024, Buckets: 64}}},
		{Tracker: sketch.Tracker{V4: key.Shape{Fields: flow, SrcBits: 32, DstBits: 32},
			V6: key.Shape{Fields: flow | v6, SrcBits: 128, DstBits: 128}, Unit: sketch.Bytes, Geometry: small}, Unexempt: true},
		{Tracker: sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: v6, SrcBits: 128}, Unit: sketch.Packets, Geometry: small, Dropped: true}},
	}
}

// counters are the kernel's trackers and, in Go, their twins.
type counters struct {
	generation *engine.Generation
	stats      *loader.Stats
	program    *loader.Program
	twins      [][2]twin
	oracle     verdict.Program // counts in the twins of the active banks
}

// twin is a bank on the heap.
type twin struct {
	*sketch.Bank
	lines, flows []uint64
	pairs        *blocked.Filter // nil: it is no scan detector's
}

func newCounters(t testing.TB, trackers []tracker.Counting) *counters {
	t.Helper()
	return newFiltering(t, nil, verdict.Policy{}, trackers)
}

// newFiltering returns counters of programs that may also drop packets.
func newFiltering(t testing.TB, lists []engine.List, policy verdict.Policy, trackers []tracker.Counting) *counters {
	t.Helper()
	seed.Secrets(t)
	config := engine.Config{Policy: policy, Parts: []engine.Part{&tracker.Part{In: trackers}}, Seed: hash.NewSeed()}
	c := &counters{}
	var err error
	if c.generation, err = engine.Build(lists, config); err != nil {
		t.Fatal(err)
	}
	c.oracle = c.generation.Program
	t.Cleanup(func() { c.generation.Close() })
	if c.stats, err = loader.NewStats(len(lists)); err != nil {
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
	for _, tr := range tracker.Of(c.generation) {
		var twins [2]twin
		for i := range twins {
			w := &twins[i]
			w.lines, w.flows = make([]uint64, tr.LineWords()), make([]uint64, tr.FlowWords())
			if w.Bank, err = sketch.NewBank(tr.Tracker, w.lines, w.flows); err != nil {
				t.Fatal(err)
			}
			if tr.Pairs != nil {
				w.pairs = blocked.New(tr.Pairs.Geometry())
			}
		}
		c.twins = append(c.twins, twins)
	}
	c.watch(t, func(n *tracker.Memory) {
		for i := range c.twins {
			for bank := range c.twins[i] {
				c.twins[i][bank].Begin(n.Banks(i, bank)[0].Began())
			}
		}
	})
	c.follow(t)
	return c
}

// follow lets the oracle count in the banks in which the kernel counts.
func (c *counters) follow(t testing.TB) {
	t.Helper()
	p := &verdict.Trackers{Penalties: make([]*penalty.Table, len(c.twins))}
	c.watch(t, func(n *tracker.Memory) {
		for i, tr := range tracker.Of(c.generation) {
			b := c.twins[i][n.Active(i)]
			if tr.Dropped {
				p.Drops = b.Bank
				continue
			}
			p.Banks, p.Unexempt = append(p.Banks, b.Bank), append(p.Unexempt, tr.Unexempt)
			var guard *verdict.ScanDetector
			if tr.Pairs != nil {
				guard = &verdict.ScanDetector{V4: tr.Pairs.V4, V6: tr.Pairs.V6, Secret: tr.Secret, Ephemeral: tr.Pairs.Ephemeral, Sources: tr.V4.SrcBits > 0, Pairs: b.pairs}
			}
			p.Detectors = append(p.Detectors, guard)
		}
	})
	c.oracle.Tracked = p
}

// watch calls fn with the kernel's trackers.
func (c *counters) watch(t testing.TB, fn func(*tracker.Memory)) {
	t.Helper()
	n, err := tracker.Open(c.generation, c.stats)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	fn(n)
}

// same compares the banks in which packets are counted word by word.
func (c *counters) same(t *testing.T) {
	t.Helper()
	c.watch(t, func(n *tracker.Memory) {
		for i, tr := range tracker.Of(c.generation) {
			bank := n.Active(i)
			lines, flows := n.Bank(i, 0, bank)
			twin := c.twins[i][bank]
			compareWords(t, fmt.Sprintf("lines of tracker %d", i), lines, twin.lines)
			compareWords(t, fmt.Sprintf("flows of tracker %d", i), flows, twin.flows)
			if twin.pairs != nil {
				compareWords(t, fmt.Sprintf("pairs of tracker %d", i), n.PairWords(i, bank), twin.pairs.Words())
				t.Logf("the pairs fill %.3f of their bits", twin.pairs.FillRatio())
			}
			in := 0
			for range twin.Flows() {
				in++
			}
			t.Logf("%v in %v: %d packets, %d bytes, %d flows in memory, %d packets denied",
				tr.V4, tr.Unit, twin.Packets(), twin.Bytes(), in, twin.Denied())
			if (twin.Packets() == 0 || in == 0 && tr.Pairs == nil) && (!tr.Dropped || c.oracle.DropMalformed) {
				t.Errorf("tracker %d has counted nothing", i)
			}
		}
	})
}

func compareWords(t *testing.T, what string, kernel, twin []uint64) {
	t.Helper()
	for i := range max(len(kernel), len(twin)) {
		if kernel[i] != twin[i] {
			t.Fatalf("%s: word %d of %d is %#x in the kernel, %#x in Go", what, i, len(twin), kernel[i], twin[i])
		}
	}
}

// next begins an interval in both, as the control plane does.
func (c *counters) next(t *testing.T, heavy uint64, share float64) {
	t.Helper()
	c.watch(t, func(n *tracker.Memory) {
		for i, tr := range tracker.Of(c.generation) {
			bank := n.Active(i)
			for _, b := range [...]struct{ now, next *sketch.Bank }{
				{n.Banks(i, bank)[0], n.Banks(i, 1-bank)[0]},
				{c.twins[i][bank].Bank, c.twins[i][1-bank].Bank},
			} {
				b.next.Reset()
				b.next.Admit(heavy/2, share/2)
				if share == 0 {
					b.next.SetSpare(heavy / 8)
				}
				for f := range b.now.Flows() {
					if f.Lasts(tr.Unit, heavy) {
						b.next.Keep(f)
					}
				}
			}
			if p := n.Pairs(i, 1-bank); p != nil {
				p.Clear()
				c.twins[i][1-bank].pairs.Clear()
			}
			n.Exchange(i)
		}
	})
	c.follow(t)
}

func (c *counters) count(t *testing.T, data []byte) {
	data = data[:min(len(data), 2048)] // what every kernel takes
	if len(data) < 14 {
		return
	}
	if _, err := c.program.Test(data); err != nil {
		t.Fatal(err)
	}
	c.oracle.Decide(data)
}

// The kernel's counters equal the twin's in Go, word for word, over all
// captures and several intervals.
func TestTrackersOverCaptures(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	onOneCPU(t)
	traffic := frames(t)
	blocked := []engine.List{{Name: "empty", Contents: list.SetOf()}, {Name: "some", Contents: someSources(traffic)}}
	for _, policy := range []verdict.Policy{
		{DropMalformed: true, FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}, {Proto: 17, Port: 53}}},
		{DropMalformed: true, Monitor: true},
	} {
		testTrackers(t, newFiltering(t, blocked, policy, trackersOfAllKinds()), traffic)
	}
}

// someSources returns a quarter of the sources.
func someSources(traffic []frame) *list.Set {
	var some []key.Key
	for _, f := range traffic {
		p, _ := packet.Parse(f.data)
		if !p.HasAddresses || p.Src.AsSlice()[p.Src.BitLen()/8-1]%4 > 0 {
			continue
		}
		some = append(some, key.Source(netip.PrefixFrom(p.Src, p.Src.BitLen())))
	}
	return list.SetOf(some...)
}

func testTrackers(t *testing.T, c *counters, traffic []frame) {
	c.next(t, 40, 0) // the heads of the first banks are zero
	const intervals = 5
	for i := range intervals {
		for _, f := range traffic[len(traffic)*i/intervals : len(traffic)*(i+1)/intervals] {
			c.count(t, f.data)
		}
		c.same(t)
		c.next(t, uint64(40<<(2*i)), []float64{0, 0.001, 0.0001, 0.01, 0}[i])
	}
}

// scan detectors count scans of ports and of addresses, and targets that many sources reach.
func guards() []tracker.Counting {
	const v6 = key.FieldV6
	const ports = key.FieldDstPort | key.FieldProto
	pairs := func(fields key.Fields) *tracker.Pairs {
		return &tracker.Pairs{
			V4: key.Shape{Fields: fields, SrcBits: 32, DstBits: 32}, V6: key.Shape{Fields: fields | v6, SrcBits: 128, DstBits: 128},
			Lines: 100, Ephemeral: 32768,
		}
	}
	small := sketch.Geometry{Lines: 100, Buckets: 9}
	sources := sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: v6, SrcBits: 128}, Geometry: small}
	destinations := sketch.Tracker{V4: key.Shape{DstBits: 32}, V6: key.Shape{Fields: v6, DstBits: 128}, Geometry: small}
	return []tracker.Counting{
		{Tracker: sources, Pairs: pairs(ports), Punishes: true, Unexempt: true},
		{Tracker: sources, Pairs: pairs(key.FieldProto), Unexempt: true},
		{Tracker: destinations, Pairs: pairs(key.FieldProto), Unexempt: true},
		{Tracker: sources},
	}
}

// The scan detectors in the kernel count the pairs that those in Go do.
func TestGuardsOverCaptures(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	onOneCPU(t)
	policy := verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}}
	testTrackers(t, newFiltering(t, nil, policy, guards()), frames(t))
}

// The same over random packets.
func TestGuardsOverRandomPackets(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	packets := long.Or(20_000, 1_200_000)
	r := newRandom(t)
	c := newFiltering(t, nil, verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}}, guards())
	c.next(t, 40, 0)
	const intervals = 4
	for range intervals {
		for range packets / intervals {
			tuple := r.tuple()
			if r.IntN(2) == 0 { // a quarter of all packets may begin a conversation
				tuple.Proto = uint8(r.pick(1, 6, 6, 17, 58))
				tuple.HasPorts = key.HasPorts(tuple.Proto)
				tuple.SrcPort, tuple.DstPort = uint16(r.pick(53, r.IntN(1<<16))), uint16(r.pick(22, 80, 443, r.IntN(1<<16)))
			}
			f := packet.Frame(tuple)
			transport := 14 + 20
			if tuple.Src.Is6() {
				transport = 14 + 40
			}
			switch tuple.Proto {
			case 1, 58:
				f[transport] = byte(r.pick(0, 8, 128, 129))
			case 6:
				f[transport+13] = byte(r.pick(0x02, 0x02, 0x12, 0x10, r.IntN(256)))
			}
			if r.IntN(4) == 0 {
				f = r.mutate(f)
			}
			c.count(t, f)
		}
		c.same(t)
		for i, tr := range tracker.Of(c.generation) {
			if n := c.twins[i][0].Packets() + c.twins[i][1].Packets(); tr.Pairs != nil && n < 100 {
				t.Errorf("guard %d has counted %d packets: the test is too narrow", i, n)
			}
		}
		c.next(t, 40, 0)
	}
}

// The same over flows whose sizes are Zipf's.
func TestTrackersOverZipf(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	onOneCPU(t)
	for _, exponent := range []float64{1.01, 1.3} {
		c := newCounters(t, trackersOfAllKinds())
		c.next(t, 40, 0)
		for frame := range zipfFrames(exponent, 200_000) {
			c.count(t, frame)
		}
		c.same(t)
	}
}

// zipfFrames yields the given number of packets.
func zipfFrames(exponent float64, packets int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), exponent, 1, 1<<20)
		for range packets {
			var src [4]byte
			binary.BigEndian.PutUint32(src[:], uint32(z.Uint64())*2654435761)
			tuple := key.Tuple{Src: netip.AddrFrom4(src), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17, HasPorts: true, SrcPort: uint16(src[3]), DstPort: 53}
			if !yield(packet.Frame(tuple)) {
				return
			}
		}
	}
}

// The same when the product of the count and the largest share exceeds 64 bits:
// the limit wraps.
func TestTrackersWrap(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	c := newCounters(t, trackersOfAllKinds())
	c.next(t, 40, 1)
	const wraps = 1 << 41 // (wraps >> 8) · 2³¹ = 2⁶⁴
	c.watch(t, func(n *tracker.Memory) {
		for i := range c.twins {
			bank := n.Active(i)
			lines, _ := n.Bank(i, 0, bank)
			for _, head := range [][]uint64{lines, c.twins[i][bank].lines} {
				head[0], head[1] = wraps-1000, wraps-54_000 // packets, bytes
			}
		}
	})
	for frame := range zipfFrames(1.3, 10_000) {
		c.count(t, frame)
	}
	c.same(t) // and flows are in the memory, into which none came before
}

// Flows with the same tag in one bucket are counted apart, and a penalty of one
// affects no other.
func TestEqualTags(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	trackers := trackersOfAllKinds()[:1]
	trackers[0].Buckets, trackers[0].Punishes = 1, true
	c := newCounters(t, trackers)
	c.next(t, 8, 0)
	sources := tracker.Of(c.generation)[0]
	var equal []key.Tuple
	for i := uint32(0); len(equal) < 4; i++ {
		var src [4]byte
		binary.BigEndian.PutUint32(src[:], i)
		p := key.Tuple{Src: netip.AddrFrom4(src), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17, HasPorts: true}
		if sources.Hash(sources.Key(p))>>32&0x7fff == 0x123 {
			equal = append(equal, p)
		}
	}
	for i := range 60 {
		for j, p := range equal {
			if i < 20*(j+1) {
				c.count(t, packet.Frame(p))
			}
		}
	}
	c.same(t)
	c.watch(t, func(n *tracker.Memory) {
		bank := n.Banks(0, n.Active(0))[0]
		for j, p := range equal {
			f, ok := bank.Lookup(sources.Hash(sources.Key(p)))
			if want := uint64(min(20*(j+1), 60)); !ok || f.Packets > want || f.Estimate(sketch.Packets) < want || f.Packets < want-4 {
				t.Errorf("%v: %+v, %t; want %d packets", p.Src, f, ok, want)
			}
		}
		table, err := penalty.NewTable(n.Penalties)
		if err != nil {
			t.Fatal(err)
		}
		table.Set(sources.Hash(sources.Key(equal[1])), penalty.Penalty{Until: loader.Monotonic() + time.Hour})
		n.SetPenalized(table.Len())
	})
	for j, p := range equal {
		want := uint32(loader.ActionPass)
		if j == 1 {
			want = loader.ActionDrop
		}
		if got, err := c.program.Test(packet.Frame(p)); err != nil || got != want {
			t.Errorf("%v: action %d, %v", p.Src, got, err)
		}
	}
}

// A penalty has the same verdicts in the kernel and in Go: a block until it
// expires, and a limit by the burst that passes. Exempt packets are not charged to it.
func TestPenalties(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	trackers := trackersOfAllKinds()[:2]
	trackers[0].Punishes, trackers[1].Punishes = true, true
	policy := verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 17, Port: 22}}}
	c := newFiltering(t, nil, policy, trackers)
	k, err := replay.NewKernel(c.generation, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	to := func(port uint16, s string) []byte {
		return packet.Frame(key.Tuple{Src: netip.MustParseAddr(s), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: port})
	}
	source := func(s string) []byte { return to(2, s) }
	hash := func(n int, frame []byte) uint64 {
		p, _ := packet.Parse(frame)
		tr := tracker.Of(c.generation)[n]
		return tr.Hash(tr.Key(p.Tuple))
	}
	table, err := penalty.NewTable(make([]uint64, loader.PenaltyBuckets*penalty.BucketWords))
	if err != nil {
		t.Fatal(err)
	}
	twin := verdict.Program{Policy: policy, Tracked: &verdict.Trackers{Penalties: []*penalty.Table{table, table}, Now: loader.Monotonic}}
	for i := range trackers {
		twin.Tracked.Banks = append(twin.Tracked.Banks, c.twins[i][0].Bank)
	}
	blocked, limited, free := source("192.0.2.1"), source("192.0.2.2"), source("192.0.2.3")
	now := loader.Monotonic()
	set := func(h uint64, p penalty.Penalty) {
		t.Helper()
		table.Set(h, p)
		n, table := penalties(t, c.generation, k.Stats())
		if !table.Set(h, p) {
			t.Fatal("no room")
		}
		n.SetPenalized(table.Len())
	}
	decide := func(frame []byte, want verdict.Reason, action verdict.Action) {
		t.Helper()
		if o, err := k.Decide(frame); err != nil || o.Reason != want || o.Action != action {
			t.Fatalf("%+v, %v; want %v", o, err, want)
		}
		if o := twin.Decide(frame); o.Reason != want || o.Action != action {
			t.Fatalf("%+v in Go; want %v", o, want)
		}
	}
	decide(blocked, verdict.Clean, verdict.Pass)
	set(hash(0, blocked), penalty.Penalty{Until: now + time.Hour})
	set(hash(0, limited), penalty.Penalty{Until: now + time.Hour, Rate: 0.001, Burst: 3})
	decide(free, verdict.Clean, verdict.Pass)
	decide(blocked, verdict.Heavy, verdict.Drop)
	exempt := to(22, "192.0.2.2")
	for range 3 {
		decide(exempt, verdict.Failsafe, verdict.Pass)
		decide(limited, verdict.Clean, verdict.Pass)
	}
	decide(exempt, verdict.Failsafe, verdict.Pass)
	decide(limited, verdict.RateLimited, verdict.Drop)
	// A packet that one penalty drops is not charged to another's rate.
	set(hash(1, free), penalty.Penalty{Until: now + time.Hour, Rate: 0.001, Burst: float64(3 * len(free))}) // of bytes
	for range 5 {
		decide(blocked, verdict.Heavy, verdict.Drop)
	}
	for range 3 {
		decide(free, verdict.Clean, verdict.Pass)
	}
	decide(free, verdict.RateLimited, verdict.Drop)
	set(hash(1, free), penalty.Penalty{Until: now})
	set(hash(0, blocked), penalty.Penalty{Until: now})
	decide(blocked, verdict.Clean, verdict.Pass)
	// Any of the packet's flows is enough: this is one of a destination.
	set(hash(1, free), penalty.Penalty{Until: now + time.Hour})
	decide(free, verdict.Heavy, verdict.Drop)
	set(hash(1, free), penalty.Penalty{Until: now})
	// On the general path, too, a packet has its own penalty alone.
	doubleTagged := func(frame []byte) []byte { return slices.Insert(slices.Clone(frame), 12, 0x81, 0, 0, 1, 0x81, 0, 0, 2) }
	set(hash(0, blocked), penalty.Penalty{Until: now + time.Hour})
	for range 2 {
		decide(doubleTagged(blocked), verdict.Heavy, verdict.Drop)
		decide(doubleTagged(free), verdict.Clean, verdict.Pass)
	}
}

// A penalty ends where its tracker leaves the configuration: it does not come back with it.
func TestPenaltiesEndWithTheirTracker(t *testing.T) {
	lab.Root(t)
	stats := newStats(t, 0)
	punishing := trackersOfAllKinds()[0]
	punishing.Punishes = true
	use := func(with func(*penalty.Table), trackers ...tracker.Counting) {
		t.Helper()
		g := built(t, nil, engine.Config{Parts: []engine.Part{&tracker.Part{In: trackers}}, Seed: hash.Seed{1}})
		load(t, g, stats)
		if with == nil {
			return
		}
		_, table := penalties(t, g, stats)
		with(table)
	}
	want := func(n int) func(*penalty.Table) {
		return func(p *penalty.Table) {
			t.Helper()
			if p.Len() != n {
				t.Errorf("%d penalties, want %d", p.Len(), n)
			}
		}
	}
	use(func(p *penalty.Table) { p.Set(77, penalty.Penalty{Until: loader.Monotonic() + time.Hour}) }, punishing)
	use(want(1), punishing)
	use(nil)
	use(want(0), punishing)
}
