package digest

// Of a packet that runs in a circle, the same digest comes again and again, with
// a TTL that falls each time. The constants are those of bpf/digest.h.
const (
	// LoopFalls is how often the TTL must have fallen. Once it falls for whoever
	// sees a packet before and behind one router.
	LoopFalls = 2
	// Sightings is how many packets the data plane watches on each CPU.
	Sightings = 1024
)

// Loops watches packets for loops, of which it remembers a number: the latest of
// those that would take the same place. In the data plane it is told only of
// packets whose digests were recorded before, hence from their second sighting
// on, and suspects a loop at the fourth.
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

// NewLoops makes room for a number of packets, Sightings or any other.
func NewLoops(packets int) *Loops { return &Loops{make([]sighting, packets)} }

// See takes in a packet that was seen in a slice. It reports whether it is
// suspected of a loop now, but was not before in this slice, and gives the TTL with
// which it was first seen.
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

// TTL is the time to live, or the hop limit, of a packet that has a digest.
func TTL(pkt []byte) uint8 {
	if pkt[0]>>4 == 6 {
		return pkt[7]
	}
	return pkt[8]
}
