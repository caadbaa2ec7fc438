package sketch

import (
	"fmt"
	"iter"
	"math"

	"weir/filter/hash"
)

// Unit is what a Multistage filter compares with its threshold.
type Unit uint8

const (
	Packets Unit = iota // packets
	Bytes               // bytes of packets
)

// String is the unit's name.
func (u Unit) String() string {
	switch u {
	case Packets:
		return "packets"
	case Bytes:
		return "bytes"
	}
	return fmt.Sprintf("unit %d", uint8(u))
}

// of is a packet's or a flow's amount in the unit.
func (u Unit) of(packets, bytes uint64) uint64 {
	if u == Bytes {
		return bytes
	}
	return packets
}

// Flow is an entry of the flow memory.
type Flow[K comparable] struct {
	Key K

	// Before is the sketch's estimate, in units of the filter, of what the
	// flow had in this interval when it entered the memory. It is never below
	// the truth. Entries kept from the last interval have 0.
	Before uint64

	// Packets and Bytes are exact, counted since the flow entered or, for a
	// kept entry, since the interval began.
	Packets, Bytes uint64

	hash uint64
}

// Config describes a Multistage filter.
type Config struct {
	Layout Layout // of the sketch
	Rows   int    // of the sketch
	Width  int    // of the sketch: counters a row, or lines

	Unit      Unit
	Threshold uint64 // units in an interval that make a flow heavy, at least 1
	Admit     uint64 // units on the sketch's estimate that bring a flow into the memory, 1…Threshold; 0 is a quarter of Threshold
	Keep      uint64 // exact units that keep an entry which is new in the interval, 1…Threshold; 0 is Threshold
	Flows     int    // capacity of the flow memory, rounded up to buckets of 8; the first refusal comes at about half of it
}

// Multistage is Estan and Varghese's parallel multistage filter with
// conservative update, flow memory, shielding and preserved entries (sections
// 3.2 and 3.3 of their paper). A flow whose estimate would reach Admit enters
// the flow memory, is counted exactly there and no longer raises the sketch.
// Only what it had before can be overestimated, by less than Admit: an early
// entry makes for small errors, in a memory that holds more flows.
//
// Every flow of Threshold units or more in an interval is among Heavy at its
// end, unless the memory was full, which Denied tells. The memory holds lighter
// flows too; PassingFlows, for threshold Admit, bounds how many.
//
// K identifies a flow. C is the width of the sketch's counters.
type Multistage[K comparable, C Counter] struct {
	unit                   Unit
	threshold, admit, keep uint64
	sketch                 *Sketch[C]
	memory                 memory[K]
	denied                 uint64
}

// NewMultistage returns an empty filter at the start of an interval. It fails
// on a sketch that New refuses, thresholds out of their range or beyond what C
// can count, and a flow memory without room.
func NewMultistage[K comparable, C Counter](c Config) (*Multistage[K, C], error) {
	s, err := New[C](c.Layout, c.Rows, c.Width)
	if err != nil {
		return nil, err
	}
	if c.Unit > Bytes {
		return nil, fmt.Errorf("sketch: unknown unit %d", c.Unit)
	}
	if c.Threshold < 1 || c.Threshold > uint64(^C(0)) {
		return nil, fmt.Errorf("sketch: threshold %d, want 1 to %d", c.Threshold, ^C(0))
	}
	if c.Flows < 1 || c.Flows > math.MaxInt32 {
		return nil, fmt.Errorf("sketch: flow memory for %d flows, want 1 to %d", c.Flows, math.MaxInt32)
	}
	if c.Admit == 0 {
		c.Admit = max(1, c.Threshold/4)
	}
	if c.Keep == 0 {
		c.Keep = c.Threshold
	}
	if c.Admit > c.Threshold || c.Keep > c.Threshold {
		return nil, fmt.Errorf("sketch: admit %d, keep %d, want at most the threshold %d", c.Admit, c.Keep, c.Threshold)
	}
	return &Multistage[K, C]{
		unit:      c.Unit,
		threshold: c.Threshold,
		admit:     c.Admit,
		keep:      c.Keep,
		sketch:    s,
		memory:    newMemory[K](c.Flows),
	}, nil
}

// Count counts one packet of the given length in bytes for the flow k, whose
// hash is h. It returns the flow's entry, valid until Next, or nil for a flow
// that is not in the memory.
func (m *Multistage[K, C]) Count(k K, h, length uint64) *Flow[K] {
	f := m.memory.find(k, h)
	if f == nil {
		var buf [MaxRows]int
		at := m.sketch.at(h, &buf)
		before := m.sketch.least(at)
		after := plus(before, m.unit.of(1, length))
		if uint64(after) >= m.admit {
			f = m.memory.insert(Flow[K]{Key: k, Before: uint64(before), hash: h})
			if f == nil {
				m.denied++
			}
		}
		if f == nil {
			m.sketch.raise(at, after)
			return nil
		}
		// The packet that makes a flow pass is counted in the memory alone:
		// the sketch, which others share, need not rise for it.
	}
	f.Packets++
	f.Bytes += length
	return f
}

// Exact is what the flow is known to have had in this interval, in units of
// the filter: a lower bound, and the truth if Before is 0. Limits and blocks go
// by this figure, which no collision in the sketch can raise.
func (m *Multistage[K, C]) Exact(f *Flow[K]) uint64 { return m.unit.of(f.Packets, f.Bytes) }

// Estimate is the number of units of the flow k, whose hash is h, in this
// interval. It is never below the truth.
func (m *Multistage[K, C]) Estimate(k K, h uint64) uint64 {
	if f := m.memory.find(k, h); f != nil {
		return m.most(f)
	}
	return m.sketch.Estimate(h)
}

// most is the upper bound of what a flow of the memory had.
func (m *Multistage[K, C]) most(f *Flow[K]) uint64 { return f.Before + m.Exact(f) }

// Heavy gives the entries of the flow memory whose estimate is Threshold or
// more, in no useful order.
func (m *Multistage[K, C]) Heavy() iter.Seq[*Flow[K]] {
	return func(yield func(*Flow[K]) bool) {
		for f := range m.memory.all {
			if m.most(f) >= m.threshold && !yield(f) {
				return
			}
		}
	}
}

// Flows gives the entries of the flow memory, in no useful order. Those that
// were kept may have counted nothing yet.
func (m *Multistage[K, C]) Flows() iter.Seq[*Flow[K]] { return m.memory.all }

// Denied is the number of packets in this interval whose flow belonged into
// the memory and found it full. They were counted in the sketch instead.
func (m *Multistage[K, C]) Denied() uint64 { return m.denied }

// Sketch is the filter's sketch.
func (m *Multistage[K, C]) Sketch() *Sketch[C] { return m.sketch }

// Next begins the next interval: the sketch is emptied, and of the flow memory
// those entries stay, at zero, that had Threshold units on exact counts, or that
// entered in the interval now over and had Keep units since. The latter may be
// heavy flows that began late. Kept flows are counted exactly from the first
// packet on (Estan and Varghese, section 3.3.1).
func (m *Multistage[K, C]) Next() {
	old := m.memory
	m.memory = newMemory[K](len(old.buckets) * slots)
	for f := range old.all {
		n := m.Exact(f)
		if n >= m.threshold || f.Before > 0 && n >= m.keep {
			// Fails only where two choices no longer fit in the new order;
			// that flow has to pass the sketch again.
			m.memory.insert(Flow[K]{Key: f.Key, hash: f.hash})
		}
	}
	m.sketch.Reset()
	m.denied = 0
}

// slots is the number of entries in a bucket.
const slots = 8

// memoryNth is the index of the hash that chooses buckets, after those of the
// sketch.
const memoryNth = MaxRows

// memory is a hash table of exact counters. An entry lies in one of two
// buckets, the second only if the first was full, and is never removed, so that
// a search reads the second only behind a full first one. Full it refuses:
// evicting would lose exact counts.
type memory[K comparable] struct {
	buckets []bucket[K]
}

type bucket[K comparable] struct {
	n     int // entries in use, from slot 0
	flows [slots]Flow[K]
}

func newMemory[K comparable](flows int) memory[K] {
	return memory[K]{make([]bucket[K], (flows+slots-1)/slots)}
}

// choices gives the two buckets of a hash; both halves of one remix serve.
func (m *memory[K]) choices(h uint64) (first, second *bucket[K]) {
	z, n := hash.Nth(h, memoryNth), uint32(len(m.buckets))
	return &m.buckets[hash.Reduce(z, n)], &m.buckets[hash.Reduce(z<<32, n)]
}

func (m *memory[K]) find(k K, h uint64) *Flow[K] {
	first, second := m.choices(h)
	if f := first.find(k, h); f != nil || first.n < slots {
		return f
	}
	return second.find(k, h)
}

func (b *bucket[K]) find(k K, h uint64) *Flow[K] {
	for i := range b.flows[:b.n] {
		if f := &b.flows[i]; f.hash == h && f.Key == k {
			return f
		}
	}
	return nil
}

// insert adds an entry that is not there yet; nil says that there is no room.
func (m *memory[K]) insert(f Flow[K]) *Flow[K] {
	b, second := m.choices(f.hash)
	if b.n == slots {
		b = second
	}
	if b.n == slots {
		return nil
	}
	p := &b.flows[b.n]
	*p = f
	b.n++
	return p
}

func (m *memory[K]) all(yield func(*Flow[K]) bool) {
	for i := range m.buckets {
		b := &m.buckets[i]
		for j := range b.flows[:b.n] {
			if !yield(&b.flows[j]) {
				return
			}
		}
	}
}
