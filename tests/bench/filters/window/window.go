// Package window has detectors of flows that have many packets in any window of a stream, and
// the exact one, to compare them. They are written to be read.
package window

import (
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sketch"
)

// Detector finds the flows that have at least a number of packets in a window, whenever that is.
type Detector interface {
	Count(flow uint64)
	Found() map[uint64]bool
	Bytes() int
}

// Kind makes a detector for windows of this many packets.
type Kind struct {
	Name, Source string
	Weir         bool
	New          func(window int, threshold uint64) (Detector, error)
}

// Kinds are all kinds.
var Kinds = []Kind{
	{"intervals, 128 KiB each", "filter/sketch", true, func(w int, t uint64) (Detector, error) { return newIntervals(w, t, 0) }},
	{"two rows of intervals, half an interval apart", "filter/sketch", false, newOverlapping},
	{"WCSS, 4,096 blocks", "Ben-Basat, Einziger, Friedman, Kassner, Heavy Hitters in Streams and Sliding Windows, INFOCOM 2016: Memento (CoNEXT 2018) without sampling", false, newWCSS(4096)},
}

// intervals is weir's tracker, whose intervals last a window.
type intervals struct {
	*sketch.Multistage
	window, seen int
	found        map[uint64]bool
}

const bankBytes = 128 << 10

func newIntervals(window int, threshold uint64, seen int) (*intervals, error) {
	m, err := sketch.NewMultistage(sketch.Tracker{
		V4:       key.Shape{SrcBits: 32},
		V6:       key.Shape{Fields: key.FieldV6, SrcBits: 128},
		Secret:   hash.NewSecret(hash.Seed{1}),
		Geometry: sketch.PlanGeometry(bankBytes),
	}, sketch.Threshold{Units: threshold})
	return &intervals{m, window, seen, make(map[uint64]bool)}, err
}

// Count has the flow for the lower half of a source.
func (d *intervals) Count(flow uint64) {
	if d.seen++; d.seen > d.window {
		d.note()
		d.Next()
		d.seen = 1
	}
	k := key.Key{Shape: d.V6, Dst: netip.IPv6Unspecified()}
	var src [16]byte
	binary.BigEndian.PutUint64(src[8:], flow)
	k.Src = netip.AddrFrom16(src)
	d.CountKey(k, d.Hash(k), 1)
}

// note takes the flows that are heavy in the present interval.
func (d *intervals) note() {
	for f := range d.Heavy() {
		src := f.Key.Src.As16()
		d.found[binary.BigEndian.Uint64(src[8:])] = true
	}
}

func (d *intervals) Found() map[uint64]bool {
	d.note()
	return d.found
}

func (d *intervals) Bytes() int { return 2 * bankBytes }

// overlapping is two of them, so that what lasts half a window at most lies within one interval.
type overlapping [2]*intervals

func newOverlapping(window int, threshold uint64) (d Detector, err error) {
	var both overlapping
	for i := range both {
		if both[i], err = newIntervals(window, threshold, i*window/2); err != nil {
			return nil, err
		}
	}
	return both, nil
}

func (d overlapping) Count(flow uint64) {
	for _, i := range d {
		i.Count(flow)
	}
}

func (d overlapping) Found() map[uint64]bool {
	found := d[0].Found()
	for f := range d[1].Found() {
		found[f] = true
	}
	return found
}

func (d overlapping) Bytes() int { return 4 * bankBytes }

// wcss is the window compact Space-Saving: Space-Saving within a frame of a window's length, and
// for each of the last blocks the flows whose count has passed a multiple of a block's length.
type wcss struct {
	counts           *counts
	block, blocks    int
	at               int
	overflown        [][]uint64 // by block, the oldest first
	times            map[uint64]int
	threshold        uint64
	found            map[uint64]bool
	overflows, inUse int // most at a time
}

func newWCSS(blocks int) func(window int, threshold uint64) (Detector, error) {
	return func(window int, threshold uint64) (Detector, error) {
		d := &wcss{
			counts: newCounts(blocks), block: max(1, window/blocks), blocks: blocks,
			overflown: make([][]uint64, 1, blocks+2), times: make(map[uint64]int), threshold: threshold, found: make(map[uint64]bool),
		}
		return d, nil
	}
}

func (d *wcss) Count(flow uint64) {
	if d.at%(d.block*d.blocks) == 0 {
		d.counts = newCounts(d.blocks)
	}
	if d.at%d.block == 0 {
		d.overflown = append(d.overflown, nil)
		if len(d.overflown) > d.blocks+1 {
			for _, f := range d.overflown[0] { // the paper takes one with each packet
				if d.times[f]--; d.times[f] == 0 {
					delete(d.times, f)
				}
				d.inUse--
			}
			d.overflown = d.overflown[1:]
		}
	}
	d.at++
	n := d.counts.add(flow)
	if n%d.block == 0 {
		last := len(d.overflown) - 1
		d.overflown[last] = append(d.overflown[last], flow)
		d.times[flow]++
		d.inUse++
		d.overflows = max(d.overflows, d.inUse)
	}
	// What the flow has had in the window, or up to four blocks more.
	estimate := n + 2*d.block
	if times := d.times[flow]; times > 0 {
		estimate = d.block*(times+2) + n%d.block
	}
	if uint64(estimate) >= d.threshold {
		d.found[flow] = true
	}
}

func (d *wcss) Found() map[uint64]bool { return d.found }

// Bytes counts 16 for each flow of Space-Saving, 8 for each overflow in a block, and 16 for each
// flow that has overflown, of which there are no more.
func (d *wcss) Bytes() int { return 16*d.blocks + (8+16)*d.overflows }

// counts is Space-Saving: a heap with the least on top.
type counts struct {
	flows []uint64
	n     []int
	at    map[uint64]int
	room  int
}

func newCounts(room int) *counts { return &counts{at: make(map[uint64]int), room: room} }

func (c *counts) Len() int           { return len(c.flows) }
func (c *counts) Less(i, j int) bool { return c.n[i] < c.n[j] }
func (c *counts) Push(any)           {} // add appends
func (c *counts) Pop() any           { return nil }

func (c *counts) Swap(i, j int) {
	c.flows[i], c.flows[j] = c.flows[j], c.flows[i]
	c.n[i], c.n[j] = c.n[j], c.n[i]
	c.at[c.flows[i]], c.at[c.flows[j]] = i, j
}

// add counts a packet, and returns the flow's count.
func (c *counts) add(flow uint64) int {
	i, ok := c.at[flow]
	switch {
	case ok:
	case len(c.flows) == c.room:
		i = 0
		delete(c.at, c.flows[0])
		c.flows[0], c.at[flow] = flow, 0
	default:
		i = len(c.flows)
		c.flows, c.n = append(c.flows, flow), append(c.n, 0)
		c.at[flow] = i
	}
	c.n[i]++
	n := c.n[i]
	heap.Fix(c, i)
	return n
}

// exact counts each window's packets.
type exact struct {
	last      []uint64
	at        int
	counts    map[uint64]uint64
	threshold uint64
	found     map[uint64]bool
}

// NewExact returns the detector with which others are compared.
func NewExact(window int, threshold uint64) Detector {
	return &exact{make([]uint64, window), 0, make(map[uint64]uint64), threshold, make(map[uint64]bool)}
}

func (d *exact) Count(flow uint64) {
	slot := &d.last[d.at%len(d.last)]
	if d.at++; d.at > len(d.last) {
		if d.counts[*slot]--; d.counts[*slot] == 0 {
			delete(d.counts, *slot)
		}
	}
	*slot = flow
	if d.counts[flow]++; d.counts[flow] >= d.threshold {
		d.found[flow] = true
	}
}

func (d *exact) Found() map[uint64]bool { return d.found }
func (d *exact) Bytes() int             { return 8*len(d.last) + 16*len(d.counts) }

// Bursts returns a stream of Zipf's distribution with bursts, each of a flow of its own, of one to
// two thresholds within this many packets at any place, and the flows of these.
func Bursts(packets, bursts int, threshold uint64, within int, seed uint64) (stream, flows []uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	z := rand.NewZipf(r, 1.1, 1, 1_000_000-1)
	stream = make([]uint64, packets)
	for i := range stream {
		stream[i] = hash.Nth(seed, 1+z.Uint64())
	}
	for b := range bursts {
		flow := hash.Nth(seed+1, uint64(b))
		flows = append(flows, flow)
		begin := r.IntN(packets - within)
		// Of the places that no other burst has taken.
		for left := threshold + r.Uint64N(threshold); left > 0; {
			if i := begin + r.IntN(within); stream[i] != flow {
				stream[i] = flow
				left--
			}
		}
	}
	return stream, flows
}
