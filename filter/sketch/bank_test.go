package sketch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"weir/filter/hash"
	"weir/filter/key"
)

func mustNewBank(t testing.TB, tracker Tracker) *Bank {
	t.Helper()
	b, err := NewBank(tracker, make([]uint64, tracker.LineWords()), make([]uint64, tracker.FlowWords()))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// send counts packets of a flow, 100 bytes each.
func (b *Bank) send(n uint32, packets int) (h uint64) {
	k := source(n)
	h = b.Hash(k)
	for range packets {
		b.CountKey(k, h, 100)
	}
	return h
}

// model is a bank as bpf/tracker.h describes it, in terms of memory bytes: slow
// and literal.
type model struct {
	Tracker
	head     [8]uint64
	counters []uint32
	cold     []uint8
	most     uint64 // steps of a flow in the cold filter
	flows    []uint64
}

func (m *model) count(k key.Key, length uint64) {
	const bucket = 72 // words
	h := m.Hash(k)
	m.head[0]++
	m.head[1] += length
	n, total := uint64(1), m.head[0]
	if m.Unit == Bytes {
		n, total = length, m.head[1]
	}

	cold, counter, step := uint64(0), new(uint8), uint64(1)
	if m.Unit == Bytes {
		step = 512
	}
	if len(m.cold) > 0 {
		counter = &m.cold[m.coldIndex(k)]
		after := uint64(*counter) + (n+step-1)/step
		if after <= m.skip() {
			*counter = uint8(after)
			return
		}
		cold = min(uint64(*counter), m.most) * step
	}
	b := m.flows[bucket*hash.Reduce(h, m.Buckets):][:bucket]
	if slot(b, h) < 0 && slot(b, 0) < 0 {
		b = m.flows[bucket*hash.Reduce(h<<32, m.Buckets):][:bucket]
	}
	at := slot(b, h)
	if at < 0 {
		counters := m.at(h)
		least := uint64(math.MaxUint32)
		for _, c := range counters {
			least = min(least, uint64(*c))
		}
		least = min(least+cold, math.MaxUint32)
		after := min(least+n, math.MaxUint32)
		limit := min(max(m.head[3], (total>>8)*m.head[4]>>24), 1<<31)
		if after >= min(limit, m.head[5]) {
			if at = slot(b, 0); at < 0 {
				at = m.evict(b, after, limit)
			}
		}
		if at < 0 {
			for _, c := range counters {
				*c = max(*c, uint32(after-cold))
			}
			return
		}
		*counter = 255
		tag := uint16(h>>32) | 1<<15
		shift := 16 * (at % 4)
		b[at/4] = b[at/4]&^(0xffff<<shift) | uint64(tag)<<shift
		befores(b)[at] = uint32(least)
		f := b[8+8*at:][:8]
		clear(f)
		f[2] = h
		for i, x := range k.Append(nil) {
			f[3+i/8] |= uint64(x) << (8 * (i % 8))
		}
	}
	b[8+8*at]++
	b[9+8*at] += length
}

// skip returns the steps of a flow that the cold filter counts.
func (m *model) skip() uint64 {
	least := min(m.head[3], m.head[5])
	if m.Unit == Bytes {
		least /= 512
	}
	return min(least/4, m.most)
}

// coldIndex returns a key's counter in the cold filter.
func (m *model) coldIndex(k key.Key) uint64 {
	b := append(k.Append(nil), make([]byte, 8)...)
	sum := uint64(0)
	for i, pair := range m.Secret.Pairs {
		if 8*i >= len(b)-8 {
			break
		}
		if low := uint64(binary.LittleEndian.Uint32(b[8*i:])); i > 0 || m.V4.Tuple() {
			sum += low * pair[0]
		}
		sum += uint64(binary.LittleEndian.Uint32(b[8*i+4:])) * pair[1]
	}
	return sum >> (64 - bits.Len(uint(len(m.cold)-1)))
}

// slot returns the slot of a flow in a bucket, or for 0 the first empty one; -1 if
// there is none.
func slot(b []uint64, h uint64) int {
	for i := range 8 {
		used := b[i/4]>>(16*(i%4))&0xffff != 0
		if h == 0 && !used || h != 0 && used && b[8+8*i+2] == h {
			return i
		}
	}
	return -1
}

// befores returns the estimates in a bucket of its flows' counts before they entered.
func befores(b []uint64) *[8]uint32 { return (*[8]uint32)(unsafe.Pointer(&b[2])) }

// at returns the counters of a flow.
func (m *model) at(h uint64) [2]*uint32 {
	z := h * 11400714819323198485
	line0 := m.counters[16*hash.Reduce(h<<16, m.Lines/2):]
	line1 := m.counters[16*(m.Lines/2+hash.Reduce(z, m.Lines/2)):]
	return [2]*uint32{&line0[h%16], &line1[z>>16%16]}
}

// evict returns the first of the bucket's flows with the fewest units, after
// returning it to the sketch, if these are fewer than the newcomer's. A flow at
// or above the limit that is left out, possibly the newcomer, is counted as
// denied.
func (m *model) evict(b []uint64, units, limit uint64) int {
	var had [8]uint64
	for i := range had {
		f := b[8+8*i:]
		had[i] = uint64(befores(b)[i]) + f[0]
		if m.Unit == Bytes {
			had[i] = uint64(befores(b)[i]) + f[1]
		}
	}
	fewest := slices.Min(had[:])
	if min(fewest, units) >= limit {
		m.head[2]++
	}
	if m.head[5] < 1<<31 {
		m.head[5] += m.head[5]/64 + 1
	}
	if fewest >= units {
		return -1
	}
	slot := slices.Index(had[:], fewest)
	for _, c := range m.at(b[8+8*slot+2]) {
		*c = max(*c, uint32(fewest))
	}
	return slot
}

// lines returns the memory of the head and the counters.
func (m *model) lines() []uint64 {
	words := slices.Clone(m.head[:])
	words[4] |= m.skip()<<32 | m.most<<48
	for i := 0; i < len(m.counters); i += 2 {
		var b [8]byte
		binary.NativeEndian.PutUint32(b[:], m.counters[i])
		binary.NativeEndian.PutUint32(b[4:], m.counters[i+1])
		words = append(words, binary.NativeEndian.Uint64(b[:]))
	}
	for c := range slices.Chunk(m.cold, 8) {
		words = append(words, binary.NativeEndian.Uint64(c))
	}
	return words
}

// cooled returns a tracker whose cold filter has the given number of lines.
func cooled(t Tracker, lines uint32) Tracker {
	t.Cold = lines
	return t
}

// TestBankAgainstModel compares the whole memory of a bank with the model's.
func TestBankAgainstModel(t *testing.T) {
	rng := random(t, 40)
	for _, c := range []struct {
		name    string
		tracker Tracker
		floor   uint64
		share   float64
		spare   uint64 // 0: none
		denied  bool
	}{
		{"sources", sources.of(Packets, 6, 10), 30, 0, 0, false},
		{"sources by bytes, full", sources.of(Bytes, 2, 2), 20_000, 0, 0, true},
		{"flows, full", flows.of(Packets, 100, 20), 5, 0, 0, true},
		{"flows by bytes", flows.of(Bytes, 1000, 1000), 2000, 0, 0, false},
		{"flows with a share", flows.of(Packets, 200, 200), 3, 0.0013, 0, false},
		{"flows with a share of the bytes, full", flows.of(Bytes, 50, 30), 3000, 0.001, 0, true},
		{"sources, room to spare", sources.of(Packets, 50, 30), 10_000, 0, 2, false},
		{"flows, no room to spare", flows.of(Packets, 100, 20), 10_000, 0, 2, false},
		{"sources, cold", cooled(sources.of(Packets, 6, 10), 4), 30, 0, 0, false},
		{"sources by bytes, cold, full", cooled(sources.of(Bytes, 2, 2), 64), 20_000, 0, 0, true},
		{"flows, cold, no room to spare", cooled(flows.of(Packets, 100, 20), 1), 10_000, 0, 2, false},
		{"flows by bytes with a share, cold, full", cooled(flows.of(Bytes, 50, 30), 1024), 8000, 0.001, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines, words := make([]uint64, c.tracker.LineWords()), make([]uint64, c.tracker.FlowWords())
			b, err := NewBank(c.tracker, lines, words)
			if err != nil {
				t.Fatal(err)
			}
			b.Admit(c.floor, c.share)
			if c.spare > 0 {
				b.SetSpare(c.spare)
			}
			m := &model{
				Tracker:  c.tracker,
				counters: make([]uint32, c.tracker.Lines*16),
				cold:     make([]uint8, c.tracker.Cold*64),
				flows:    make([]uint64, c.tracker.Buckets*72),
			}
			m.head[3], m.head[4], m.head[5] = c.floor, uint64(c.share*(1<<32)), cmp.Or(c.spare, 1<<31)
			if len(m.cold) > 0 && c.tracker.Unit == Packets {
				m.most = min(c.floor/4, 254)
			} else if len(m.cold) > 0 {
				m.most = min(c.floor/4/512, 254)
			}
			for range 20_000 {
				p, length := packet(rng)
				b.Count(p, length)
				m.count(c.tracker.Key(p), length)
			}
			if !slices.Equal(lines, m.lines()) {
				t.Error("head or counters differ")
			}
			if !slices.Equal(words, m.flows) {
				t.Error("flow memories differ")
			}
			n := 0
			for range b.Flows() {
				n++
			}
			t.Logf("%d flows in memory, %d packets denied", n, b.Denied())
			if n < 10 || c.denied != (b.Denied() > 0) {
				t.Errorf("%d flows in memory, %d packets denied: not the intended case", n, b.Denied())
			}

			b.Reset()
			rest := [lineWords]uint64{3: c.floor, 4: uint64(c.share*(1<<32)) | m.skip()<<32 | m.most<<48, 5: m.head[5]}
			if !slices.Equal(lines[:lineWords], rest[:]) || slices.Max(lines[lineWords:]) != 0 || slices.Max(words) != 0 {
				t.Error("something other than the admission is left after Reset")
			}
		})
	}
}

// TestShielding checks that a flow in the memory does not raise the sketch, not
// even with the packet with which it enters.
func TestShielding(t *testing.T) {
	b := mustNewBank(t, sources.of(Packets, 64, 1))
	b.Admit(10, 0)
	h := b.send(7, 9)
	if f, ok := b.Lookup(h); ok {
		t.Fatalf("in the memory at %+v", f)
	}
	for n := range uint64(5) {
		b.send(7, 1)
		want := Flow{Key: source(7), Hash: h, Before: 9, Packets: n + 1, Bytes: 100 * (n + 1)}
		if f, ok := b.Lookup(h); !ok || f != want {
			t.Fatalf("packet %d: entry %+v, want %+v", 10+n, f, want)
		}
	}
	if got := b.sketch.Estimate(h); got != 9 {
		t.Errorf("sketch at %d, want 9", got)
	}
	if !b.Keep(Flow{Key: source(7), Hash: h}) || b.Estimate(Flow{Key: source(7), Hash: h}) != 14 {
		t.Errorf("estimate %d, want 14, also if kept again", b.Estimate(Flow{Key: source(7), Hash: h}))
	}
	if b.Packets() != 14 || b.Bytes() != 1400 || b.Total() != 14 {
		t.Errorf("%d packets, %d bytes, total %d", b.Packets(), b.Bytes(), b.Total())
	}
}

// TestLimit checks the edge cases of the limit's arithmetic.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		floor uint64
		share float64
		total uint64
		want  uint64
	}{
		{0, 0, 1 << 40, 0},
		{70, 0, 1 << 40, 70},
		{70, 0.25, 256, 70},
		{70, 0.25, 1024, 256},
		{70, 0.25, 1279, 256}, // the total is taken in steps of 256
		{0, 0.001, 1 << 30, 1 << 30 / 1000},
		{1 << 40, 0, 0, 1 << 31},          // beyond a counter's range
		{0, 0.25, 1 << 40, 1 << 31},       // the same
		{0, 1, 1 << 20, 1 << 19},          // a half at most
		{50, -1, 1 << 20, 50},             // none
		{0, 0.5, 1<<41 - 1, 1 << 31},      // the largest product
		{0, 0.5, 1<<41 | 1<<13, 1 << 12},  // wraps to a lower limit
		{70, 0.5, 1<<41 | 1<<7, 70},       // but not below the floor
		{0, 0.25, 1<<42 | 1<<14, 1 << 12}, // the smaller the share, the later it wraps
	} {
		b := mustNewBank(t, sources.of(Bytes, 2, 1))
		b.Admit(c.floor, c.share)
		b.head.bytes = c.total
		if got := b.limit(); got != c.want {
			t.Errorf("floor %d, share %g of %d: limit %d, want %d", c.floor, c.share, c.total, got, c.want)
		}
	}
}

// TestSaturated checks that 32-bit counters do not keep a flow out of the
// memory, however many bytes it has, and do not overflow if the memory is full.
func TestSaturated(t *testing.T) {
	const huge = 1 << 30
	b := mustNewBank(t, sources.of(Bytes, 2, 1))
	b.Admit(math.MaxUint64, 1)
	for n := range uint32(slots) {
		k := source(n)
		for range 5 {
			b.CountKey(k, b.Hash(k), huge)
		}
		if f, ok := b.Lookup(b.Hash(k)); !ok || f.Estimate(Bytes) < 5*huge {
			t.Fatalf("flow %d of 5 GB: entry %+v", n, f)
		}
	}
	k := source(slots)
	for range 10 {
		b.CountKey(k, b.Hash(k), huge)
	}
	if got := b.Estimate(Flow{Key: k, Hash: b.Hash(k)}); got != math.MaxUint32 {
		t.Errorf("a flow without room has %d bytes, want %d", got, uint32(math.MaxUint32))
	}
	if b.Denied() == 0 {
		t.Error("no packet was denied")
	}
}

// TestFullMemory checks that flows without room are counted in the sketch,
// never underestimated, and reported as denied.
func TestFullMemory(t *testing.T) {
	const limit, flows, capacity = 10, 40, 16
	b := mustNewBank(t, sources.of(Packets, 4096, capacity/slots))
	b.Admit(limit, 0)
	for range 50 {
		for n := range uint32(flows) {
			b.send(n, 1)
		}
	}
	in := 0
	for range b.Flows() {
		in++
	}
	if in != capacity {
		t.Errorf("%d entries, want %d", in, capacity)
	}
	// Each of the others was denied with its tenth and every later packet.
	if want := uint64((flows - capacity) * (50 - limit + 1)); b.Denied() != want {
		t.Errorf("%d packets denied, want %d", b.Denied(), want)
	}
	for n := range uint32(flows) {
		if got := b.Estimate(Flow{Key: source(n), Hash: b.Hash(source(n))}); got < 50 {
			t.Errorf("flow %d estimated at %d of 50 packets", n, got)
		}
	}
	if b.Keep(Flow{Key: source(flows), Hash: b.Hash(source(flows))}) {
		t.Error("a full memory keeps one more")
	}
}

// TestEviction checks that a flow replaces the smallest in a full bucket, if
// that is smaller, and that the latter can return.
func TestEviction(t *testing.T) {
	b := mustNewBank(t, sources.of(Packets, 1024, 1))
	b.Admit(10, 0)
	for n := range uint32(slots) {
		b.send(n, int(20+n))
	}
	check := func(after string, in, out uint32, packets uint64) {
		t.Helper()
		if _, ok := b.Lookup(b.Hash(source(in))); !ok {
			t.Errorf("%s: flow %d is not in the memory", after, in)
		}
		h := b.Hash(source(out))
		if f, ok := b.Lookup(h); ok {
			t.Errorf("%s: in the memory at %+v", after, f)
		}
		if got := b.Estimate(Flow{Key: source(out), Hash: h}); got < packets {
			t.Errorf("%s: flow %d estimated at %d of %d packets", after, out, got, packets)
		}
	}
	b.send(100, 20)
	check("as small as the smallest", 0, 100, 20)
	b.send(100, 1)
	check("larger by one", 100, 0, 20)
	b.send(0, 2)
	check("larger again", 0, 100, 21)
	// Flow 100 is denied from its tenth to its 20th packet, flow 0 with its
	// first; the next packet of each displaces a flow at the limit.
	if want := uint64(11 + 1 + 2); b.Denied() != want {
		t.Errorf("%d packets denied, want %d", b.Denied(), want)
	}
	b.Admit(22, 0) // of which flow 1, the smallest, has one less
	b.send(101, 22)
	check("larger than one below the limit", 101, 1, 21)
	if want := uint64(11 + 1 + 2); b.Denied() != want {
		t.Errorf("%d packets denied, want %d: a flow below the limit has left", b.Denied(), want)
	}
}

// TestDenied checks that at most as many flows at or above the limit are
// missing from the memory as packets were denied.
func TestDenied(t *testing.T) {
	rng := random(t, 43)
	missing, denied := 0, 0
	for range 300 {
		b := mustNewBank(t, sources.of(Bytes, 256, 1+rng.Uint32N(3)))
		b.Admit(rng.Uint64N(20_000), rng.Float64()*0.1)
		flows := 1 + rng.Uint32N(60)
		truth := make(map[uint64]uint64)
		for range 4 * flows {
			k, length := source(rng.Uint32N(flows)), 64+rng.Uint64N(9000)
			h := b.Hash(k)
			b.CountKey(k, h, length)
			truth[h] += length
		}
		out := 0
		for h, n := range truth {
			if _, in := b.Lookup(h); !in && n >= b.limit() {
				out++
			}
		}
		if uint64(out) > b.Denied() {
			t.Errorf("%d flows are missing, %d packets denied", out, b.Denied())
		}
		missing += min(out, 1)
		denied += int(min(b.Denied(), 1))
	}
	t.Logf("flows are missing %d times, packets denied %d times of 300", missing, denied)
	if missing < 50 || denied > 250 {
		t.Error("too few missing or too many denied to test anything")
	}
}

// TestMemoryLoad checks that two choices fill the memory well before the first
// flow is rejected.
func TestMemoryLoad(t *testing.T) {
	const capacity = 8192
	b := mustNewBank(t, sources.of(Packets, 2, capacity/slots))
	n := uint32(0)
	for b.Keep(Flow{Key: source(n), Hash: b.Hash(source(n))}) {
		n++
	}
	t.Logf("first rejection at load %.3f", float64(n)/capacity)
	if n < capacity*4/10 {
		t.Errorf("first rejection with %d of %d entries", n, capacity)
	}
	for i := range n {
		h := b.Hash(source(i))
		if f, ok := b.Lookup(h); !ok || f != (Flow{Key: source(i), Hash: h}) {
			t.Fatalf("entry %d of %d: %+v", i, n, f)
		}
		if !b.Keep(Flow{Key: source(i), Hash: h}) {
			t.Fatalf("entry %d is not kept twice", i)
		}
	}
}

// TestLiveBank reads a bank between any two of the program's stores with which
// a flow enters, in the program's order and with the tag stored first.
func TestLiveBank(t *testing.T) {
	tracker := flows.of(Packets, 2, 1)
	counted := func(p key.Tuple) []uint64 {
		words := make([]uint64, tracker.FlowWords())
		b, err := NewBank(tracker, make([]uint64, tracker.LineWords()), words)
		if err != nil {
			t.Fatal(err)
		}
		b.Count(p, 100)
		return words
	}
	rng := random(t, 41)
	p, _ := packet(rng)
	want := tracker.Key(p)
	after := counted(p)
	// The slot may contain stale data of a flow that was there before, also of one with
	// the same tag.
	stale := func(sameTag bool) []uint64 {
		for {
			p, _ := packet(rng)
			p.HasPorts, p.SrcPort, p.DstPort = true, uint16(rng.Uint32()), uint16(rng.Uint32())
			k := tracker.Key(p)
			if k != want && (tagOf(tracker.Hash(k)) == tagOf(tracker.Hash(want))) == sameTag {
				return counted(p)
			}
		}
	}
	inOrder, tagFirst := []int{2, 8, 9, 10, 11, 12, 13, 14, 15, 0}, []int{0, 2, 8, 9, 10, 11, 12, 13, 14, 15}
	for name, c := range map[string]struct {
		before []uint64
		order  []int
	}{
		"empty, in order":           {make([]uint64, len(after)), inOrder},
		"empty, tag first":          {make([]uint64, len(after)), tagFirst},
		"stale, in order":           {stale(false), inOrder},
		"stale, tag first":          {stale(false), tagFirst},
		"stale, same tag, in order": {stale(true), inOrder},
	} {
		lines, words := make([]uint64, tracker.LineWords()), slices.Clone(c.before)
		words[0] = 0
		b, err := NewBank(tracker, lines, words)
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range c.order {
			words[at] = after[at]
			for f := range b.Flows() {
				if f.Key != want {
					t.Errorf("%s: after %d stores the flow %v, not %v", name, i+1, f.Key, want)
				}
			}
		}
		if f, ok := b.Lookup(after[10]); !ok || f.Key != want || f.Packets != 1 || f.Bytes != 100 {
			t.Errorf("%s: after all stores %+v", name, f)
		}
	}
}

// TestLiveEviction reads a bank between any two of the program's stores with
// which one flow replaces another, which is in the first of two used slots.
func TestLiveEviction(t *testing.T) {
	tracker := sources.of(Packets, 64, 1)
	lines, words := make([]uint64, tracker.LineWords()), make([]uint64, tracker.FlowWords())
	b, err := NewBank(tracker, lines, words)
	if err != nil {
		t.Fatal(err)
	}
	b.Admit(2, 0)
	for n := range uint32(slots) {
		b.send(n, int(10+n))
	}
	before, sketchBefore := slices.Clone(words), slices.Clone(lines)
	truth := map[key.Key]uint64{source(100): 11}
	for n := range uint32(slots) {
		truth[source(n)] = uint64(10 + n)
	}
	b.send(100, 11)
	after, sketchAfter := slices.Clone(words), slices.Clone(lines)
	if before[10] == after[10] {
		t.Fatal("flow 0 is still there")
	}

	copy(words, before)
	copy(lines, sketchBefore)
	stores := []func(){func() { copy(lines, sketchAfter) }, func() { words[0] &^= 0xffff }}
	for i := range lineWords + flowWords {
		if i < slots/4 {
			continue // the tags
		}
		stores = append(stores, func() { words[i] = after[i] })
	}
	stores = append(stores, func() { words[0] = after[0] })
	for i, store := range stores {
		store()
		in := 0
		for f := range b.Flows() {
			in++
			if f.Exact(Packets) > truth[f.Key] {
				t.Errorf("after %d stores: %v has %d packets of %d", i+1, f.Key, f.Exact(Packets), truth[f.Key])
			}
		}
		if in < slots-1 {
			t.Errorf("after %d stores: %d flows", i+1, in)
		}
		for k, n := range truth {
			if got := b.Estimate(Flow{Key: k, Hash: b.Hash(k)}); got < n && k != source(100) {
				t.Errorf("after %d stores: %v estimated at %d of %d", i+1, k, got, n)
			}
		}
	}
	if !slices.Equal(words, after) {
		t.Error("more stores were made")
	}
}

// TestLiveSecondBucket finds flows in their second bucket while a flow of the
// first is being exchanged.
func TestLiveSecondBucket(t *testing.T) {
	b := mustNewBank(t, sources.of(Packets, 2, 8))
	seconds := 0
	for n := uint32(0); b.Keep(Flow{Key: source(n), Hash: b.Hash(source(n))}); n++ {
		h := b.Hash(source(n))
		in, _, _ := b.search(h)
		first := &b.buckets[hash.Reduce(h, b.Buckets)]
		if in == first {
			continue
		}
		seconds++
		exchanged := first.tag(3)
		first.setTag(3, 0)
		if f, ok := b.Lookup(h); !ok || f.Key != source(n) {
			t.Errorf("flow %d is not found: %+v", n, f)
		}
		first.setTag(3, exchanged)
	}
	if seconds == 0 {
		t.Error("no flow lies in its second bucket")
	}
}

// TestColdFilter checks after each packet that its flow is counted as it is without a cold filter:
// its estimate is never too small, its exact count is no more than it had, and it is in the memory
// from the packet on with which it reaches the limit. Some flows share one counter, on purpose.
func TestColdFilter(t *testing.T) {
	for _, unit := range []Unit{Packets, Bytes} {
		tracker := cooled(sources.of(unit, 64, 4000), 4)
		limit, length := uint64(100), uint64(1)
		if unit == Bytes {
			limit, length = 100_000, 1500
		}
		for name, flow := range map[string]func(*Bank, *rand.Rand, int) uint32{
			"uniform": func(_ *Bank, r *rand.Rand, i int) uint32 { return r.Uint32N(3000) },
			"Zipf":    func(_ *Bank, r *rand.Rand, _ int) uint32 { return uint32(2000 * pow4(r.Float64())) },
			"a flood of new sources": func(_ *Bank, r *rand.Rand, i int) uint32 {
				if i%3 > 0 {
					return 1000 + uint32(i)
				}
				return r.Uint32N(50)
			},
			"one counter": func(b *Bank, r *rand.Rand, _ int) uint32 {
				for {
					if n := r.Uint32N(20_000); b.coldIndex(source(n)) == 7 {
						return n
					}
				}
			},
		} {
			b, r, skipped := mustNewBank(t, tracker), random(t, 43), 0
			b.Admit(limit, 0)
			truth := make(map[uint32]uint64)
			for i := range 20_000 {
				n := flow(b, r, i)
				size := 1 + r.Uint64N(length)
				k := source(n)
				h := b.Hash(k)
				counter := b.coldAt(k)
				before := *counter
				b.CountKey(k, h, size)
				if *counter > before && *counter < coldFull {
					skipped++
				}
				truth[n] += unit.of(1, size)
				f, in := b.Lookup(h)
				if got := b.Estimate(Flow{Key: k, Hash: h}); got < truth[n] || f.Exact(unit) > truth[n] {
					t.Fatalf("%v, %s: flow %d of %d is estimated at %d, exact %d", unit, name, n, truth[n], got, f.Exact(unit))
				}
				if truth[n] >= limit && !in {
					t.Fatalf("%v, %s: flow %d of %d is not in the memory", unit, name, n, truth[n])
				}
			}
			if b.Denied() > 0 || b.Packets() != 20_000 {
				t.Fatalf("%v, %s: %d packets, %d denied", unit, name, b.Packets(), b.Denied())
			}
			if skipped < 20 {
				t.Errorf("%v, %s: the cold filter counted %d packets", unit, name, skipped)
			}
			t.Logf("%v, %s: the cold filter counted %d of 20,000 packets", unit, name, skipped)
		}
	}
}

// TestColdAfterKeep checks that a kept flow is counted exactly from its first packet on, and that
// an admission for fewer units forgets no packet in the cold filter.
func TestColdAfterKeep(t *testing.T) {
	b := mustNewBank(t, cooled(sources.of(Packets, 64, 100), 4))
	b.Admit(400, 0)
	h := b.Hash(source(1))
	b.Keep(Flow{Key: source(1), Hash: h})
	b.send(1, 30)
	if f, _ := b.Lookup(h); f.Packets != 30 || f.Before != 0 {
		t.Errorf("a kept flow counts %+v of 30 packets", f)
	}
	h = b.send(2, 90) // of which the cold filter may have them all
	b.Admit(40, 0)
	if got := b.Estimate(Flow{Key: source(2), Hash: h}); got < 90 {
		t.Errorf("a flow of 90 packets is estimated at %d", got)
	}
	if b.send(2, 1); b.Total() != 121 {
		t.Errorf("total %d", b.Total())
	}
	if _, in := b.Lookup(h); !in {
		t.Error("a flow of 91 packets is not in the memory, with a limit of 40")
	}
}

func TestNewBankRejects(t *testing.T) {
	good := sources.of(Packets, 2, 3)
	mustNewBank(t, good)
	for name, change := range map[string]func(*Tracker){
		"unit":         func(b *Tracker) { b.Unit = Addresses + 1 },
		"no lines":     func(b *Tracker) { b.Lines = 0 },
		"odd lines":    func(b *Tracker) { b.Lines = 1 },
		"no buckets":   func(b *Tracker) { b.Buckets = 0 },
		"more lines":   func(b *Tracker) { b.Lines += 2 },
		"more buckets": func(b *Tracker) { b.Buckets++ },
		"IPv4 shape":   func(b *Tracker) { b.V4.SrcBits = 33 },
		"IPv6 shape":   func(b *Tracker) { b.V6.SrcBits = 129 },
		"families":     func(b *Tracker) { b.V4, b.V6 = b.V6, b.V4 },
		"forms":        func(b *Tracker) { b.V6 = flows.V6 },
	} {
		c := good
		change(&c)
		if _, err := NewBank(c, make([]uint64, good.LineWords()), make([]uint64, good.FlowWords())); err == nil {
			t.Errorf("%s: %+v accepted", name, c)
		}
	}
}

func TestCountDoesNotAllocate(t *testing.T) {
	for _, tracker := range []Tracker{sources.of(Packets, 2, 2), flows.of(Bytes, 2, 2)} {
		b := mustNewBank(t, tracker)
		rng := rand.New(rand.NewPCG(42, 0))
		b.Admit(3, 0)
		if n := testing.AllocsPerRun(1000, func() { b.Count(packet(rng)) }); n != 0 {
			t.Errorf("%v: %g allocations per packet", tracker.V4, n)
		}
	}
}

func BenchmarkBank(b *testing.B) {
	for _, alpha := range []float64{0.9, 1.3} {
		w := newWorkload(b, 34, 200_000, 1<<20, alpha)
		bank := mustNewBank(b, sources.of(Packets, 2048, 1<<20/bucketWords/8))
		keys, hashes := make([]key.Key, len(w.truth)), make([]uint64, len(w.truth))
		for f := range keys {
			keys[f] = source(uint32(f))
			hashes[f] = bank.Hash(keys[f])
		}
		bank.Admit(1<<20/40_000, 0)
		b.Run(fmt.Sprintf("op=insert/zipf=%.1f", alpha), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				j := i & (len(w.packets) - 1)
				if j == 0 {
					bank.Reset()
				}
				f := w.packets[j]
				bank.CountKey(keys[f], hashes[f], 1000)
			}
		})
		b.Run(fmt.Sprintf("op=query/zipf=%.1f", alpha), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				bank.Estimate(Flow{Key: keys[i%len(hashes)], Hash: hashes[i%len(hashes)]})
			}
		})
	}
}

// However many flows come, those that find no room make the bank admit no more
// after some hundred of them, and the largest ones are in the memory.
func TestSpareIsBounded(t *testing.T) {
	const admitted = 1 << 20
	b := mustNewBank(t, sources.of(Packets, 512, 64))
	b.Admit(admitted, 0)
	b.SetSpare(2)
	for n := range uint32(20) {
		b.send(n, 5000)
	}
	rng := random(t, 41)
	entered, last := 0, b.Spare()
	for range 2_000_000 {
		b.send(1000+rng.Uint32N(1<<30), 1)
		if s := b.Spare(); s != last {
			entered, last = entered+1, s
		}
	}
	t.Logf("%d flows found no room; spare is %d", entered, b.Spare())
	if entered > 1000 {
		t.Errorf("%d flows found no room, and cost an eviction", entered)
	}
	if b.Denied() != 0 {
		t.Errorf("%d denied: none was at the limit", b.Denied())
	}
	for n := range uint32(20) {
		f, ok := b.Lookup(b.Hash(source(n)))
		if !ok || f.Packets < 4990 {
			t.Errorf("large flow %d: %+v, %t", n, f, ok)
		}
	}
}
