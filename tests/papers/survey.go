package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/digest"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/sfb"
	"weir/filter/sketch"
	"weir/tests/papers/curve"
)

func survey(p *page) {
	p.from(`A. Broder, M. Mitzenmacher: *Network Applications of Bloom Filters: A Survey*, Internet Mathematics 1 (2004).`)
	p.surveyStandard()
	p.surveyTricks()
	p.surveyCounting()
	p.surveyCompressed()
	p.surveyDatabases()
	p.surveyReconcile()
	p.surveyTrees()
	p.surveyRouting()
	p.surveyGrid()
	p.surveyLoops()
	p.surveyFairBlue()
	p.surveyHeavyFlows()
	p.surveyTraceback()
	p.surveySpectral()
	p.surveySpaceCode()
}

// surveyLoops is section 7.1.
func (p *page) surveyLoops() {
	p.section("7.1 Detecting loops in Icarus")
	p.text(`Every packet carries a filter of m bits into which each node ORs its mask of k
bits; a packet that a node does not change may be in a loop. The package is
weir/filter/icarus. The survey gives no numbers. These are exact: the probability
that a path without a loop is reported at some node, with the k for which it is
least, beside the rate of as many packets sent along random paths, and beside what
the classic formula of the false-positive rate would say for the same k.`)
	const trials = 50000
	var rows [][]string
	for _, c := range []struct{ size, hops int }{{64, 8}, {64, 16}, {128, 8}, {128, 16}, {256, 8}, {256, 16}, {256, 32}} {
		k, exact, err := icarus.Best(c.size, c.hops, 1)
		p.fail(err)
		if p.err != nil {
			return
		}
		none := 1.0
		for n := range c.hops {
			none *= 1 - fpr.Classic(c.size, n, k)
		}
		measured := "–"
		if exact > 100.0/trials {
			measured = num(p.falseAlarms(c.size, k, c.hops, trials), 3)
		}
		rows = append(rows, []string{fmt.Sprint(c.size), fmt.Sprint(c.hops), fmt.Sprint(k), num(exact, 3), measured, num(1-none, 3)})
	}
	p.table([]string{"bits", "hops", "best k", "false alarm", "measured", "classic"}, rows...)

	var curves []curve.Named
	for _, c := range []struct{ size, confirm int }{{64, 1}, {128, 1}, {256, 1}, {64, 2}, {128, 2}, {256, 2}} {
		var points curve.Points
		for hops := 2; hops <= 40; hops += 2 {
			_, x, err := icarus.Best(c.size, hops, c.confirm)
			p.fail(err)
			if x > 1e-10 {
				points = points.At(float64(hops), x)
			}
		}
		curves = append(curves, curve.Named{Name: fmt.Sprintf("%d bits, c = %d", c.size, c.confirm), Points: points})
	}
	f := curve.New("False alarms at the best k", "hops", "probability")
	f.LogY()
	p.figure("icarus", "Section 7.1: loop-free paths that are reported, when c nodes in a row must find the filter unchanged", f, curves...)
	p.text(`Departures: a mask has k distinct bits, which makes fewer false alarms than k hashes
that may coincide. The classic formula takes the filter to have k·n bits drawn at
random and the tests to be independent; it is wrong in either direction for filters
of this size.`)
}

// falseAlarms is the rate at which loop-free paths are reported.
func (p *page) falseAlarms(size, k, hops, trials int) float64 {
	rng := rand.New(rand.NewPCG(71, uint64(size+hops)))
	alarms := 0
	for range trials {
		domain := rng.Uint64()
		var f icarus.Filter
		for id := range uint64(hops) {
			mask, err := icarus.Mask(domain, id, size, k)
			p.fail(err)
			if !f.Visit(mask) {
				alarms++
				break
			}
		}
	}
	return float64(alarms) / float64(trials)
}

// surveyFairBlue is section 7.2.
func (p *page) surveyFairBlue() {
	p.section("7.2 Stochastic Fair Blue")
	p.text(`A counting filter of queue lengths, with a marking probability for each bin. The
package is weir/filter/sfb, with the parameters of Linux's sch_sfb: 8 levels of 16
bins. A link of 1000 packets a second carries one flow that sends 1200 packets a
second whatever happens, and ten that respond as TCP does:`)
	const duration = 60 * time.Second
	q, err := sfb.New[int](sfb.Linux(), rand.NewPCG(72, 0), time.Unix(0, 0))
	p.fail(err)
	if p.err != nil {
		return
	}
	tail := linkShares(&fifo{limit: sfb.Linux().Limit}, duration)
	blue := linkShares(q, duration)
	var curves []curve.Named
	for _, c := range []struct {
		name   string
		shares []shares
	}{{"drop tail", tail}, {"SFB", blue}} {
		var held, others curve.Points
		for i, s := range c.shares {
			held = held.At(float64(i+1), s.unresponsive)
			others = others.At(float64(i+1), s.responsive)
		}
		curves = append(curves, curve.Named{Name: c.name + ": unresponsive", Points: held}, curve.Named{Name: c.name + ": mean of the others", Points: others})
	}
	p.figure("sfb", "Section 7.2: the unresponsive flow takes the link, or is held down", curve.New("Throughput of a flow", "seconds", "packets a second"), curves...)

	p.text(`A flow is punished for others if it meets a flow that does not respond in every
level: (1 − (1 − 1/16)^M)^8 for M such flows. Often the approximation (1 − e^(−M/16))^8
is given, which is 2.6 %% at M = 16 where the formula has 3.0 %%.`)
	var rows [][]string
	for _, m := range []int{1, 4, 8, 16, 32, 64} {
		rows = append(rows, []string{fmt.Sprint(m), num(sfb.FalsePunish(8, 16, m), 3), num(math.Pow(1-math.Exp(-float64(m)/16), 8), 3)})
	}
	p.table([]string{"flows M", "falsely punished", "approximation"}, rows...)
	p.text(`Departures from sch_sfb, each because it would not do what the paper says: the set of
bins that goes out of use forgets its probabilities, and time that makes up no whole
token of the penalty rate is not lost.`)
}

type link interface {
	Enqueue(flow int, h uint64, canMark bool, now time.Time) sfb.Verdict
	Dequeue() (int, bool)
}

// fifo is a queue without management.
type fifo struct {
	flows []int
	limit int
}

func (q *fifo) Enqueue(flow int, _ uint64, _ bool, _ time.Time) sfb.Verdict {
	if len(q.flows) >= q.limit {
		return sfb.QueueDrop
	}
	q.flows = append(q.flows, flow)
	return sfb.Queued
}

func (q *fifo) Dequeue() (int, bool) {
	if len(q.flows) == 0 {
		return 0, false
	}
	flow := q.flows[0]
	q.flows = q.flows[1:]
	return flow, true
}

// shares are packets a second that get through.
type shares struct{ unresponsive, responsive float64 }

// linkShares gives each second's throughput of the unresponsive flow and of the
// mean responsive one, whose window grows by a packet each round trip of 100 ms
// and halves when it meets congestion, once a round trip.
func linkShares(q link, duration time.Duration) []shares {
	const (
		responsive = 10
		tick       = time.Millisecond // a packet of the link
		perTrip    = 0.01             // of a round trip
	)
	rng := rand.New(rand.NewPCG(72, 1))
	var window, credit [1 + responsive]float64
	var deaf [1 + responsive]time.Time
	for i := range window {
		window[i] = 1 + 9*rng.Float64()
	}
	all := make([]shares, duration/time.Second)
	for at := time.Duration(0); at < duration; at += tick {
		now := time.Unix(0, 0).Add(at)
		for _, i := range rng.Perm(len(window)) {
			if i == 0 {
				credit[i] += 1.2
			} else {
				credit[i] += window[i] * perTrip
				window[i] += perTrip
			}
			for ; credit[i] >= 1; credit[i]-- {
				if q.Enqueue(i, hash.Nth(72, uint64(i)), true, now) != sfb.Queued && now.After(deaf[i]) {
					window[i] = max(1, window[i]/2)
					deaf[i] = now.Add(100 * tick)
				}
			}
		}
		s := &all[at/time.Second]
		if i, ok := q.Dequeue(); ok && i == 0 {
			s.unresponsive++
		} else if ok {
			s.responsive += 1.0 / responsive
		}
	}
	return all
}

// surveyHeavyFlows is section 8.1.
func (p *page) surveyHeavyFlows() {
	p.section("8.1 Recording heavy flows")
	s, err := sketch.New[uint64](sketch.Rows, 4, 1<<16)
	p.fail(err)
	if p.err != nil {
		return
	}
	p.text(`Counters instead of bits; a flow's estimate is the least of its four. The package is
weir/filter/sketch. Figure 2: the flow's least counter is 2, and a packet of 4 bytes
arrives.`)
	const flow = 81
	before := figure2(s, flow)
	s.AddConservative(flow, 4)
	p.table([]string{"counters before", "after, paper", "after, ours"}, []string{fmt.Sprint(before), "only up to 6", fmt.Sprint(countersOf(s, before))})

	const (
		flows, packets, threshold = 200000, 2000000, 1000
		kilobyte                  = 1 << 10
	)
	p.text(`F1 of the set of heavy flows, %d packets of %d flows with Zipf sizes, heavy from %d
packets on, 4 counters of 32 bits a flow. A fifth of each of 64 KB, 256 KB and 1 MB, for
a fifth of the flows and packets of the published comparisons. None of them
ever misses a heavy flow. Shielding: a flow whose estimate has reached half of the threshold is
counted exactly from then on, in a flow memory besides, and no longer raises the counters
that others share. It is the data plane's filter, where two lines of the CPU's cache hold
all counters of a flow.`, packets, flows, threshold)
	var rows [][]string
	for _, alpha := range []float64{0.9, 1.1, 1.3} {
		stream, truth := zipfStream(flows, packets, alpha)
		for _, method := range []string{"count-min", "conservative update", "multistage filter, shielding"} {
			row := []string{fixed(alpha, 1), method}
			for _, size := range []int{64 * kilobyte / 5, 256 * kilobyte / 5, 1024 * kilobyte / 5} {
				var add func(f uint32)
				var estimate func(f uint32) uint64
				if method == "multistage filter, shielding" {
					m, err := sketch.NewMultistage(sketch.Tracker{
						V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 128}, Secret: hash.NewSecret(hash.Seed{81}),
						Geometry: sketch.Geometry{Lines: uint32(size / 128 * 2), Buckets: 1024},
					}, sketch.Threshold{Units: threshold})
					p.fail(err)
					if p.err != nil {
						return
					}
					add = func(f uint32) { m.CountKey(flowKey(f), m.Hash(flowKey(f)), 1) }
					estimate = func(f uint32) uint64 { return m.Estimate(sketch.Flow{Key: flowKey(f), Hash: m.Hash(flowKey(f))}) }
				} else {
					s, err := sketch.New[uint32](sketch.Rows, 4, size/16)
					p.fail(err)
					if p.err != nil {
						return
					}
					add = func(f uint32) { s.AddConservative(flowHash(f), 1) }
					if method == "count-min" {
						add = func(f uint32) { s.Add(flowHash(f), 1) }
					}
					estimate = func(f uint32) uint64 { return s.Estimate(flowHash(f)) }
				}
				for _, f := range stream {
					add(f)
				}
				row = append(row, fixed(f1(truth, threshold, estimate), 4))
			}
			rows = append(rows, row)
		}
	}
	p.table([]string{"Zipf", "method", "13 KB", "52 KB", "210 KB"}, rows...)
}

func flowHash(f uint32) uint64 { return hash.Nth(81, uint64(f)) }

// flowKey is the address that stands for a flow.
func flowKey(f uint32) key.Key {
	a := netip.AddrFrom4([4]byte{byte(f >> 24), byte(f >> 16), byte(f >> 8), byte(f)})
	return key.Source(netip.PrefixFrom(a, 32))
}

// figure2 gives the flow's four counters the values of an example and returns
// them, row by row.
func figure2(s *sketch.Sketch[uint64], flow uint64) []uint64 {
	before := []uint64{3, 8, 2, 5}
	s.Add(flow, 1)
	i := 0
	for j, c := range s.Counters() {
		if c == 1 {
			s.Counters()[j] = before[i]
			i++
		}
	}
	return before
}

// countersOf gives the counters that are in use, row by row.
func countersOf(s *sketch.Sketch[uint64], before []uint64) []uint64 {
	after := make([]uint64, 0, len(before))
	for _, c := range s.Counters() {
		if c > 0 {
			after = append(after, c)
		}
	}
	return after
}

// zipfStream is packets of flows with Zipf sizes, and the flows' true sizes.
func zipfStream(flows, packets int, alpha float64) (stream []uint32, truth []uint64) {
	weights := make([]float64, flows)
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -alpha)
	}
	zipf := distuv.NewCategorical(weights, rand.NewPCG(81, 0))
	stream, truth = make([]uint32, packets), make([]uint64, flows)
	for i := range stream {
		stream[i] = uint32(zipf.Rand())
		truth[stream[i]]++
	}
	return stream, truth
}

// f1 is the harmonic mean of precision and recall of the flows that an estimate
// calls heavy.
func f1(truth []uint64, threshold uint64, estimate func(f uint32) uint64) float64 {
	var right, wrong float64
	for f, n := range truth {
		if n == 0 {
			continue // no flow: nothing asks for it
		}
		switch is, says := n >= threshold, estimate(uint32(f)) >= threshold; {
		case is && says:
			right++
		case is != says:
			wrong++
		}
	}
	return 2 * right / (2*right + wrong)
}

// surveyTraceback is section 8.2.
func (p *page) surveyTraceback() {
	p.section("8.2 IP traceback")
	p.text(`Each node records a digest of every packet in the Bloom filter of the current slice
of time. The package is weir/filter/digest. "A false positive would lead to a branch,
giving multiple possible paths." A packet is traced back over eight nodes, each with
three neighbours that might have sent it; the filters are as full as they were sized
for. The extra branches off the path that meet a false positive, for each trace; those off
such a branch, if it is followed, are not counted:`)
	const hops, neighbours, packets, traces = 8, 3, 1000, 3000
	var rows [][]string
	for _, rate := range []float64{0.1, 0.03, 0.01, 0.001} {
		c := digest.Config{Rate: packets, Slice: time.Second, FPR: rate, Keep: time.Second}
		rng := rand.New(rand.NewPCG(82, 0))
		at := time.Unix(0, 0)
		// One filter for each neighbour that the packet did not pass.
		logs := make([]*digest.Log, hops*(neighbours-1))
		for i := range logs {
			l, err := digest.NewLog(c)
			p.fail(err)
			if p.err != nil {
				return
			}
			for range packets {
				l.Record(rng.Uint64(), at)
			}
			logs[i] = l
		}
		branches := 0
		for range traces {
			packet := rng.Uint64()
			for _, l := range logs {
				if m, _ := l.Query(packet, at, at); len(m) > 0 {
					branches++
				}
			}
		}
		g, err := c.Geometry()
		p.fail(err)
		scattered, _ := fpr.Smallest(packets, rate)
		rows = append(rows, []string{num(rate, 2), fmt.Sprintf("%d lines, k = %d", g.Lines, g.Bits),
			fixed(float64(8*g.Bytes())/packets, 2), fixed(float64(scattered)/packets, 2),
			num(float64(len(logs))*g.FalsePositiveRate(packets), 4), num(float64(branches)/traces, 4)})
	}
	p.table([]string{"false-positive rate", "filter", "bits a packet", "of a standard filter", "branches, predicted", "measured"}, rows...)
	p.text(`Departure: the bits of a packet lie in one line of 64 bytes, so that recording it
misses the cache once, and they are fewer where that costs not more than a tenth in
memory.`)
	p.text(`The digest covers the header fields that do not change and the first 8 bytes of
payload, 20 for IPv6, without a checksum among them. Departure from SPIE: IPv4 options and the IPv6 hop-by-hop header
are left out altogether, with the lengths as they would be without, since nodes may
insert them on the way.`)
}
