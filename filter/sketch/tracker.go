package sketch

import (
	"fmt"
	"math/bits"

	"weir/filter/hash"
	"weir/filter/key"
)

// Unit is the unit of a Tracker's threshold.
type Unit uint8

const (
	Packets   Unit = iota // packets
	Bytes                 // bytes of packets
	Ports                 // distinct ports; only packets to new ones are counted
	Addresses             // distinct addresses; likewise
)

var units = [...]string{"packets", "bytes", "ports", "addresses"}

// String returns the unit's name.
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u]
	}
	return fmt.Sprintf("unit %d", uint8(u))
}

// MarshalText returns the unit's name.
func (u Unit) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText sets the unit by its name.
func (u *Unit) UnmarshalText(text []byte) error {
	switch string(text) {
	case "packets":
		*u = Packets
	case "bytes":
		*u = Bytes
	default:
		return fmt.Errorf("unknown unit %q: want packets or bytes", text)
	}
	return nil
}

// of returns a packet's or a flow's amount in the unit.
func (u Unit) of(packets, bytes uint64) uint64 {
	if u == Bytes {
		return bytes
	}
	return packets
}

// Sizes of a bank's memory, the same as in bpf/tracker.h.
const (
	sketchRows  = 2
	lineWords   = lineBytes / 8
	bucketWords = lineWords + slots*flowWords
	slots       = 8 // flows in a bucket
	flowWords   = 3 + keyWords
	keyWords    = key.MaxLen / 8
)

// Geometry is the size of a bank.
type Geometry struct {
	Lines   uint32 // of the sketch, 64 bytes each, an even number; the bank's head is one more
	Cold    uint32 // of the cold filter, 64 counters each, a power of 2; 0: there is none
	Buckets uint32 // of the flow memory: 576 bytes each, for eight flows
}

// PlanGeometry divides memory, in bytes, equally between the flow memory and what keeps light
// flows out of it. The flow memory must have room for all admitted flows; with a million flows of
// Zipf sizes in 256 KB, flow memories of 40 to 60 % did best (TestHeavyFlows).
func PlanGeometry(bytes int) Geometry {
	buckets := max(1, bytes/2/(bucketWords*8))
	lines := max(1, ((bytes-buckets*bucketWords*8)/lineBytes-1)/2) * 2
	return Geometry{Lines: uint32(lines), Buckets: uint32(buckets)}
}

// WithCold returns a geometry of the same size with a cold filter, which takes half of the
// sketch's memory and at most 64 KiB, which stay in a near cache. Less than 128 KiB in all have
// none: there a smaller sketch would admit many light flows (docs/comparison.md).
func (g Geometry) WithCold() Geometry {
	const least, most = 1000, 64 << 10 / lineBytes
	if g.Lines < least {
		return g
	}
	g.Cold = min(uint32(1)<<(bits.Len32((g.Lines+2)/2)-1), most)
	g.Lines -= g.Cold
	return g
}

// ColdShift returns 64 less the bits of a counter's index in the cold filter, which are the upper
// bits of its hash. It is 0 if there is none.
func (g Geometry) ColdShift() int {
	if g.Cold == 0 {
		return 0
	}
	return 64 - (bits.Len32(g.Cold*lineBytes) - 1)
}

// LineWords returns the number of 64-bit words of a bank's head, sketch and cold filter.
func (g Geometry) LineWords() int { return (1 + int(g.Lines) + int(g.Cold)) * lineWords }

// FlowWords returns the number of 64-bit words of a bank's flow memory.
func (g Geometry) FlowWords() int { return int(g.Buckets) * bucketWords }

// Counters returns the number of counters of the sketch.
func (g Geometry) Counters() int { return int(g.Lines) * lanes[uint32]() }

// Room returns the number of flows that the flow memory has room for.
func (g Geometry) Room() int { return int(g.Buckets) * slots }

// Size returns the size of a bank in bytes.
func (g Geometry) Size() int { return (g.LineWords() + g.FlowWords()) * 8 }

// Tracker describes what is counted: one key of every packet. Its fields are
// constants of the program.
type Tracker struct {
	V4, V6 key.Shape // of the keys; both of the tuple form, or neither
	Unit   Unit
	Secret *hash.Secret // of the keys' hash
	Geometry

	// Dropped says that only dropped packets are counted, those of a key apart by
	// their causes. Keys are then of one address.
	Dropped bool
}

// Cause is why packets are dropped.
type Cause struct {
	Reason uint8
	List   uint16 // number of the block list that matched, 0 if none did or it is unknown
}

// causeAt is where the word of a cause is in an entry's key.
const causeAt = key.MaxLen - 4

func (c Cause) word() uint32 { return uint32(c.List)<<8 | uint32(c.Reason) }

func causeOf(word uint32) Cause { return Cause{Reason: uint8(word), List: uint16(word >> 8)} }

// validate returns an error for a tracker that no program could implement.
func (t *Tracker) validate() error {
	switch {
	case !t.V4.Valid() || t.V4.V6():
		return fmt.Errorf("sketch: %+v is not an IPv4 shape", t.V4)
	case !t.V6.Valid() || !t.V6.V6():
		return fmt.Errorf("sketch: %+v is not an IPv6 shape", t.V6)
	case t.V4.Tuple() != t.V6.Tuple():
		return fmt.Errorf("sketch: keys %q and %q: want two addresses or two tuples", t.V4, t.V6)
	case t.Dropped && t.V4.Tuple():
		return fmt.Errorf("sketch: dropped packets are counted by one address, not by %q", t.V4)
	case int(t.Unit) >= len(units):
		return fmt.Errorf("sketch: unknown unit %d", t.Unit)
	case t.Lines == 0 || t.Lines%2 != 0 || t.Buckets == 0:
		return fmt.Errorf("sketch: bank of %d lines and %d buckets, want an even number of lines and at least 1 bucket", t.Lines, t.Buckets)
	case t.Cold&(t.Cold-1) != 0 || t.Dropped && t.Cold != 0:
		return fmt.Errorf("sketch: cold filter of %d lines, want a power of 2, and none of dropped packets", t.Cold)
	}
	return nil
}

// Key returns the key under which a packet is counted. A packet without ports,
// such as a later fragment, is counted under ports 0.
func (t *Tracker) Key(p key.Tuple) key.Key {
	if !p.HasPorts {
		p.HasPorts, p.SrcPort, p.DstPort = true, 0, 0
	}
	s := t.V4
	if p.Src.Is6() {
		s = t.V6
	}
	k, _ := s.Of(p) // the family is the shape's, and there are ports
	return k
}

// Hash returns the hash that represents a key in the tracker's memory, where 0
// is an empty slot. Flows with equal hashes are counted as one: among n flows
// that happens with probability n²/2⁶⁵, also if the flows are chosen without the
// secret.
func (t *Tracker) Hash(k key.Key) uint64 { return t.hash(k, Cause{}) }

// hash returns that of the flow of a key's packets that are dropped for a cause.
// An exclusive or with what is no secret leaves the hashes of two keys as
// independent as they were.
func (t *Tracker) hash(k key.Key, c Cause) uint64 {
	return max(1, k.Hash(t.Secret)^uint64(c.word())*golden)
}
