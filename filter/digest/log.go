package digest

import (
	"fmt"
	"math"
	"time"

	"weir/filter/bloom"
	"weir/filter/fpr"
)

// Config says what a Log has to hold.
type Config struct {
	Rate  float64       // packets a second, at least 1 a slice
	Slice time.Duration // length of a slice of time
	FPR   float64       // false-positive rate of a slice that is full at Rate, between 0 and 1
	Keep  time.Duration // how long a packet is remembered, at least Slice
}

// Geometry is the smallest filter that holds a slice's packets at the
// configured false-positive rate, by the exact formula. It fails on a Config
// out of range and on slices that would need 2³² bits or more.
func (c Config) Geometry() (bloom.Geometry, error) {
	if c.Slice <= 0 || c.Keep < c.Slice {
		return bloom.Geometry{}, fmt.Errorf("digest: slices of %v kept for %v", c.Slice, c.Keep)
	}
	if !(c.FPR > 0 && c.FPR < 1) {
		return bloom.Geometry{}, fmt.Errorf("digest: false-positive rate %g", c.FPR)
	}
	n := math.Ceil(c.Rate * c.Slice.Seconds())
	if !(n >= 1) || bloom.Bits(uint64(n), c.FPR) > math.MaxUint32 {
		return bloom.Geometry{}, fmt.Errorf("digest: slices of %g packets", n)
	}
	m, k := fpr.Smallest(int(n), c.FPR)
	return bloom.Standard(uint32(m), k)
}

// Log remembers digests by the slice of time in which they were recorded.
// Slices are counted from the Unix epoch, so that those of several nodes agree.
// It is not safe for concurrent use.
type Log struct {
	geometry bloom.Geometry
	slice    time.Duration
	ring     []table // slice number n is ring[n mod len(ring)]
}

type table struct {
	number int64 // of the slice, from the epoch
	filter *bloom.Filter
	chance float64 // of a match, as of the last query; negative after a change
}

// match is the probability that the table matches a digest that was not
// recorded: it selects k bits at random, each of which is set with the
// probability that the table itself tells.
func (t *table) match() float64 {
	if t.chance < 0 {
		t.chance = math.Pow(t.filter.FillRatio(), float64(t.filter.K()))
	}
	return t.chance
}

// NewLog returns an empty log. It fails where Config.Geometry does.
func NewLog(c Config) (*Log, error) {
	g, err := c.Geometry()
	if err != nil {
		return nil, err
	}
	// One slice more than fit into Keep: the current one has only begun.
	slices := int((c.Keep+c.Slice-1)/c.Slice) + 1
	return &Log{g, c.Slice, make([]table, slices)}, nil
}

// number is that of the slice at a time.
func (l *Log) number(at time.Time) int64 {
	ns, slice := at.UnixNano(), l.slice.Nanoseconds()
	n := ns / slice
	if ns%slice < 0 {
		n--
	}
	return n
}

func (l *Log) at(number int64) *table {
	n := int64(len(l.ring))
	return &l.ring[(number%n+n)%n]
}

// Record notes that a packet with the digest passed at the given time. It
// reports whether the log still holds that time: false for one so far in the
// past that its slice has been taken over, and then nothing is noted.
func (l *Log) Record(digest uint64, at time.Time) bool {
	n := l.number(at)
	t := l.at(n)
	switch {
	case t.filter == nil:
		*t = table{number: n, filter: bloom.New(l.geometry, 0)} // its seed is for byte strings, not for hashes
	case t.number > n:
		return false
	case t.number < n:
		t.number = n
		t.filter.Clear()
	}
	t.filter.AddHash(digest)
	t.chance = -1
	return true
}

// Match is a slice in which a packet may have passed.
type Match struct {
	Start  time.Time // of the slice
	Length time.Duration
	Chance float64 // probability that the slice matches a packet that did not pass in it
}

// Query finds the slices that overlap the window from…to, both included, and in
// which a packet with the digest may have passed, in order of time. A slice in
// which it did pass is always among them as long as the log holds it. chance is
// the probability that a packet which passed in none of the window's slices
// would match at least one.
func (l *Log) Query(digest uint64, from, to time.Time) (matches []Match, chance float64) {
	first, last := l.number(from), l.number(to)
	newest := first
	for _, t := range l.ring {
		if t.filter != nil {
			newest = max(newest, t.number)
		}
	}
	var none float64 // logarithm of the probability that none matches by chance
	for n := max(first, newest-int64(len(l.ring))+1); n <= min(last, newest); n++ {
		t := l.at(n)
		if t.filter == nil || t.number != n {
			continue // nothing passed
		}
		p := t.match()
		none += math.Log1p(-p)
		if t.filter.ContainsHash(digest) {
			matches = append(matches, Match{time.Unix(0, n*l.slice.Nanoseconds()), l.slice, p})
		}
	}
	return matches, -math.Expm1(none)
}

// Slice is the filter of the slice at the given time, nil if the log has none,
// to be stored or to be read by others. It is the log's own.
func (l *Log) Slice(at time.Time) *bloom.Filter {
	n := l.number(at)
	if t := l.at(n); t.filter != nil && t.number == n {
		return t.filter
	}
	return nil
}

// Bytes is the memory of the log when all of its slices are in use.
func (l *Log) Bytes() int { return len(l.ring) * ((int(l.geometry.M()) + 63) / 64 * 8) }
