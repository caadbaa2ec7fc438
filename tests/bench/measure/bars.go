package measure

import (
	"cmp"
)

// Bar is a limit that the design sets, and the measured value.
type Bar struct {
	Name    string  `json:"name"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`
}

// Judge sets the bars whose results were measured.
func (r *Report) Judge() {
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
	tenThousand     = 10_000
	hundredThousand = 100_000
	million         = 1_000_000
	tenMillion      = 10_000_000
	hundredMillion  = 100_000_000
)

// Feeds with bars of their own, by the names of their files.
const (
	union   = "union-2026"               // addresses
	bitwire = "bitwire-inbound-networks" // prefixes, most of them within few networks
)

// before is the memory of an entry of bitwire when prefixes were in cascade and table.
const before = 25.5

// atOnce is how many times the packets of one core two must have, so that a packet takes at
// most a tenth longer.
const atOnce = 1.82

var promises = []promise{
	{"kernel memory, exact, 10k, bytes an entry", 7, false, one("load", setRandom, tenThousand, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 100k, bytes an entry", 7, false, one("load", setRandom, hundredThousand, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 1M, bytes an entry", 4.5, false, one("load", setRandom, million, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 10M, bytes an entry", 4.3, false, one("load", setRandom, tenMillion, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 100M, bytes an entry", 2.7, false, one("load", setRandom, hundredMillion, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, union-2026, bytes an entry", 4.5, false, one("load", union, anySize, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, bitwire's prefixes, bytes an entry", before / 3, false, one("load", bitwire, anySize, 0, weirExact, kernelEntry)},

	{"wire, 10k, clean, of XDP_DROP", 0.97, true, one("wire", setRandom, tenThousand, 0, weirExact, ratio)},
	{"wire, 10k, listed, of XDP_DROP", 0.93, true, one("wire", setRandom, tenThousand, 1, weirExact, ratio)},
	{"wire, 100k, clean, of XDP_DROP", 0.95, true, one("wire", setRandom, hundredThousand, 0, weirExact, ratio)},
	{"wire, 100k, listed, of XDP_DROP", 0.87, true, one("wire", setRandom, hundredThousand, 1, weirExact, ratio)},
	{"wire, 1M, clean, of one read of equal memory", 1.0, true, rateRatio(million, 0, oneBucket)},
	{"wire, 1M, listed, of one read of equal memory", 0.90, true, rateRatio(million, 1, oneBucket)},
	{"wire, 10M, clean, of one read of equal memory", 1.0, true, rateRatio(tenMillion, 0, oneBucket)},
	{"wire, 10M, listed, of one read of equal memory", 0.90, true, rateRatio(tenMillion, 1, oneBucket)},
	{"wire, 100k, listed, of kernel hash", 2, true, rateRatio(hundredThousand, 1, kernelHash)},
	{"wire, 1M, listed, of kernel hash", 2, true, rateRatio(million, 1, kernelHash)},
	{"wire, 10M, listed, of kernel hash", 2.5, true, rateRatio(tenMillion, 1, kernelHash)},
	{"wire, 1M, listed, of nftables", 3.5, true, rateRatio(million, 1, nftables)},
	{"wire, 1M, listed, of ipset", 3.5, true, rateRatio(million, 1, ipset)},
	{"wire, 100k, clean, usual configuration, of XDP_DROP", 0.80, true, one("options", setRandom, hundredThousand, 0, weirUsual, ratio)},
	{"hook: tc, 100k, clean, of generic XDP", 0.9, true, one("hooks", setRandom, hundredThousand, 0, weirTC, ratio)},
	{"hook: tc, 100k, listed, of generic XDP", 0.9, true, one("hooks", setRandom, hundredThousand, 1, weirTC, ratio)},

	{"hit in a loop, 1M, of kernel hash's time", 0.15, false, netRatio(million, 1, kernelHash)},
	{"hit in a loop, 10M, of kernel hash's time", 0.30, false, netRatio(tenMillion, 1, kernelHash)},

	{"10M addresses to enforcing, seconds", 2.5, false, one("load", setRandom, tenMillion, 0, weirExact, seconds)},
	{"10M addresses and prefixes to enforcing, seconds", 2.5, false, one("load", setMixed, tenMillion, 0, weirExact, seconds)},
	{"10k changes to 10M entries to enforcing, seconds", 0.060, false, one("update", setRandom, tenMillion, 0, weirExact, seconds)},
	{"100M addresses to enforcing, seconds", 40, false, one("load", setRandom, hundredMillion, 0, weirExact, seconds)},
	{"100M addresses to enforcing, memory of the process meanwhile, GB", 3, false, one("load", setRandom, hundredMillion, 0, weirExact, peak)},

	{"tracker on the wire, ns a packet", 16, false, one("options", setRandom, hundredThousand, 0, weirTracker, netNS)},
	{"digest on the wire, ns a packet", 15, false, one("options", setRandom, hundredThousand, 0, weirDigest, netNS)},
	{"guard on the wire, beyond the general path, ns a packet", 45, false, beyondGeneral(weirGuard)},
	{"policer on the wire, beyond the general path, ns a packet", 70, false, beyondGeneral(weirPolice)},
	{"first-seen flows on the wire, ns a packet", 30, false, one("options", setRandom, hundredThousand, 0, weirFirst, netNS)},
	{"two cores against one, guard", atOnce, true, one("cores", setRandom, hundredThousand, 0, weirGuard, scaling)},
	{"two cores against one, policer", atOnce, true, one("cores", setRandom, hundredThousand, 0, weirPolice, scaling)},
	{"two cores against one, first-seen flows", atOnce, true, one("cores", setRandom, hundredThousand, 0, weirFirst, scaling)},
	{"two cores against one, worst configuration", 1.9, true, leastScaling},
	{"IPv6, 1M, listed, lookup by the keyed hash, of that by XXH64", 1.0, true, quotient("ipv6", setRandom, million, 1, lookupKeyed, lookupXXH64, ratio)},
}

func peak(r Result) float64        { return float64(r.Peak) / 1e9 }
func seconds(r Result) float64     { return r.Seconds }
func netNS(r Result) float64       { return r.NetNS }
func ratio(r Result) float64       { return r.Ratio }
func scaling(r Result) float64     { return r.Scaling }
func kernelEntry(r Result) float64 { return r.KernelEntry }

// anySize is the size of a feed, whose name suffices.
const anySize = 0

// find returns the result of a contender with warm caches.
func (r *Report) find(benchmark, set string, entries int, listed float64, contender string) (Result, bool) {
	for _, x := range r.Results {
		if x.Benchmark == benchmark && x.Set == set && (x.Entries == entries || entries == anySize) && x.ListedShare == listed &&
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

// beyondGeneral is what an option costs that the lean path does not have, without the path
// that it takes instead.
func beyondGeneral(contender string) func(*Report) (float64, bool) {
	option := one("options", setRandom, hundredThousand, 0, contender, netNS)
	general := one("options", setRandom, hundredThousand, 0, weirGeneral, netNS)
	return func(r *Report) (float64, bool) {
		x, ok := option(r)
		y, other := general(r)
		return x - y, ok && other
	}
}

// netRatio divides weir's time in a loop by another's.
func netRatio(entries int, listed float64, under string) func(*Report) (float64, bool) {
	return quotient("lookup", setRandom, entries, listed, weirExact, under, netNS)
}

// rateRatio divides weir's rate on the wire by another's.
func rateRatio(entries int, listed float64, under string) func(*Report) (float64, bool) {
	return quotient("wire", setRandom, entries, listed, weirExact, under, ratio)
}

// leastScaling returns the least of weir's results on two cores.
func leastScaling(r *Report) (v float64, ok bool) {
	for _, x := range r.Results {
		if x.Scaling != 0 && x.Contender != xdpDrop {
			v, ok = min(cmp.Or(v, x.Scaling), x.Scaling), true
		}
	}
	return v, ok
}
