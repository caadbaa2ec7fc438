// Package penalty holds heavy flows back: a rate limit, or a block, for each of
// them, that ends by itself. The control plane imposes penalties on exact
// counts; the data plane looks them up. It is the twin of bpf/penalty.h, and
// works on the kernel's own memory as well as on the heap.
//
// The rate limit is the generic cell rate algorithm (ITU-T I.371), which is a
// token bucket of which just one number is kept: when it will be full.
package penalty

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"weir/filter/hash"
)

// Geometry, the same as in bpf/penalty.h.
const (
	slots       = 8
	entryWords  = 4
	BucketWords = slots * (1 + entryWords) // 64-bit words in a bucket

	block     = math.MaxUint64 // the cost that no bucket pays
	costShift = 10             // a cost counts in nanoseconds / 2^costShift
)

// MaxRate is the highest rate that can be set as a limit, in units a second:
// beyond it, a unit costs less than the clock of the costs resolves.
const MaxRate = 1e9 * (1 << costShift) / 8

// Penalty is what a flow has to bear. Times are those of the kernel's
// monotonic clock.
type Penalty struct {
	Until time.Duration // it ends then
	Rate  float64       // units a second that pass, up to MaxRate; 0: none does
	Burst float64       // units that pass at once, at least 1
}

// Verdict is what a penalty says to a packet.
type Verdict uint8

const (
	None    Verdict = iota // no penalty, or within the rate
	Limited                // over the rate
	Blocked
)

// Table holds penalties by the 64-bit hash of the flow. There must be one
// writer at a time, beside any number of programs that look up.
type Table struct {
	words   []uint64
	buckets uint32
	len     int
}

// NewTable makes a table over words, a multiple of BucketWords, and takes over
// the penalties in them. It fails on another size.
func NewTable(words []uint64) (*Table, error) {
	if len(words) == 0 || len(words)%BucketWords != 0 {
		return nil, fmt.Errorf("penalty: %d words are no buckets of %d", len(words), BucketWords)
	}
	t := &Table{words: words, buckets: uint32(len(words) / BucketWords)}
	for b := range int(t.buckets) {
		for i := range slots {
			if words[b*BucketWords+i] != 0 {
				t.len++
			}
		}
	}
	return t, nil
}

// Len is the number of penalties, those that have ended included until they
// are removed.
func (t *Table) Len() int { return t.len }

// entry is what the table says of a flow: words until, cost, burst, full.
func (t *Table) find(h uint64) (hash *uint64, entry []uint64, ok bool) {
	b := t.bucket(h)
	for i := range slots {
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

func (b bucket) entry(slot int) []uint64 { return b[slots+slot*entryWords:][:entryWords] }

// Set imposes a penalty on the flow with hash h, which is not 0, or changes the
// one that it has; what it has used up of its rate stays. It reports false
// where the bucket has no room: the flow goes unpunished.
func (t *Table) Set(h uint64, p Penalty) bool {
	cost, burst := uint64(block), uint64(0)
	if p.Rate > 0 {
		each := 1e9 / min(p.Rate, MaxRate)
		cost = uint64(math.Round(each * (1 << costShift)))
		burst = uint64(max(p.Burst-1, 0) * each)
	}
	if _, e, ok := t.find(h); ok {
		atomic.StoreUint64(&e[1], cost)
		atomic.StoreUint64(&e[2], burst)
		atomic.StoreUint64(&e[0], uint64(p.Until))
		return true
	}
	b := t.bucket(h)
	for i := range slots {
		if b[i] != 0 {
			continue
		}
		e := b.entry(i)
		for j, w := range [...]uint64{uint64(p.Until), cost, burst, 0} {
			atomic.StoreUint64(&e[j], w)
		}
		atomic.StoreUint64(&b[i], h) // last: now it is found
		t.len++
		return true
	}
	return false
}

// Remove takes the flow's penalty away, if it has one.
func (t *Table) Remove(h uint64) {
	if at, _, ok := t.find(h); ok {
		atomic.StoreUint64(at, 0)
		t.len--
	}
}

// Expire removes the penalties that have ended.
func (t *Table) Expire(now time.Duration) {
	for i := range int(t.buckets) {
		b := bucket(t.words[i*BucketWords:][:BucketWords])
		for j := range slots {
			if b[j] != 0 && now >= time.Duration(b.entry(j)[0]) {
				atomic.StoreUint64(&b[j], 0)
				t.len--
			}
		}
	}
}

// Check says what becomes of a packet of so many units of the flow with hash
// h, and takes them from its rate if it passes.
func (t *Table) Check(h, units uint64, now time.Duration) Verdict {
	_, e, ok := t.find(h)
	if !ok {
		return None
	}
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
