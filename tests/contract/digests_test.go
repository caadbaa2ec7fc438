package contract

import (
	"math/rand/v2"
	"slices"
	"testing"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/replay"
	recorder "weir/control/stage/digest"
	"weir/filter/blocked"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/data"
	"weir/tests/lab"
	"weir/tests/long"
)

// digests records in the kernel and in its twin in Go.
type digests struct {
	generation *engine.Generation
	kernel     *replay.Kernel
	memory     *recorder.Memory
	secret     *hash.Secret

	slice            uint32
	filter           *blocked.Filter
	loops            *digest.Loops
	gathered         []seen
	packets, skipped uint64
	suspected        uint64
}

// gathered is the number of packets that a bank gathers.
const gathered = len(bpf.WeirDigestBank{}.Gathered)

type seen struct {
	digest uint64
	ttl    uint8
}

func newDigests(t testing.TB, lists []engine.List, c engine.Config, g blocked.Geometry) *digests {
	t.Helper()
	onOneCPU(t)
	part := &recorder.Part{Filter: g}
	c.Parts = []engine.Part{part}
	d := &digests{filter: blocked.New(g), loops: digest.NewLoops(digest.Sightings)}
	d.generation, d.kernel = engines(t, lists, c)
	part.Read(d.kernel.Stats(), func(m *recorder.Memory) { d.memory = m })
	if d.memory == nil {
		t.Fatal("the program has no memory of its digests")
	}
	d.secret = hash.NewSecret(d.memory.Seed())
	return d
}

// bank returns the bank of this CPU in which the kernel records.
func (d *digests) bank() (*bpf.WeirDigestBank, []uint64) {
	cpu := 0 // if none has recorded anything
	for i := range loader.CPUs() {
		if b, _ := d.memory.Bank(i, d.memory.Active()); b.Packets+b.Skipped+uint64(b.Count) > 0 {
			cpu = i
		}
	}
	return d.memory.Bank(cpu, d.memory.Active())
}

// pass runs both over a frame.
func (d *digests) pass(t testing.TB, frame []byte) {
	t.Helper()
	o, err := agree(d.generation, d.kernel, frame)
	if err != nil {
		t.Fatalf("%v: % x", err, frame)
	}
	p, _ := packet.Parse(frame)
	if !p.HasAddresses || o.Action == verdict.Drop {
		return
	}
	ip := packet.IP(frame)
	sum, err := digest.Sum(d.secret, ip)
	if err != nil {
		d.skipped++
		return
	}
	d.gathered = append(d.gathered, seen{sum, digest.TTL(ip)})
	if len(d.gathered) < gathered {
		return
	}
	for _, s := range d.gathered {
		if !d.filter.Observe(s.digest) {
			continue
		}
		if _, suspected := d.loops.See(s.digest, s.ttl, d.slice); suspected {
			d.suspected++
		}
	}
	d.packets += uint64(gathered)
	d.gathered = d.gathered[:0]
}

// same compares the records of both in this slice.
func (d *digests) same(t testing.TB) {
	t.Helper()
	b, words := d.bank()
	if b.Packets != d.packets || b.Skipped != d.skipped || b.Loops != d.suspected || int(b.Count) != len(d.gathered) {
		t.Fatalf("%d packets, %d skipped, %d loops, %d gathered; want %d, %d, %d, %d",
			b.Packets, b.Skipped, b.Loops, b.Count, d.packets, d.skipped, d.suspected, len(d.gathered))
	}
	for i, s := range d.gathered {
		if g := b.Gathered[i]; g.Digest != s.digest || g.Ttl != s.ttl || g.Slice != d.slice {
			t.Fatalf("gathered %+v, want %+v in slice %d", g, s, d.slice)
		}
	}
	if !slices.Equal(words, d.filter.Words()) {
		t.Fatal("the filters differ")
	}
}

// next begins another slice in both.
func (d *digests) next() {
	d.slice++
	d.memory.Begin(1-d.memory.Active(), d.slice)
	d.memory.Exchange()
	d.filter.Clear()
	d.packets, d.skipped, d.suspected, d.gathered = 0, 0, 0, nil
}

// The kernel's filters and counters equal Go's, bit for bit, over all
// captures and several slices, roomy and overfull ones.
func TestDigestsOverCaptures(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	traffic := sample(t)
	for _, g := range []blocked.Geometry{{Lines: 50_000, Bits: 4}, {Lines: 700, Bits: 6}, {Lines: 1, Bits: 1}} {
		d := newDigests(t, nil, engine.Config{}, g)
		const slices = 5
		var packets, skipped uint64
		for i := range slices {
			for _, f := range traffic[len(traffic)*i/slices : len(traffic)*(i+1)/slices] {
				d.pass(t, f.data[:min(len(f.data), 2048)]) // what every kernel takes in one piece
			}
			d.same(t)
			packets, skipped = packets+d.packets, skipped+d.skipped
			d.next()
		}
		t.Logf("%+v: %d packets recorded, %d skipped", g, packets, skipped)
		if packets < long.Or[uint64](25_000, 100_000) || skipped == 0 {
			t.Error("the captures are too plain")
		}
	}
}

// The same over frames in all their variety, where lists drop some; whether
// digests are recorded changes no verdict.
func TestDigestsOfRandomFrames(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	c := engine.Config{Policy: verdict.Policy{DropMalformed: r.IntN(2) == 0}}
	d := newDigests(t, richLists(), c, blocked.Geometry{Lines: 3000, Bits: 5})
	for range 100_000 {
		frame := packet.Frame(r.anyTuple(r.IntN(3) > 0))
		for range r.IntN(3) {
			if len(frame) >= 60 {
				frame = r.mutate(frame)
			}
		}
		d.pass(t, frame)
	}
	d.same(t)
	if d.packets < 1000 || d.skipped < 100 {
		t.Errorf("%d packets, %d skipped: the frames are too plain", d.packets, d.skipped)
	}
}

// hop returns a frame after a number of hops.
func hop(frame []byte, hops int) []byte {
	f := slices.Clone(frame)
	f[22] -= byte(hops)
	return f
}

// A packet that returns again and again with a lower TTL is suspected of a
// loop, once. Copies are not, nor is one that was seen on both sides of a
// router.
func TestLoopsInTheKernel(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	d := newDigests(t, nil, engine.Config{}, blocked.Geometry{Lines: 1000, Bits: 4})
	for range 200 {
		tuple := r.anyTuple(false)
		tuple.Proto, tuple.HasPorts = 17, true
		frame := packet.Frame(tuple)
		kind := r.IntN(3)
		for i := range 10 {
			switch kind {
			case 0:
				d.pass(t, hop(frame, 2*i))
			case 1:
				d.pass(t, hop(frame, i/5)) // copies on both sides of a router
			case 2:
				d.pass(t, packet.Frame(r.anyTuple(false)))
			}
		}
	}
	d.same(t)
	b, _ := d.bank()
	suspects := d.memory.Suspects(b.Slice)
	t.Logf("%d loops, %d of them still watched", b.Loops, len(suspects))
	if b.Loops < 30 || b.Loops > 120 || len(suspects) == 0 {
		t.Errorf("%d loops, %d watched; some 67 are", b.Loops, len(suspects))
	}
	for _, s := range suspects {
		if s.First-s.Ttl < 4 || s.Family != 4 || s.Proto != 17 {
			t.Errorf("suspect %+v", s)
		}
	}
}

// For any frame, both record the same or nothing, and agree on its verdict.
func FuzzDigest(f *testing.F) {
	lab.Root(f)
	r := random{rand.New(rand.NewPCG(5, 6))}
	for range 500 {
		f.Add(r.mutate(packet.Frame(r.tuple())))
	}
	// Truncated within options that are followed by nothing.
	f.Add(slices.Concat(make([]byte, 12), []byte{8, 0, 0x4f, 0, 0, 60}, make([]byte, 20)))
	f.Add(slices.Concat(make([]byte, 12), []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 0, 64}, make([]byte, 32), []byte{59, 3}, make([]byte, 6)))
	if dir, err := data.Find(); err == nil {
		addMalformed(f, dir+"/malformed")
	}
	d := newDigests(f, nil, engine.Config{}, blocked.Geometry{Lines: 100, Bits: 4})
	f.Fuzz(func(t *testing.T, frame []byte) {
		d.next() // on whatever CPU this is
		d.pass(t, frame[:min(len(frame), 2048)])
		d.same(t)
	})
}
