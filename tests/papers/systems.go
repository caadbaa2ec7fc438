package main

// system is a system, table, figure or formula of a paper, and what has become of it.
type system struct{ what, status, where string }

// Statuses of systems.
const (
	inKernel  = "kernel"
	inControl = "control plane"
	inLibrary = "library"
	onPage    = "computed"
	leftOut   = "left out"
)

// systemsOf are the systems of the papers, in their order.
var systemsOf = []struct {
	paper string
	all   []system
}{
	{"Weighted Bloom Filter, both versions", []system{
		{"equations 1 to 4, 6 and 7: rate of a weighted filter", inLibrary, "filter/weighted"},
		{"equation 8: no worse than the standard filter; equations 9 and 10: E{r_e}", inLibrary, "filter/weighted, tests"},
		{"theorem 3.1 (equation 5): k_e", inLibrary, "filter/weighted; the page compares it with the optimum"},
		{"k_e of hot elements, in use", inKernel, "bpf/hot.h, filter/membership, control/observe/learn"},
		{"k_e by class of cold elements, in use", inKernel, "bpf/classes.h; filter/membership, PlanClasses, by networks"},
		{"step distribution: figure 1 of the paper, 1 (i) of the report", onPage, "[weighted](weighted.md)"},
		{"Zipf's distribution: figure 1 (ii) of the report", onPage, "[the report](weighted-report.md)"},
		{"equations 11 to 15: correlated membership; figure 2", onPage, "[the report](weighted-report.md)"},
		{"equations 16 to 47: proof of the theorem", leftOut, "a proof; the pages compare the theorem with a numerical optimum"},
		{"deterministic and probabilistic rounding", inLibrary, "weighted.Rounding"},
		{"performance on real traces (their future work)", inControl,
			"control/observe/learn: over a capture of 238,375 packets 101 times fewer false drops at equal memory, 7 % fewer than predicted (`go test ./control/observe/learn -run TestCaptures -v`)"},
	}},
	{"A new analysis of the false positive rate", []system{
		{"equations 1 to 4 and 19: the classic formula, and Bloom's", inLibrary, "filter/fpr, Classic and Bloom1970"},
		{"equations 5 to 7: the classic rate is too low", inLibrary, "filter/fpr, tests"},
		{"equations 8 to 16 and the theorem: bins that are not empty; figure 1: the algorithm", inLibrary, "filter/fpr; the algorithm is the oracle of its tests"},
		{"equations 17 and 18: the exact rate; 20 and 21: by Bose et al.", inLibrary, "filter/fpr, Exact, and tests"},
		{"figure 2: relative error", onPage, "[false positive rate](false-positive-rate.md)"},
		{"section 5: too small a filter, wrong k", inControl, "weir plan fpr"},
	}},
	{"Importance-aware Bloom Filter", []system{
		{"SBF, IBF-2C (algorithm 1), IBF-MC (algorithm 2)", inKernel,
			"bpf/first.h and filter/recent, Cells, with the cells of an item in one line, for first-seen flows; as printed: filter/stable"},
		{"IV-C: IBF-H, with Probabilistic Delete Val", inLibrary, "filter/stable; to decrement by value takes as many draws as it needs, too many for a packet"},
		{"theorems and corollaries III.1 to III.8: stable points; figures 1 and 2: the Markov chains", inControl, "filter/stable, theory.go; for one line, filter/recent, Chain: weir plan first-seen, weir status"},
		{"theorem III.9: constant time for an item", inKernel, "bpf/first.h: one line; filter/stable"},
		{"tables I, III and IV: symbols, parameters, combinations", inLibrary, "filter/stable, Params and Algorithm"},
		{"IV-B: weighted rates, and rates by importance", inLibrary, "filter/stable, Rates"},
		{"table II: the algorithms compared", onPage, "[importance-aware](ibf.md), on synthetic streams"},
		{"figures 3 to 8: the traces of video requests", leftOut, "not published; synthetic streams of the same distributions"},
		{"figures 9 to 17: synthetic data", onPage, "[importance-aware](ibf.md)"},
		{"M = 3, 7 and 15; 10, 30 and 50 % repeats", onPage, "[importance-aware](ibf.md), its sweeps"},
		{"figure 18: cells at zero", onPage, "[importance-aware](ibf.md)"},
		{"new items of a packet stream by importance, in use", inKernel,
			"bpf/first.h, filter/recent: by default two generations of a Bloom filter, which forget nothing early; importance decides whose event comes first, and with IBF-2C and IBF-MC who is remembered longer. False positives and negatives by importance, measured: docs/first-seen.md"},
	}},
	{"Network Applications of Bloom Filters", []system{
		{"2.1 Bloom filter (figure 1); the best k; partitioned filters", inKernel, "filter/bloom; blocked in bpf/cascade.h"},
		{"2.1 concentration by the Azuma–Hoeffding inequality", inLibrary, "filter/fpr, Concentration"},
		{"2.1 negative dependence, and Chernoff bounds by it", leftOut, "a similar exponential tail; the one above is computed"},
		{"2.2 lower bound n log₂(1/ε)", inControl, "weir plan fpr"},
		{"2.2 lower bound in binomial form", inLibrary, "filter/fpr, LeastBits"},
		{"2.2 perfect-hash scheme", inLibrary, "filter/bloomier, without values"},
		{"2.3 hashing versus Bloom filters", inKernel, "bpf/table.h has fingerprints in a hash table"},
		{"2.4 union, halving, intersection, cardinality", inLibrary, "filter/bloom"},
		{"2.5 counting filters, overflow of 4 bits", inKernel, "filter/counting; the bits in the kernel, their counters in the daemon, by filter/membership"},
		{"2.5 union bound over the sets of a filter's history", leftOut, "so many times filter/counting, OverflowBound"},
		{"2.6 compressed filters, table 1", inControl, "filter/compress, the archive of digests"},
		{"3.1 hyphenation, spelling, passwords", leftOut, "sets of words, as filter/bloom has them"},
		{"3.2 semijoins (Bloomjoin), and their size", inLibrary, "filter/reconcile, Semijoin and Join; filter/bloom, IntersectionSize"},
		{"3.2 differential files", inLibrary, "filter/reconcile, Differential"},
		{"4 summary caches with deltas", inLibrary, "filter/reconcile, weir plan summary; weir's own nodes exchange exact, signed lists instead"},
		{"4 Squid's cache digests", leftOut, "summary caches of a web proxy"},
		{"5 Vistabar: a filter of all annotated addresses", leftOut, "a filter that clients download, as filter/bloom encodes it"},
		{"5.1 PlanetP: groups and gossip", leftOut, "a fleet has a hub"},
		{"5.1 groups with leaders (Ledlie et al.)", leftOut, "likewise"},
		{"5.2 approximate reconciliation", inLibrary, "filter/reconcile; exact by filter/invertible, weir plan invertible"},
		{"5.2 faster reconciliation by trees", inLibrary, "filter/reconcile, Tree"},
		{"5.3 set intersection for keyword search", inLibrary, "filter/reconcile"},
		{"6.1 routing in a tree", inLibrary, "filter/attenuated, with an encoding"},
		{"6.2 attenuated filters", inLibrary, "filter/attenuated, with an encoding"},
		{"6.3 geographic routing", inLibrary, "filter/attenuated, Grid"},
		{"7.1 Icarus: loops of unicast packets", inKernel, "bpf/loop.h, filter/icarus"},
		{"7.1 Icarus: loops of multicast packets", inKernel, "bpf/loop.h, bpf/multicast.h, over weir's own forwarding"},
		{"7.2 Stochastic Fair Blue", inKernel, "bpf/police.h, filter/sfb"},
		{"7.3 multicast forwarding", inKernel, "bpf/multicast.h, filter/multicast"},
		{"8.1 heavy flows, conservative update, figure 2", inKernel, "bpf/tracker.h, filter/sketch"},
		{"8.1 applied to scans: distinct destinations of each source", inKernel, "bpf/scan.h, filter/verdict; a Bloom filter of pairs before the counters of 8.1, weir plan scan"},
		{"8.2 IP traceback (SPIE)", inKernel, "bpf/digest.h, filter/digest"},
		{"9 spectral filters: minimum selection, minimal increase", inLibrary, "filter/counting"},
		{"9 spectral filters: recurring minimum", leftOut, "two to five times as many errors as minimum selection in the same memory: see the end of [the survey's page](survey.md)"},
		{"9 count-min sketch", inKernel, "bpf/tracker.h, filter/sketch: point queries, with conservative update"},
		{"9 space-code filters", inLibrary, "filter/counting, SpaceCode"},
		{"9 Bloomier filters", inLibrary, "filter/bloomier"},
	}},
}

// systems lists what has become of everything in the papers.
func (p *page) systems() {
	p.section("Every system of the papers")
	p.text(`Where each system, table and figure is: in the **kernel**'s program, in the **control
plane**, in a **library**, which no program runs for it, but tests and some of these pages,
**computed** on a page, or **left out**, and why.`)
	var rows [][]string
	for _, of := range systemsOf {
		for _, s := range of.all {
			rows = append(rows, []string{of.paper, s.what, s.status, s.where})
		}
	}
	p.table([]string{"paper", "what", "status", "where, or why not"}, rows...)
}
