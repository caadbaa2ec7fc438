package digest

import (
	"fmt"
	"iter"
	"math"
	"sync"
	"time"

	"weir/filter/blocked"
	"weir/filter/hash"
)

// Config describes a [Log].
type Config struct {
	Rate  float64       // packets a second, at least 1 a slice
	Slice time.Duration // length of a time slice
	FPR   float64       // false-positive rate of a slice that is full at Rate, between 0 and 1
	Keep  time.Duration // how long a packet is remembered, at least Slice
}

// Geometry returns the smallest filter that stores a slice's packets at the
// configured false-positive rate. It fails if the Config is out of range; see
// [blocked.For].
func (c Config) Geometry() (blocked.Geometry, error) {
	if c.Slice <= 0 || c.Keep < c.Slice {
		return blocked.Geometry{}, fmt.Errorf("digest: slices of %v kept for %v", c.Slice, c.Keep)
	}
	n := math.Ceil(c.Rate * c.Slice.Seconds())
	if !(n >= 1 && n < math.MaxInt32) {
		return blocked.Geometry{}, fmt.Errorf("digest: a slice of %g packets", n)
	}
	g, err := blocked.For(int(n), c.FPR)
	if err != nil {
		return g, fmt.Errorf("digest: %w", err)
	}
	return g, nil
}

// Number returns the number of the slice at a time, counted from the Unix
// epoch, so that the slices of several nodes agree.
func (c Config) Number(at time.Time) int64 {
	ns, slice := at.UnixNano(), c.Slice.Nanoseconds()
	n := ns / slice
	if ns%slice < 0 {
		n--
	}
	return n
}

// Begin returns the time at which a slice begins.
func (c Config) Begin(number int64) time.Time { return time.Unix(0, number*c.Slice.Nanoseconds()) }

// Slices returns the number of slices to keep: one more than fit into Keep,
// since the current one has only begun.
func (c Config) Slices() int { return int((c.Keep+c.Slice-1)/c.Slice) + 1 }

// Slice contains the digests, computed with one secret, of the packets that
// passed in [From, To).
type Slice struct {
	Seed     hash.Seed // of the secret
	From, To time.Time
	Packets  uint64 // number recorded
	Filter   *blocked.Filter

	once   sync.Once
	chance float64
}

// Chance returns [blocked.Filter.Chance]. The filter must no longer change.
func (s *Slice) Chance() float64 {
	s.once.Do(func() { s.chance = s.Filter.Chance() })
	return s.chance
}

// Match is a time slice in which a packet may have passed.
type Match struct {
	Start  time.Time // of the slice
	Length time.Duration
	Chance float64 // false-positive rate of the slice
}

// Overlaps reports whether the slice overlaps the window from…to, both
// included.
func (s *Slice) Overlaps(from, to time.Time) bool { return s.To.After(from) && !s.From.After(to) }

// Finding is the result of a query over several slices. A slice in which the
// packet passed is always among the matches.
type Finding struct {
	Matches []Match // in the order of the queries
	none    float64 // logarithm of the probability that none matches by chance
}

// Ask looks the packet up in a slice by its digest, computed with the slice's
// secret, and adds a match if it is positive.
func (f *Finding) Ask(s *Slice, digest uint64) {
	p := s.Chance()
	f.none += math.Log1p(-p)
	if s.Filter.Contains(digest) {
		f.Matches = append(f.Matches, Match{s.From, s.To.Sub(s.From), p})
	}
}

// Chance returns the probability that a packet that passed in none of the
// queried slices matches at least one.
func (f *Finding) Chance() float64 { return -math.Expm1(f.none) }

// Log stores digests by time slice, as a node does, but with the times passed
// as arguments. It is not safe for concurrent use.
type Log struct {
	config   Config
	geometry blocked.Geometry
	ring     []table // slice number n is ring[n mod len(ring)]
}

type table struct {
	number int64 // of the slice
	*Slice       // nil: none yet
}

// NewLog returns an empty log. It fails if [Config.Geometry] does.
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

// Record stores the digest of a packet that passed at the given time. It
// reports false, and stores nothing, if that time is so long ago that its slice
// has been overwritten.
func (l *Log) Record(digest uint64, at time.Time) bool {
	n := l.config.Number(at)
	t := l.at(n)
	if t.Slice != nil && t.number > n {
		return false
	}
	s := &Slice{From: l.config.Begin(n), To: l.config.Begin(n + 1)} // Chance is computed by the caller
	switch {
	case t.Slice == nil:
		s.Filter = blocked.New(l.geometry)
	case t.number < n:
		s.Filter = t.Filter
		s.Filter.Clear()
	default:
		s.Filter, s.Packets = t.Filter, t.Packets
	}
	s.Filter.Observe(digest)
	s.Packets++
	*t = table{n, s}
	return true
}

// Query returns the slices that overlap the window from…to, both included, and
// in which a packet with the digest may have passed, in order of time, and the
// [Finding.Chance] of the result.
func (l *Log) Query(digest uint64, from, to time.Time) (matches []Match, chance float64) {
	var f Finding
	for s := range l.slices() {
		if s.Overlaps(from, to) {
			f.Ask(s, digest)
		}
	}
	return f.Matches, f.Chance()
}

// slices yields the log's slices in order of time.
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

// Slice returns the log's own slice at the given time, or nil if there is none.
func (l *Log) Slice(at time.Time) *Slice {
	n := l.config.Number(at)
	if t := l.at(n); t.Slice != nil && t.number == n {
		return t.Slice
	}
	return nil
}

// Bytes returns the size of the log in bytes when all of its slices are in use.
func (l *Log) Bytes() int { return len(l.ring) * l.geometry.Bytes() }
