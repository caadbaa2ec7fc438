package digest

// A packet in a routing loop produces the same digest again and again, with a
// decreasing TTL. bpf/digest.h has the same constants.
const (
	// LoopFalls is the number of times that the TTL must have decreased. It
	// decreases once for an observer on both sides of a single router.
	LoopFalls = 2
	// Sightings is the number of packets that the data plane watches on each
	// CPU.
	Sightings = 1024
)

// Loops watches a bounded number of packets for loops, keeping the latest of
// those that share a slot. The data plane passes it only packets whose digests
// were recorded before, hence from their second sighting on, so it suspects a
// loop at the fourth.
type Loops struct {
	sightings []sighting
}

type sighting struct {
	digest uint64
	slice  uint32
	first  uint8 // TTL
	ttl    uint8 // now
	falls  uint8
}

// NewLoops returns a watcher with slots for the given number of packets, such
// as Sightings.
func NewLoops(packets int) *Loops { return &Loops{make([]sighting, packets)} }

// See records a packet seen in a time slice. It reports whether the packet has
// just become suspected of a loop in this slice, and returns the TTL with which
// it came first.
func (l *Loops) See(digest uint64, ttl uint8, slice uint32) (first uint8, suspected bool) {
	s := &l.sightings[digest%uint64(len(l.sightings))]
	if s.digest != digest || s.slice != slice || ttl > s.ttl {
		*s = sighting{digest: digest, slice: slice, first: ttl, ttl: ttl}
		return ttl, false
	}
	if ttl == s.ttl {
		return s.first, false
	}
	s.ttl = ttl
	if s.falls <= LoopFalls {
		s.falls++
	}
	return s.first, s.falls == LoopFalls
}

// TTL returns the time to live, or the hop limit, of a packet that has a
// digest.
func TTL(pkt []byte) uint8 {
	if pkt[0]>>4 == 6 {
		return pkt[7]
	}
	return pkt[8]
}
