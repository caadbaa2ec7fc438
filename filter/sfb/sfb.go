// Package sfb implements Stochastic Fair Blue queue management (Feng, Kandlur,
// Saha and Shin, INFOCOM 2001; Broder and Mitzenmacher's survey, section 7.2),
// with the details and defaults of Linux's sch_sfb.
//
// A queue has L levels of N bins, and each flow one bin in every level. A bin
// counts its queued packets and has a marking probability, which rises when a
// packet arrives at a full bin and falls when one arrives at an empty bin. A
// packet is marked with the least probability of its bins, so a flow suffers
// only if in every level it shares a bin with a flow that fills it. A flow
// whose probability reaches 1 despite all marks is unresponsive, and limited to
// a small rate. The hash function changes periodically, so that no flow shares
// all bins with an unresponsive one for long.
//
// The policer, the twin of bpf/police.h, can also drop by a flow's rate, after Pan, Breslau,
// Prabhakar and Shenker, "Approximate fairness through differential dropping", 2003.
package sfb

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"time"

	"weir/filter/hash"
)

// maxProbability is the highest probability in Q0.16 fixed point, 65535/65536.
const maxProbability = math.MaxUint16

// Config describes a queue; see [Linux] for defaults.
type Config struct {
	Levels int // L, at least 1
	Bins   int // N, bins of a level, a power of two; all levels' bins come from 64 bits of hash

	Limit   int // queue length, in packets, from which all packets are dropped
	BinSize int // packets in a bin from which its probability rises
	Max     int // packets in each of a flow's bins from which its packets are dropped

	Increment uint16 // added to the probability of a full bin, Q0.16
	Decrement uint16 // subtracted from the probability of an empty bin, Q0.16

	Rehash time.Duration // lifetime of a hash function; 0 is unlimited
	Warmup time.Duration // time before a change in which the next function's bins are filled

	PenaltyRate  int // packets per second of all unresponsive flows together; 0 drops them all
	PenaltyBurst int // burst of the penalty rate, in packets
}

// Linux returns the defaults of sch_sfb, with its limit for the usual transmit
// queue of 1000 packets.
func Linux() Config {
	return Config{
		Levels: 8, Bins: 16, // eight slices of 4 bits
		Limit: 1000, BinSize: 20, Max: 25,
		Increment: (maxProbability + 500) / 1000,  // 0.1 %
		Decrement: (maxProbability + 3000) / 6000, // 0.017 %
		Rehash:    600 * time.Second, Warmup: 60 * time.Second,
		PenaltyRate: 10, PenaltyBurst: 20,
	}
}

func (c Config) check() error {
	switch {
	case c.Levels < 1 || c.Bins < 2 || c.Bins&(c.Bins-1) != 0 || c.Levels*bits.TrailingZeros(uint(c.Bins)) > 64:
		return fmt.Errorf("sfb: %d levels of %d bins", c.Levels, c.Bins)
	case c.Limit < 1 || c.BinSize < 1 || c.Max < 1:
		return fmt.Errorf("sfb: limit %d, bin size %d, max %d, want at least 1", c.Limit, c.BinSize, c.Max)
	case c.Rehash < 0 || c.Warmup < 0 || c.Warmup > c.Rehash:
		return fmt.Errorf("sfb: warm-up %v of rehash %v", c.Warmup, c.Rehash)
	case c.PenaltyRate < 0 || c.PenaltyRate > int(time.Second) || c.PenaltyBurst < 0:
		return fmt.Errorf("sfb: penalty rate %d, burst %d", c.PenaltyRate, c.PenaltyBurst)
	}
	return nil
}

// FalsePunish returns the probability that a responsive flow is punished,
// because in every level it shares its bin with at least one of the given
// number of unresponsive flows: (1 − (1 − 1/bins)^flows)^levels (Feng et al.,
// section 3).
func FalsePunish(levels, bins, flows int) float64 {
	return math.Pow(1-math.Pow(1-1/float64(bins), float64(flows)), float64(levels))
}

// Verdict is the decision on an arriving packet.
type Verdict uint8

const (
	Queued      Verdict = iota // in the queue
	Marked                     // in the queue, to be marked as having encountered congestion
	EarlyDrop                  // dropped because of its marking probability
	PenaltyDrop                // dropped because the penalty rate is exceeded
	BinDrop                    // dropped because all its bins are at Max
	QueueDrop                  // dropped because the queue is at Limit
)

// Dropped reports whether the packet was dropped.
func (v Verdict) Dropped() bool { return v >= EarlyDrop }

// String returns the verdict's name.
func (v Verdict) String() string {
	if names := [...]string{"queued", "marked", "early drop", "penalty drop", "bin drop", "queue drop"}; int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// bin is a virtual queue.
type bin struct {
	queued      int    // packets of the bin in the queue
	probability uint16 // of marking, Q0.16
}

// set contains the bins of one hash function.
type set struct {
	function uint64
	bins     []bin // level by level
}

// place identifies a packet's bins in a set by hash bits, of which each level
// takes its own. It is stored with the packet, since the hash function may
// change before the packet leaves.
type place struct {
	bits    uint64
	counted bool
}

type packet[P any] struct {
	content P
	places  [2]place
}

// Queue is a first-in, first-out queue of packets P under Stochastic Fair Blue.
// It has two sets of bins, one in use and one for the next hash function. It is
// not safe for concurrent use.
type Queue[P any] struct {
	config  Config
	rng     *rand.Rand
	packets []packet[P]

	sets    [2]set
	current int       // active set
	since   time.Time // time at which it became active
	warming bool      // the other set is warming up

	tokens   int // of the penalty rate
	refilled time.Time
}

// New returns an empty queue at the given time. source supplies the randomness
// for marks and hash functions. It fails if the configuration is out of range.
func New[P any](c Config, source rand.Source, now time.Time) (*Queue[P], error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	q := &Queue[P]{config: c, rng: rand.New(source), since: now, tokens: c.PenaltyBurst, refilled: now}
	for i := range q.sets {
		q.sets[i] = set{q.rng.Uint64(), make([]bin, c.Levels*c.Bins)}
	}
	return q, nil
}

// Len returns the number of packets in the queue.
func (q *Queue[P]) Len() int { return len(q.packets) }

// Probability returns the marking probability of the flow with hash h, the
// least of its bins.
func (q *Queue[P]) Probability(h uint64) float64 {
	_, probability := q.least(q.current, q.place(q.current, h))
	return float64(probability) / maxProbability
}

// Enqueue decides on an arriving packet of the flow with hash h, and queues it
// unless it is dropped. A packet that can be marked (ECN) is marked where
// another would be dropped early, unless the flow's probability exceeds one
// half: marks have been ineffective then, and a growing share of the packets is
// dropped. Time must not go backwards.
func (q *Queue[P]) Enqueue(p P, h uint64, canMark bool, now time.Time) Verdict {
	if len(q.packets) >= q.config.Limit {
		return QueueDrop
	}
	q.moveOn(now)

	pkt := packet[P]{content: p}
	at := q.place(q.current, h)
	pkt.places[q.current] = at
	q.adapt(q.current, at)
	queued, probability := q.least(q.current, at)
	if queued >= q.config.Max {
		return BinDrop
	}
	verdict := Queued
	if probability == maxProbability {
		// An unresponsive flow will be unresponsive after the hash function
		// changes: fill its new bins.
		if other := 1 - q.current; q.warming {
			at := q.place(other, h)
			pkt.places[other] = at
			q.adapt(other, at)
		}
		if !q.penaltyToken(now) {
			return PenaltyDrop
		}
	} else if r := uint16(q.rng.Uint32()); r < probability {
		const half = maxProbability / 2
		inVain := probability > half && int(r) < 2*(int(probability)-half)
		if inVain || !canMark {
			return EarlyDrop
		}
		verdict = Marked
	}
	q.count(pkt.places, +1)
	q.packets = append(q.packets, pkt)
	return verdict
}

// Dequeue removes and returns the oldest packet of the queue; it reports false
// if there is none.
func (q *Queue[P]) Dequeue() (P, bool) {
	if len(q.packets) == 0 {
		var none P
		return none, false
	}
	pkt := q.packets[0]
	q.packets[0] = packet[P]{} // allow garbage collection
	q.packets = q.packets[1:]
	q.count(pkt.places, -1)
	return pkt.content, true
}

// moveOn changes the hash function when it has reached its lifetime. The
// retired set gets the function after the next and probabilities of zero; its
// packets leave it as they leave the queue. (sch_sfb keeps the old
// probabilities, which then affect other flows in those bins.)
func (q *Queue[P]) moveOn(now time.Time) {
	if q.config.Rehash == 0 {
		return
	}
	switch age := now.Sub(q.since); {
	case age > q.config.Rehash:
		old := &q.sets[q.current]
		old.function = q.rng.Uint64()
		for i := range old.bins {
			old.bins[i].probability = 0
		}
		q.current = 1 - q.current
		q.since = now
		q.warming = false
	case age > q.config.Rehash-q.config.Warmup:
		q.warming = true
	}
}

func (q *Queue[P]) place(set int, h uint64) place {
	return place{hash.Nth(h, q.sets[set].function), true}
}

// each calls f with the packet's bin in every level.
func (q *Queue[P]) each(set int, at place, f func(*bin)) {
	bins, rest := q.sets[set].bins, at.bits
	for level := range q.config.Levels {
		f(&bins[level*q.config.Bins+int(rest%uint64(q.config.Bins))])
		rest /= uint64(q.config.Bins)
	}
}

// adapt adjusts the probabilities of a packet's bins to their load.
func (q *Queue[P]) adapt(set int, at place) {
	q.each(set, at, func(b *bin) {
		switch {
		case b.queued == 0:
			b.probability -= min(b.probability, q.config.Decrement)
		case b.queued >= q.config.BinSize:
			b.probability += min(maxProbability-b.probability, q.config.Increment)
		}
	})
}

// least returns the smallest load and the smallest probability of a packet's
// bins.
func (q *Queue[P]) least(set int, at place) (queued int, probability uint16) {
	queued, probability = math.MaxInt, maxProbability
	q.each(set, at, func(b *bin) {
		queued = min(queued, b.queued)
		probability = min(probability, b.probability)
	})
	return queued, probability
}

func (q *Queue[P]) count(places [2]place, n int) {
	for set, at := range places {
		if at.counted {
			q.each(set, at, func(b *bin) { b.queued += n })
		}
	}
}

// penaltyToken takes a token from the bucket that all unresponsive flows share.
// The bucket is refilled with whole tokens when it is found empty; the fraction
// of a token is carried over. (sch_sfb discards it, so that a flow faster than
// the penalty rate gets nothing after the first burst.)
func (q *Queue[P]) penaltyToken(now time.Time) bool {
	if q.tokens == 0 && q.config.PenaltyRate > 0 {
		interval := time.Second / time.Duration(q.config.PenaltyRate)
		earned := now.Sub(q.refilled) / interval
		q.refilled = q.refilled.Add(earned * interval)
		q.tokens = int(min(earned, time.Duration(q.config.PenaltyBurst)))
	}
	if q.tokens == 0 {
		return false
	}
	q.tokens--
	return true
}
