// Package penalty implements rate limits and blocks for single flows, each with
// an expiry. The control plane and the data plane impose penalties based on exact
// counts; the data plane looks them up. It is the twin of bpf/penalty.h and
// bpf/threshold.h, and works on kernel memory as well as on the heap. Commands limit sources
// by the same rule: see [Limits].
//
// The rate limit is the generic cell rate algorithm (ITU-T I.371), a token
// bucket whose only state is the time at which it will be full.
package penalty

import (
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"time"

	"weir/filter/hash"
)

// Geometry, the same as in bpf/penalty.h.
const (
	Slots       = 8 // penalties in a bucket
	entryWords  = 4
	BucketWords = Slots * (1 + entryWords) // 64-bit words in a bucket

	block     = math.MaxUint64 // the cost that marks a block
	costShift = 10             // costs are in units of 2^-costShift nanoseconds
)

// MaxRate is the maximum rate limit, in units per second: beyond it, a unit
// costs less than the resolution of costs.
const MaxRate = 1e9 * (1 << costShift) / 8

// Penalty is a rate limit or a block. Times are by the kernel's monotonic
// clock.
type Penalty struct {
	Until time.Duration // expiry
	Rate  float64       // units per second that pass, up to MaxRate; 0 blocks
	Burst float64       // units that pass at once, at least 1
}

// Verdict is the effect of a penalty on a packet.
type Verdict uint8

const (
	None    Verdict = iota // no penalty, or within the rate
	Limited                // over the rate
	Blocked
)

// Table stores penalties by the 64-bit hash of the flow. Calls that write must
// be serialised; any number of programs may look up concurrently.
type Table struct {
	words   []uint64
	buckets uint32
	len     int
}

// NewTable returns a table over words, and adopts the penalties in them. It
// fails unless their number is a positive multiple of BucketWords.
func NewTable(words []uint64) (*Table, error) {
	if len(words) == 0 || len(words)%BucketWords != 0 {
		return nil, fmt.Errorf("penalty: %d words, want a multiple of %d", len(words), BucketWords)
	}
	t := &Table{words: words, buckets: uint32(len(words) / BucketWords)}
	for b := range int(t.buckets) {
		for i := range Slots {
			if words[b*BucketWords+i] != 0 {
				t.len++
			}
		}
	}
	return t, nil
}

// Len returns the number of penalties, including expired ones that Expire has
// not yet removed.
func (t *Table) Len() int { return t.len }

// find returns the flow's slot: words until, cost, burst, full.
func (t *Table) find(h uint64) (hash *uint64, entry []uint64, ok bool) {
	b := t.bucket(h)
	for i := range Slots {
		if atomic.LoadUint64(&b[i]) == h {
			return &b[i], b.entry(i), true
		}
	}
	return nil, nil, false
}

type bucket []uint64

func (t *Table) bucket(h uint64) bucket {
	i := int(hash.Reduce(h, t.buckets)) * BucketWords
	return t.words[i : i+BucketWords]
}

func (b bucket) entry(slot int) []uint64 { return b[Slots+slot*entryWords:][:entryWords] }

// Words returns a penalty's cost and burst as programs have them.
func (p Penalty) Words() (cost, burst uint64) {
	if p.Rate <= 0 {
		return block, 0
	}
	each := 1e9 / min(p.Rate, MaxRate)
	return uint64(math.Round(each * (1 << costShift))), uint64(max(p.Burst-1, 0) * each)
}

// Set imposes a penalty on the flow with hash h, which must not be 0, or
// replaces the flow's present one; the used part of its rate is carried over.
// It reports false if the bucket is full: the flow then has no penalty.
func (t *Table) Set(h uint64, p Penalty) bool {
	cost, burst := p.Words()
	if _, e, ok := t.find(h); ok {
		atomic.StoreUint64(&e[1], cost)
		atomic.StoreUint64(&e[2], burst)
		atomic.StoreUint64(&e[0], uint64(p.Until))
		return true
	}
	b := t.bucket(h)
	for i := range Slots {
		if b[i] != 0 {
			continue
		}
		e := b.entry(i)
		for j, w := range [...]uint64{uint64(p.Until), cost, burst, 0} {
			atomic.StoreUint64(&e[j], w)
		}
		atomic.StoreUint64(&b[i], h) // last: readers find the entry from here on
		t.len++
		return true
	}
	return false
}

// Impose is like Set, as programs do it: in a full bucket, a penalty takes the place of an
// expired one.
func (t *Table) Impose(h uint64, p Penalty, now time.Duration) {
	b := t.bucket(h)
	if _, _, ok := t.find(h); !ok {
		slot := -1
		for i := range Slots {
			if b[i] == 0 || b.entry(i)[0] <= uint64(now) {
				slot = i
			}
		}
		if slot < 0 {
			return
		}
		if b[slot] == 0 {
			t.len++
		}
		b[slot] = h
		b.entry(slot)[3] = 0
	}
	t.Set(h, p)
}

// All yields the hashes of all flows that have penalties, and when those expire.
func (t *Table) All() iter.Seq2[uint64, time.Duration] {
	return func(yield func(uint64, time.Duration) bool) {
		for i := range int(t.buckets) {
			b := bucket(t.words[i*BucketWords:][:BucketWords])
			for j := range Slots {
				if h := atomic.LoadUint64(&b[j]); h != 0 && !yield(h, time.Duration(atomic.LoadUint64(&b.entry(j)[0]))) {
					return
				}
			}
		}
	}
}

// Contains reports whether the flow has a penalty, maybe an expired one.
func (t *Table) Contains(h uint64) bool {
	_, _, ok := t.find(h)
	return ok
}

// Until returns when the flow's penalty expires, and false if it has none.
func (t *Table) Until(h uint64) (time.Duration, bool) {
	_, e, ok := t.find(h)
	if !ok {
		return 0, false
	}
	return time.Duration(atomic.LoadUint64(&e[0])), true
}

// Rival is a penalty in the bucket of a flow.
type Rival struct {
	Hash  uint64
	Until time.Duration
}

// Rivals returns the penalties in the bucket of the flow with hash h. If it is full, one of
// them must be removed to make room for that flow's.
func (t *Table) Rivals(h uint64) (all []Rival) {
	b := t.bucket(h)
	for i := range Slots {
		if b[i] != 0 {
			all = append(all, Rival{b[i], time.Duration(b.entry(i)[0])})
		}
	}
	return all
}

// Remove removes the flow's penalty, if any.
func (t *Table) Remove(h uint64) {
	if at, _, ok := t.find(h); ok {
		atomic.StoreUint64(at, 0)
		t.len--
	}
}

// Expire removes the expired penalties.
func (t *Table) Expire(now time.Duration) {
	for i := range int(t.buckets) {
		b := bucket(t.words[i*BucketWords:][:BucketWords])
		for j := range Slots {
			if b[j] != 0 && now >= time.Duration(b.entry(j)[0]) {
				atomic.StoreUint64(&b[j], 0)
				t.len--
			}
		}
	}
}

// Cap lets no penalty expire later than latest.
func (t *Table) Cap(latest time.Duration) {
	for i := range int(t.buckets) {
		b := bucket(t.words[i*BucketWords:][:BucketWords])
		for j := range Slots {
			if until := &b.entry(j)[0]; time.Duration(atomic.LoadUint64(until)) > latest {
				atomic.StoreUint64(until, uint64(latest))
			}
		}
	}
}

// Check returns what happens to a packet of the given number of units of the
// flow with hash h, and charges them to its rate if it passes.
func (t *Table) Check(h, units uint64, now time.Duration) Verdict {
	_, e, ok := t.find(h)
	if !ok {
		return None
	}
	return meter(e, units, now)
}

// meter is Check for the words of a penalty.
func meter(e []uint64, units uint64, now time.Duration) Verdict {
	at, until, cost, burst, full := uint64(now), e[0], e[1], e[2], e[3]
	switch {
	case at >= until:
		return None
	case cost == block:
		return Blocked
	case full > at+burst:
		return Limited
	}
	e[3] = max(full, at) + cost*units>>costShift
	return None
}
