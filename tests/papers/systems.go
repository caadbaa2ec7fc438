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
		{"theorem 3.1 (equation 5): k_e", inLibrary, "filter/weighted; the page compares it with the optimum"},
		{"k_e of hot elements, in use", inKernel, "bpf/hot.h, filter/membership, control/observe/learn"},
		{"equations 8 to 10: step distribution; figure 1", onPage, "[weighted](weighted.md)"},
		{"equations 11 to 14: Zipf and correlated membership; figure 2", onPage, "[the report](weighted-report.md)"},
		{"deterministic and probabilistic rounding", inLibrary, "weighted.Rounding"},
		{"measurement on real traffic (their future work)", inControl, "control/observe/learn, tested on captures"},
	}},
	{"A new analysis of the false positive rate", []system{
		{"equations 1 to 8: classic, exact, and the table of figure 1", inLibrary, "filter/fpr; the table is the oracle of its tests"},
		{"equations 17, 18, 20 and 21", inLibrary, "filter/fpr, tests"},
		{"figure 2: relative error", onPage, "[false positive rate](false-positive-rate.md)"},
		{"section 5: too small a filter, wrong k", inControl, "weir plan fpr"},
	}},
	{"Importance-aware Bloom Filter", []system{
		{"SBF, IBF-2C, IBF-MC, IBF-H (algorithms 1 to 4)", inLibrary, "filter/stable"},
		{"theorems III.1 to III.8: stable points", inLibrary, "filter/stable, theory.go"},
		{"table II, figures 9 to 18", onPage, "[importance-aware](ibf.md), with 30 % repeats and M = 7"},
		{"sweeps of 10 and 50 % repeats, M = 3 and 15", leftOut, "the same curves with other parameters"},
		{"the traces of video requests", leftOut, "not published; synthetic streams of the same distributions"},
	}},
	{"Network Applications of Bloom Filters", []system{
		{"2.1 Bloom filter; the best k; partitioned filters", inKernel, "filter/bloom; blocked in bpf/cascade.h"},
		{"2.1 concentration by the Azuma–Hoeffding inequality", inLibrary, "filter/fpr, Concentration"},
		{"2.2 hashing versus Bloom filters", inKernel, "bpf/table.h has fingerprints in a hash table"},
		{"2.2 lower bound n log₂(1/ε)", inControl, "weir plan fpr"},
		{"2.2 lower bound in binomial form", inLibrary, "filter/fpr, LeastBits"},
		{"2.2 perfect-hash scheme", inLibrary, "filter/bloomier, without values"},
		{"2.4 union, halving, intersection, cardinality", inLibrary, "filter/bloom"},
		{"2.5 counting filters, overflow of 4 bits", inKernel, "filter/counting, in mapped memory by filter/membership"},
		{"2.6 compressed filters, table 1", inControl, "filter/compress, the archive of digests"},
		{"3.1 hyphenation, spelling, passwords", leftOut, "filters of words, as filter/bloom has them"},
		{"3.2 differential files, semijoins (Bloomjoin)", leftOut, "of databases"},
		{"4 summary caches with deltas", inLibrary, "filter/reconcile; weir's own nodes exchange exact, signed lists instead"},
		{"5.1 PlanetP: groups and gossip", leftOut, "a fleet has a hub"},
		{"5.2 approximate reconciliation", inLibrary, "filter/reconcile; exact by filter/invertible, which adopts a filter after a crash"},
		{"5.2 faster reconciliation by trees", leftOut, "filter/invertible finds the exact difference in one message"},
		{"5.3 set intersection for keyword search", inLibrary, "filter/reconcile"},
		{"6.1 routing in a tree", inLibrary, "filter/attenuated"},
		{"6.2 attenuated filters", inLibrary, "filter/attenuated"},
		{"6.3 geographic routing", leftOut, "weir forwards by nothing but groups"},
		{"7.1 Icarus: loops of unicast packets", inKernel, "bpf/loop.h, filter/icarus"},
		{"7.1 Icarus: loops of multicast packets", inKernel, "bpf/loop.h, bpf/multicast.h, over weir's own forwarding"},
		{"7.2 Stochastic Fair Blue", inKernel, "bpf/police.h, filter/sfb"},
		{"7.3 multicast forwarding", inKernel, "bpf/multicast.h, filter/multicast"},
		{"8.1 heavy flows, conservative update, figure 2", inKernel, "bpf/tracker.h, filter/sketch"},
		{"8.2 IP traceback (SPIE)", inKernel, "bpf/digest.h, filter/digest"},
		{"9 spectral filters: minimum selection, minimal increase", inLibrary, "filter/counting"},
		{"9 spectral filters: recurring minimum", leftOut, "minimal increase has fewer errors where nothing is deleted"},
		{"9 space-code filters", leftOut, "trackers count flows with a bound, in less memory"},
		{"9 Bloomier filters", inLibrary, "filter/bloomier"},
	}},
}

// systems lists what has become of everything in the papers.
func (p *page) systems() {
	p.section("Every system of the papers")
	p.text(`Where each system, table and figure is: in the **kernel**'s program, in the **control
plane**, in a **library** that only these pages and tests use, **computed** on a page, or
**left out**, and why.`)
	var rows [][]string
	for _, of := range systemsOf {
		for _, s := range of.all {
			rows = append(rows, []string{of.paper, s.what, s.status, s.where})
		}
	}
	p.table([]string{"paper", "what", "status", "where, or why not"}, rows...)
}
