package digest

import (
	"fmt"
	"iter"
	"math"
	"sync"
	"time"
)

// Config says what a Log has to hold.
type Config struct {
	Rate  float64       // packets a second, at least 1 a slice
	Slice time.Duration // length of a slice of time
	FPR   float64       // false-positive rate of a slice that is full at Rate, between 0 and 1
	Keep  time.Duration // how long a packet is remembered, at least Slice
}

// Geometry is the smallest filter that holds a slice's packets at the
// configured false-positive rate. It fails on a Config out of range; see
// [Smallest].
func (c Config) Geometry() (Geometry, error) {
	if c.Slice <= 0 || c.Keep < c.Slice {
		return Geometry{}, fmt.Errorf("digest: slices of %v kept for %v", c.Slice, c.Keep)
	}
	return Smallest(c.Rate*c.Slice.Seconds(), c.FPR)
}

// Number is that of the slice at a time, counted from the Unix epoch, so that
// the slices of several nodes agree.
func (c Config) Number(at time.Time) int64 {
	ns, slice := at.UnixNano(), c.Slice.Nanoseconds()
	n := ns / slice
	if ns%slice < 0 {
		n--
	}
	return n
}

// Begin is when a slice begins.
func (c Config) Begin(number int64) time.Time { return time.Unix(0, number*c.Slice.Nanoseconds()) }

// Slices is how many slices hold what is kept: one more than fit into Keep,
// since the current one has only begun.
func (c Config) Slices() int { return int((c.Keep+c.Slice-1)/c.Slice) + 1 }

// Slice is the digests, under one seed, of the packets that passed from a time
// on and before another.
type Slice struct {
	Seed     uint64
	From, To time.Time
	Packets  uint64 // that were recorded
	Filter   *Filter

	once   sync.Once
	chance float64
}

// Chance is the filter's, which must not change any more.
func (s *Slice) Chance() float64 {
	s.once.Do(func() { s.chance = s.Filter.Chance() })
	return s.chance
}

// Match is a slice in which a packet may have passed.
type Match struct {
	Start  time.Time // of the slice
	Length time.Duration
	Chance float64 // probability that the slice matches a packet that did not pass in it
}

// Overlaps reports whether the slice has any of the time from…to, both included.
func (s *Slice) Overlaps(from, to time.Time) bool { return s.To.After(from) && !s.From.After(to) }

// Finding is what slices say of a packet. A slice in which it passed is always among
// the matches.
type Finding struct {
	Matches []Match // in the order in which slices were asked
	none    float64 // logarithm of the probability that none matches by chance
}

// Ask asks a slice for the packet, whose digest under the slice's seed this is.
func (f *Finding) Ask(s *Slice, digest uint64) {
	p := s.Chance()
	f.none += math.Log1p(-p)
	if s.Filter.Contains(digest) {
		f.Matches = append(f.Matches, Match{s.From, s.To.Sub(s.From), p})
	}
}

// Chance is the probability that a packet which passed in none of the slices that
// were asked would match at least one.
func (f *Finding) Chance() float64 { return -math.Expm1(f.none) }

// Log remembers digests by the slice of time in which they were recorded: what
// a node does, with a clock of its own. It is not safe for concurrent use.
type Log struct {
	config   Config
	geometry Geometry
	ring     []table // slice number n is ring[n mod len(ring)]
}

type table struct {
	number int64 // of the slice
	*Slice       // nil: none yet
}

// NewLog returns an empty log. It fails where Config.Geometry does.
func NewLog(c Config) (*Log, error) {
	g, err := c.Geometry()
	if err != nil {
		return nil, err
	}
	return &Log{c, g, make([]table, c.Slices())}, nil
}

func (l *Log) at(number int64) *table {
	n := int64(len(l.ring))
	return &l.ring[(number%n+n)%n]
}

// Record notes that a packet with the digest passed at the given time. It
// reports whether the log still holds that time: false for one so far in the
// past that its slice has been taken over, and then nothing is noted.
func (l *Log) Record(digest uint64, at time.Time) bool {
	n := l.config.Number(at)
	t := l.at(n)
	if t.Slice != nil && t.number > n {
		return false
	}
	s := &Slice{From: l.config.Begin(n), To: l.config.Begin(n + 1)} // its chance is that of now
	switch {
	case t.Slice == nil:
		s.Filter = NewFilter(l.geometry)
	case t.number < n:
		s.Filter = t.Filter
		s.Filter.Clear()
	default:
		s.Filter, s.Packets = t.Filter, t.Packets
	}
	s.Filter.Record(digest)
	s.Packets++
	*t = table{n, s}
	return true
}

// Query finds the slices that overlap the window from…to, both included, and in
// which a packet with the digest may have passed, in order of time, and
// [Finding.Chance] of it.
func (l *Log) Query(digest uint64, from, to time.Time) (matches []Match, chance float64) {
	var f Finding
	for s := range l.slices() {
		if s.Overlaps(from, to) {
			f.Ask(s, digest)
		}
	}
	return f.Matches, f.Chance()
}

// slices are those of the log, in order of time.
func (l *Log) slices() iter.Seq[*Slice] {
	return func(yield func(*Slice) bool) {
		newest := int64(math.MinInt64)
		for _, t := range l.ring {
			if t.Slice != nil {
				newest = max(newest, t.number)
			}
		}
		if newest == math.MinInt64 {
			return
		}
		for n := newest - int64(len(l.ring)) + 1; n <= newest; n++ {
			if t := l.at(n); t.Slice != nil && t.number == n && !yield(t.Slice) {
				return
			}
		}
	}
}

// Slice is that at the given time, nil if the log has none. It is the log's own.
func (l *Log) Slice(at time.Time) *Slice {
	n := l.config.Number(at)
	if t := l.at(n); t.Slice != nil && t.number == n {
		return t.Slice
	}
	return nil
}

// Bytes is the memory of the log when all of its slices are in use.
func (l *Log) Bytes() int { return len(l.ring) * l.geometry.Bytes() }
