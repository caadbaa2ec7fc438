package measure

import "math"

// Bar is a limit that the design sets, and the measured value.
type Bar struct {
	Name    string  `json:"name"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`

	// The limit is within the 95 % confidence interval of the value, from Low to High.
	Undecided bool    `json:"undecided,omitempty"`
	Low       float64 `json:"low,omitempty"`
	High      float64 `json:"high,omitempty"`
}

// Verdict returns reached, missed or undecided.
func (b Bar) Verdict() string {
	switch {
	case b.Undecided:
		return "undecided"
	case b.Reached:
		return "reached"
	}
	return "missed"
}

// Judge sets the bars whose results were measured.
func (r *Report) Judge() {
	r.Bars = []Bar{}
	for _, p := range promises {
		v, ok := p.figure(r)
		if !ok {
			continue
		}
		b := Bar{Name: p.name, Limit: p.limit, AtLeast: p.atLeast, Value: v.value, Reached: v.value <= p.limit}
		if p.atLeast {
			b.Reached = v.value >= p.limit
		}
		if v.low < v.high {
			b.Low, b.High, b.Undecided = tidy(v.low), tidy(v.high), v.low <= p.limit && p.limit <= v.high
		}
		r.Bars = append(r.Bars, b)
	}
}

// tidy rounds away what the addition of fractions leaves of 0.
func tidy(v float64) float64 { return math.Round(v*1e9) / 1e9 }

// estimate is a figure with its 95 % confidence interval.
type estimate struct{ value, low, high float64 }

func exactly(v float64) estimate       { return estimate{v, v, v} }
func within(v, width float64) estimate { return estimate{v, v - width, v + width} }

// over divides by an independent estimate: relative widths add up like standard deviations.
func (e estimate) over(o estimate) estimate {
	v := e.value / o.value
	relative := func(e estimate) float64 { return (e.high - e.low) / 2 / e.value }
	return within(v, v*math.Hypot(relative(e), relative(o)))
}

// promise computes a bar from the results.
type promise struct {
	name    string
	limit   float64
	atLeast bool
	figure  measured
}

// measured computes an estimate, if it was measured.
type measured func(*Report) (estimate, bool)

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

// option is how long any one option may take beyond its own work, in nanoseconds.
const option = 5

var promises = []promise{
	{"kernel memory, exact, 10k, bytes an entry", 7, false, one("load", setRandom, tenThousand, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 100k, bytes an entry", 7, false, one("load", setRandom, hundredThousand, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 1M, bytes an entry", 4.5, false, one("load", setRandom, million, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 1M in 60 lists, bytes an entry", 3.9, false, one("load", setRandom, million, 0, weirLists60, kernelEntry)},
	{"kernel memory, exact, 10M in 15 lists, bytes an entry", 3.5, false, one("load", setRandom, tenMillion, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, 100M, bytes an entry", 2.7, false, one("load", setRandom, hundredMillion, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, IPv6, 1M, bytes an entry", 9, false, one("ipv6", setRandom, million, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, union-2026, bytes an entry", 4.5, false, one("load", union, anySize, 0, weirExact, kernelEntry)},
	{"kernel memory, exact, bitwire's prefixes, bytes an entry", before / 3, false, one("load", bitwire, anySize, 0, weirExact, kernelEntry)},

	{"wire, 10k, clean, beyond bare, less 1.3 of one line, ns", 10, false, beyondLine(tenThousand, 0)},
	{"wire, 10k, listed, beyond bare, less 1.3 of one line, ns", 10, false, beyondLine(tenThousand, 1)},
	{"wire, 100k, clean, beyond bare, of one line of equal memory", 1.1, false, beyondRatio(hundredThousand, 0)},
	{"wire, 100k, listed, beyond bare, of one line of equal memory", 1.15, false, beyondRatio(hundredThousand, 1)},
	{"wire, 1M, clean, beyond bare, of one line of equal memory", 1.1, false, beyondRatio(million, 0)},
	{"wire, 1M, listed, beyond bare, of one line of equal memory", 1.15, false, beyondRatio(million, 1)},
	{"wire, 10M, clean, beyond bare, of one line of equal memory", 1.1, false, beyondRatio(tenMillion, 0)},
	{"wire, 10M, listed, beyond bare, of one line of equal memory", 1.15, false, beyondRatio(tenMillion, 1)},
	{"wire, 10k, clean, of bare, with a driver of 42 ns", 0.75, true, atDriver(tenThousand, 0, bare)},
	{"wire, 1M, listed, of kernel hash, with a driver of 42 ns", 3, true, atDriver(million, 1, kernelHash)},
	{"wire, 100k, listed, of kernel hash", 2, true, rateRatio(hundredThousand, 1, kernelHash)},
	{"wire, 1M, listed, of kernel hash", 3, true, rateRatio(million, 1, kernelHash)},
	{"wire, 10M, listed, of kernel hash", 3, true, rateRatio(tenMillion, 1, kernelHash)},
	{"wire, 1M, listed, of nftables", 4.5, true, rateRatio(million, 1, nftables)},
	{"wire, 1M, listed, of ipset", 4.5, true, rateRatio(million, 1, ipset)},
	{"wire, 100k, clean, usual configuration, of exact, beyond bare", 1.3, false, usualOfExact(hundredThousand, 0)},
	{"wire, 100k, listed, usual configuration, of exact, beyond bare", 1.25, false, usualOfExact(hundredThousand, 1)},
	{"wire, 1M, clean, usual configuration, of exact, beyond bare", 1.2, false, usualOfExact(million, 0)},
	{"wire, 1M, listed, usual configuration, of exact, beyond bare", 1.15, false, usualOfExact(million, 1)},
	{"wire, 10M, clean, usual configuration, of exact, beyond bare", 1.1, false, usualOfExact(tenMillion, 0)},
	{"wire, 10M, listed, usual configuration, of exact, beyond bare", 1.08, false, usualOfExact(tenMillion, 1)},
	{"IPv6, 1M, clean, beyond bare, of IPv4's", 1.3, false, ofIPv4(0)},
	{"IPv6, 1M, listed, beyond bare, of IPv4's", 1.3, false, ofIPv4(1)},
	{"hook: tc, 100k, clean, of generic XDP", 0.9, true, one("hooks", setRandom, hundredThousand, 0, weirTC, ratio)},
	{"hook: tc, 100k, listed, of generic XDP", 0.9, true, one("hooks", setRandom, hundredThousand, 1, weirTC, ratio)},

	{"hit in a loop, 1M, of kernel hash's time", 0.15, false, netRatio(million, 1, kernelHash)},
	{"hit in a loop, 10M, of kernel hash's time", 0.30, false, netRatio(tenMillion, 1, kernelHash)},

	{"10M addresses to enforcing, seconds", 2.5, false, one("load", setRandom, tenMillion, 0, weirExact, seconds)},
	{"10M addresses and prefixes to enforcing, seconds", 2.5, false, one("load", setMixed, tenMillion, 0, weirExact, seconds)},
	{"10k changes to 10M entries to enforcing, seconds", 0.060, false, one("update", setRandom, tenMillion, 0, weirExact, seconds)},
	{"100M addresses to enforcing, seconds", 40, false, one("load", setRandom, hundredMillion, 0, weirExact, seconds)},
	{"100M addresses to enforcing, memory of the process meanwhile, GB", 3, false, one("load", setRandom, hundredMillion, 0, weirExact, peak)},

	{"tracker on the wire, ns a packet", option, false, beyondExact(weirTracker, 0)},
	{"scan detector on the wire, beyond the general path, ns a packet", 45, false, beyondOf("options", hundredThousand, 0, weirScans, weirGeneral)},
	{"policer on the wire, beyond the general path, ns a packet", 70, false, beyondOf("options", hundredThousand, 0, weirPolice, weirGeneral)},
	{"first-seen flows on the wire, ns a packet", 30, false, beyondExact(weirFirst, 0)},
	{"allow list and failsafe port on the wire, clean, ns a packet", option, false, beyondExact(weirAllow, 0)},
	{"second tracker on the wire, beyond the first, ns a packet", option, false, beyondOf("options", hundredThousand, 0, weirTrackers, weirTracker)},
	{"60 lists on the wire, clean, ns a packet", option, false, beyondExact(weirLists60, 0)},
	{"60 lists on the wire, listed, ns a packet", option, false, beyondExact(weirLists60, 1)},
	{"200 lists on the wire, clean, ns a packet", option, false, beyondExact(weirLists200, 0)},
	{"200 lists on the wire, listed, ns a packet", option, false, beyondExact(weirLists200, 1)},
	{"prefixes of 17 lengths on the wire, ns a packet", option, false, beyondExact(weirLengths, 0)},
	{"a flow among the entries on the wire, ns a packet", option, false, beyondExact(weirFlow, 0)},
	{"VLAN tag on the wire, clean, ns a packet", option, false, beyondExact(weirVLAN, 0)},
	{"VLAN tag on the wire, listed, ns a packet", option, false, beyondExact(weirVLAN, 1)},
	{"IPv6, 1M, listed, lookup by the keyed hash, of that by XXH64", 1.0, true, roundByRound(
		"ipv6", million, 1, []string{lookupKeyed, lookupXXH64}, func(ns []float64) float64 { return ns[1] / ns[0] })},
	{"two cores against one, worst configuration", 1.95, true, leastScaling},
	{"F1 of heavy hitters, 1M flows, 256 KB, Zipf 1.1", 0.995, true, found(1.1)},
}

func peak(r Result) estimate        { return exactly(float64(r.Peak) / 1e9) }
func kernelEntry(r Result) estimate { return exactly(r.KernelEntry) }
func netNS(r Result) estimate       { return within(r.NetNS, r.NetWidth) }
func ratio(r Result) estimate       { return within(r.Ratio, r.Ratio*r.Spread) }

func beyondBare(r Result) estimate { return within(r.BeyondNS, r.BeyondWidth) }

// seconds is once for large lists, which have no interval.
func seconds(r Result) estimate { return within(r.Seconds, r.Seconds*r.Spread) }

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

// one is a figure of a contender.
func one(benchmark, set string, entries int, listed float64, contender string, of func(Result) estimate) measured {
	return func(r *Report) (estimate, bool) {
		x, ok := r.find(benchmark, set, entries, listed, contender)
		return of(x), ok && of(x).value != 0
	}
}

// quotient divides the figures of two contenders.
func quotient(a, b measured) measured {
	return func(r *Report) (estimate, bool) {
		x, ok := a(r)
		y, other := b(r)
		return x.over(y), ok && other
	}
}

// roundByRound computes a figure from the times of contenders in each round, in which they met
// the machine in the same state.
func roundByRound(benchmark string, entries int, listed float64, contenders []string, of func(ns []float64) float64) measured {
	return func(r *Report) (estimate, bool) {
		var times [][]float64
		for _, name := range contenders {
			x, ok := r.find(benchmark, setRandom, entries, listed, name)
			if !ok || len(x.Times) == 0 {
				return estimate{}, false
			}
			times = append(times, x.Times)
		}
		figures := make([]float64, len(times[0]))
		for i := range figures {
			var ns []float64
			for _, all := range times {
				ns = append(ns, all[i])
			}
			figures[i] = of(ns)
		}
		return within(median(figures), width(figures)), true
	}
}

// beyondOf returns how much longer one contender takes for a packet than another, in nanoseconds.
func beyondOf(benchmark string, entries int, listed float64, contender, other string) measured {
	return roundByRound(benchmark, entries, listed, []string{contender, other}, func(ns []float64) float64 { return ns[0] - ns[1] })
}

// beyondExact returns how much longer a packet takes with an option, in nanoseconds.
func beyondExact(contender string, listed float64) measured {
	return beyondOf("options", hundredThousand, listed, contender, weirExact)
}

// ofLine computes a figure from how much longer weir, and one read of memory of the same size,
// take for a packet than bare.
func ofLine(entries int, listed float64, of func(weir, line float64) float64) measured {
	return roundByRound("wire", entries, listed, []string{weirExact, oneBucket, bare}, func(ns []float64) float64 {
		return of(ns[0]-ns[2], max(1, ns[1]-ns[2]))
	})
}

// beyondLine returns how much longer weir takes than 1.3 reads of memory, in nanoseconds.
func beyondLine(entries int, listed float64) measured {
	return ofLine(entries, listed, func(weir, line float64) float64 { return weir - 1.3*line })
}

// beyondRatio divides weir's time by the time of one read of memory of the same size.
func beyondRatio(entries int, listed float64) measured {
	return ofLine(entries, listed, func(weir, line float64) float64 { return weir / line })
}

// ofIPv4 divides the times of packets from IPv6 and from IPv4 addresses.
func ofIPv4(listed float64) measured {
	return quotient(
		one("ipv6", setRandom, million, listed, weirExact, beyondBare), one("wire", setRandom, million, listed, weirExact, beyondBare))
}

// atDriver divides weir's rate by another's, with the driver of a network card instead of veth.
func atDriver(entries int, listed float64, under string) measured {
	return roundByRound("wire", entries, listed, []string{weirExact, under, bare}, func(ns []float64) float64 {
		return (DriverNS + ns[1] - ns[2]) / (DriverNS + ns[0] - ns[2])
	})
}

// usualOfExact divides the times of a packet beyond bare with the usual options and without them.
func usualOfExact(entries int, listed float64) measured {
	return roundByRound("wire", entries, listed, []string{weirUsual, weirExact, bare}, func(ns []float64) float64 {
		return (ns[0] - ns[2]) / max(1, ns[1]-ns[2])
	})
}

// netRatio divides weir's time in a loop by another's.
func netRatio(entries int, listed float64, under string) measured {
	of := func(name string) measured { return one("lookup", setRandom, entries, listed, name, netNS) }
	return quotient(of(weirExact), of(under))
}

// rateRatio divides weir's rate on the wire by another's.
func rateRatio(entries int, listed float64, under string) measured {
	return roundByRound("wire", entries, listed, []string{weirExact, under}, func(ns []float64) float64 { return ns[1] / ns[0] })
}

// leastScaling returns the least of weir's results on two cores.
func leastScaling(r *Report) (least estimate, ok bool) {
	for _, x := range r.Results {
		if x.Scaling != 0 && x.Contender != xdpDrop && (!ok || x.Scaling < least.value) {
			least, ok = estimate{x.Scaling, x.Scaling * (1 - x.Spread), x.Scaling * (1 + x.Spread)}, true
		}
	}
	return least, ok
}

// found returns how many of the heavy hitters a bank has found.
func found(zipf float64) measured {
	return func(r *Report) (estimate, bool) {
		for _, x := range r.Results {
			if x.F1 != 0 && x.Zipf == zipf {
				return exactly(x.F1), true
			}
		}
		return estimate{}, false
	}
}
