package measure

import (
	"cmp"
	"math"
)

// Bar is a limit that the design sets, and the measured value.
type Bar struct {
	Name    string  `json:"name"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`
}

// judge sets the bars whose results were measured.
func (r *Report) judge() {
	r.Bars = []Bar{}
	for _, p := range promises {
		v, ok := p.figure(r)
		if !ok {
			continue
		}
		reached := v <= p.limit
		if p.atLeast {
			reached = v >= p.limit
		}
		r.Bars = append(r.Bars, Bar{Name: p.name, Limit: p.limit, AtLeast: p.atLeast, Value: v, Reached: reached})
	}
}

// promise computes a bar from the results.
type promise struct {
	name    string
	limit   float64
	atLeast bool
	figure  func(*Report) (float64, bool)
}

const (
	million    = 1_000_000
	tenMillion = 10_000_000
)

var promises = []promise{
	{"negative lookup, 1M, against kernel hash", 0.12, false, netRatio(setRandom, million, 0, weirExact, kernelHash)},
	{"negative lookup, 1M, against kernel Bloom map", 0.25, false, netRatio(setRandom, million, 0, weirExact, kernelBloom)},
	{"negative lookup, 10M, against kernel hash", 0.12, false, netRatio(setRandom, tenMillion, 0, weirExact, kernelHash)},
	{"negative lookup, 10M, against kernel Bloom map", 0.25, false, netRatio(setRandom, tenMillion, 0, weirExact, kernelBloom)},
	{"confirmed hit, 1M, against kernel hash", 0.40, false, netRatio(setRandom, million, 1, weirExact, kernelHash)},
	{"confirmed hit, 10M, against kernel hash", 0.85, false, netRatio(setRandom, tenMillion, 1, weirExact, kernelHash)},
	{"mixed prefixes against LPM trie, clean", 0.15, false, netRatio(setPrefixes, somePrefixesLen, 0, weirExact, kernelLPM)},
	{"mixed prefixes against LPM trie, listed", 0.50, false, netRatio(setPrefixes, somePrefixesLen, 1, weirExact, kernelLPM)},
	{"wire, clean, 10M, of XDP_DROP", 0.92, true, rateRatio(tenMillion, 0, weirExact, xdpDrop)},
	{"wire, all listed, 1M, of XDP_DROP", 0.80, true, rateRatio(million, 1, weirExact, xdpDrop)},
	{"wire, all listed, 1M, of kernel hash", 1.7, true, rateRatio(million, 1, weirExact, kernelHash)},
	{"wire, all listed, 1M, of nftables", 4, true, rateRatio(million, 1, weirExact, nftables)},
	{"wire, all listed, 1M, of ipset", 2.5, true, rateRatio(million, 1, weirExact, ipset)},
	{"wire, all listed, 10M, of XDP_DROP", 0.58, true, rateRatio(tenMillion, 1, weirExact, xdpDrop)},
	{"wire, all listed, 10M, of kernel hash", 1.6, true, rateRatio(tenMillion, 1, weirExact, kernelHash)},
	{"false-positive rate, 10 to 16 bits a key, of the optimum, worst", 1.2, false, worst(func(r Result) float64 { return r.FalsePositive / r.Optimum })},
	{"false-positive rate, of weir's prediction, worst deviation", 0.03, false, worst(func(r Result) float64 { return math.Abs(r.FalsePositive/r.Predicted - 1) })},
	{"10M lines to enforcing, exact, seconds", 6, false, one("load", setMixed, tenMillion, 0, weirExact, seconds)},
	{"10M lines to enforcing, approximate, seconds", 6, false, one("load", setMixed, tenMillion, 0, weirApprox, seconds)},
	{"10k changes to 10M entries to enforcing, exact, seconds", 0.1, false, one("update", setRandom, tenMillion, 0, weirExact, seconds)},
	{"10k changes to 10M entries to enforcing, approximate, seconds", 0.1, false, one("update", setRandom, tenMillion, 0, weirApprox, seconds)},
	{"kernel memory, 10M, approximate, bytes an entry", 2.1, false, one("load", setRandom, tenMillion, 0, weirApprox, kernelEntry)},
	{"kernel memory, 10M, exact, bytes an entry", 11, false, one("load", setRandom, tenMillion, 0, weirExact, kernelEntry)},
	{"heavy set, 1M flows, 256 KB, F1, worst", 0.995, true, leastF1},
	{"one tracker, Zipf traffic, ns a packet", 25, false, heavyCost("tracker", true)},
	{"one tracker, each packet of another flow, ns a packet", 25, false, heavyCost("tracker", false)},
	{"hot table of 64k elements, Zipf traffic, ns a packet", 2, false, heavyCost("hot", true)},
	{"hot table of 64k elements, each packet of another flow, ns a packet", 2, false, heavyCost("hot", false)},
	{"loop filter of 64 bits, inside the domain, ns a packet", 15, false, stageCost("loop-64")},
	{"loop filter of 256 bits, inside the domain, ns a packet", 15, false, stageCost("loop-256")},
	{"digest, slices of 100k packets, ns a packet", 20, false, stageCost("digest-100k")},
}

func seconds(r Result) float64     { return r.Seconds }
func netNS(r Result) float64       { return r.NetNS }
func ratio(r Result) float64       { return r.Ratio }
func kernelEntry(r Result) float64 { return r.KernelEntry }

// find returns the result of a contender with warm caches.
func (r *Report) find(benchmark, set string, entries int, listed float64, contender string) (Result, bool) {
	for _, x := range r.Results {
		if x.Benchmark == benchmark && x.Set == set && x.Entries == entries && x.ListedShare == listed &&
			x.Contender == contender && !x.Cold && x.BitsPerKey == 0 && (x.Zipf == 0 || benchmark == "heavy") {
			return x, true
		}
	}
	return Result{}, false
}

func one(benchmark, set string, entries int, listed float64, contender string, figure func(Result) float64) func(*Report) (float64, bool) {
	return func(r *Report) (float64, bool) {
		x, ok := r.find(benchmark, set, entries, listed, contender)
		return figure(x), ok && figure(x) != 0
	}
}

// quotient divides the figures of two contenders.
func quotient(benchmark, set string, entries int, listed float64, over, under string, figure func(Result) float64) func(*Report) (float64, bool) {
	a, b := one(benchmark, set, entries, listed, over, figure), one(benchmark, set, entries, listed, under, figure)
	return func(r *Report) (float64, bool) {
		x, ok := a(r)
		y, other := b(r)
		return x / y, ok && other
	}
}

func netRatio(set string, entries int, listed float64, over, under string) func(*Report) (float64, bool) {
	return quotient("lookup", set, entries, listed, over, under, netNS)
}

func rateRatio(entries int, listed float64, over, under string) func(*Report) (float64, bool) {
	return quotient("wire", setRandom, entries, listed, over, under, ratio)
}

// worst returns the largest figure of the results on false positives.
func worst(figure func(Result) float64) func(*Report) (float64, bool) {
	return func(r *Report) (v float64, ok bool) {
		for _, x := range r.Results {
			if x.BitsPerKey != 0 && x.FalsePositive != 0 {
				v, ok = max(v, figure(x)), true
			}
		}
		return v, ok
	}
}

func leastF1(r *Report) (v float64, ok bool) {
	for _, x := range r.Results {
		if x.F1 != 0 {
			v, ok = min(cmp.Or(v, 1), x.F1), true
		}
	}
	return v, ok
}

func heavyCost(contender string, zipf bool) func(*Report) (float64, bool) {
	return func(r *Report) (float64, bool) {
		for _, x := range r.Results {
			if x.Benchmark == "heavy" && x.Contender == contender && (x.Zipf != 0) == zipf {
				return x.NetNS, true
			}
		}
		return 0, false
	}
}
