package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"

	"weir/filter/attenuated"
	"weir/filter/bloom"
	"weir/filter/compress"
	"weir/filter/counting"
	"weir/filter/fpr"
	"weir/filter/reconcile"
	"weir/tests/papers/curve"
)

// filterSeed selects the hash functions of the filters on the survey's page.
const filterSeed = 2004

// numbers are the elements from…to−1, as byte strings.
func numbers(from, to int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := from; i < to; i++ {
			if !yield(binary.LittleEndian.AppendUint64(nil, uint64(i))) {
				return
			}
		}
	}
}

// standard is the geometry of a standard filter.
func (p *page) standard(m, k int) bloom.Geometry {
	g, err := bloom.Standard(uint32(m), k)
	p.fail(err)
	return g
}

// holding is the filter of the elements.
func holding(g bloom.Geometry, elements iter.Seq[[]byte]) *bloom.Filter {
	f := bloom.New(g, filterSeed)
	for b := range elements {
		f.Add(b)
	}
	return f
}

// found is the share of so many unlisted elements that the filter finds.
func found(f interface{ Contains([]byte) bool }, trials int) float64 {
	const unlisted = 1 << 40
	hits := 0
	for b := range numbers(unlisted, unlisted+trials) {
		if f.Contains(b) {
			hits++
		}
	}
	return float64(hits) / float64(trials)
}

// surveyStandard is sections 2.1 to 2.3.
func (p *page) surveyStandard() {
	p.section("2.1, 2.2 Standard and partitioned filters, and the lower bound")
	const n, trials = 20000, 1000000
	p.text(`The package is weir/filter/bloom, the exact rates are of weir/filter/fpr. Filters of
%d elements, asked for %d others. In the partitioned filter each hash function
has m/k bits to itself. Its rate is the same in the limit, and a little higher for any m,
since a few more of its bits are set.`, n, trials)
	var rows [][]string
	for _, c := range []struct {
		bits, k int
		paper   string
	}{{8, 5, "just over 0.02"}, {8, 6, "just over 0.02"}, {10, 7, ""}, {12, 8, ""}, {16, 11, "0.000459"}} {
		g := p.standard(c.bits*n, c.k)
		parted, err := bloom.Partitioned(uint32(c.bits*n), c.k)
		p.fail(err)
		rows = append(rows, []string{fmt.Sprintf("%d n", c.bits), fmt.Sprint(c.k), c.paper,
			num(g.FalsePositiveRate(n), 4), num(fpr.Exact(c.bits*n, n, c.k), 4), num(found(holding(g, numbers(0, n)), trials), 3),
			num(parted.FalsePositiveRate(n), 4), num(found(holding(parted, numbers(0, n)), trials), 3)})
	}
	p.table([]string{"m", "k", "paper", "classic", "exact", "measured", "partitioned", "measured"}, rows...)

	p.text(`Bits an element for a rate. Any representation of a set takes log₂(1/ε), a Bloom
filter with the best k, in the limit, log₂ e ≈ 1.44 times as much:`)
	rows = nil
	for _, eps := range []float64{0.1, 0.01, 0.001, 0.0001} {
		m, k := fpr.Smallest(n, eps)
		lower := bloom.LowerBound(n, eps)
		rows = append(rows, []string{num(eps, 1), fixed(lower/n, 2), fixed(bloom.Bits(n, eps)/n, 2), "1.44",
			fmt.Sprintf("%s, k = %d", fixed(float64(m)/n, 2), k), fixed(float64(m)/lower, 3)})
	}
	p.table([]string{"rate ε", "lower bound", "n log₂ e log₂(1/ε)", "ratio, paper", "least filter with whole k", "ratio, ours"}, rows...)
	p.text(`Departure: k is a whole number, so that the ratio lies above 1.44, most for small k.`)
}

// surveyTricks is section 2.4.
func (p *page) surveyTricks() {
	p.section("2.4 Union, halving, intersection and cardinality")
	const m, k, n = 1 << 18, 5, 20000
	g := p.standard(m, k)
	if p.err != nil {
		return
	}
	union := holding(g, numbers(0, n))
	p.fail(union.Union(holding(g, numbers(n, 2*n))))
	halved := holding(g, numbers(0, n))
	p.fail(halved.Halve())
	half := holding(p.standard(m/2, k), numbers(0, n))
	if !union.Equal(holding(g, numbers(0, 2*n))) || !halved.Equal(half) {
		p.fail(errors.New("a union or a half is not what it should be"))
	}
	p.text(`Filters of %d bits with k = %d. The OR of the filters of two sets of %d elements
is, bit for bit, the filter of their union; and a filter that is halved is, bit for
bit, the filter of half the size.`, m, k, n)

	p.text(`Two sets of %d elements with some in common. |S₁| and the size of the intersection
are estimated from the zeros of both filters and of their inner product alone, then
the intersection with |S₁| and |S₂| known. The AND of both filters finds all that is
in both sets, but more that is in neither than a filter of the intersection would:`, n)
	var rows [][]string
	for _, both := range []int{0, 100, 1000, 5000, 10000, 20000} {
		a, b := holding(g, numbers(0, n)), holding(g, numbers(n-both, 2*n-both))
		blind, err := a.IntersectionSize(b)
		p.fail(err)
		known, err := a.IntersectionSizeOf(b, n, n)
		p.fail(err)
		cardinality := a.Cardinality()
		p.fail(a.Intersect(b))
		const trials = 200000
		rows = append(rows, []string{fmt.Sprint(both), fixed(cardinality, 0), fixed(blind, 0), fixed(known, 0),
			num(found(a, trials), 2), num(g.FalsePositiveRate(uint64(both)), 2)})
	}
	p.table([]string{"in both", "estimate of 20000", "estimate of both", "with sizes known", "rate of the AND", "of a filter of both"}, rows...)
	p.text(`Departure: the survey halves by masking the highest bit of a position. Here positions
are hashes scaled down to m, which makes the lowest bit the one to lose: neighbouring
bits are ORed, and any even size can be halved.`)
}

// surveyCounting is section 2.5.
func (p *page) surveyCounting() {
	p.section("2.5 Counting filters")
	const m, k, filters = 1 << 18, 6, 20
	n := int(math.Floor(m * math.Ln2 / k))
	g := p.standard(m, k)
	if p.err != nil {
		return
	}
	p.text(`The package is weir/filter/counting. Filters of m = %d counters for n = %d
elements with k = %d ≤ (m/n) ln 2. How many of %d such filters have a counter that is
incremented j times or more, beside two bounds of the probability that one has,
m (e ln 2 / j)^j and the binomial tail. A counter of 4 bits overflows at 16:`, m, n, k, filters)
	var highest []int // counter of each filter
	rng := rand.New(rand.NewPCG(25, 0))
	for range filters {
		counters, most := make([]int, m), 0
		for range n {
			h := rng.Uint64()
			for i := range k {
				at := g.Position(h, i)
				counters[at]++
				most = max(most, counters[at])
			}
		}
		highest = append(highest, most)
	}
	var rows [][]string
	var tail, bound, measured curve.Points
	for j := 4; j <= 16; j++ {
		reached := 0
		for _, h := range highest {
			if h >= j {
				reached++
			}
		}
		share := float64(reached) / filters
		tail = tail.At(float64(j), counting.TailBound(g, uint64(n), j))
		bound = bound.At(float64(j), counting.MaxBound(m, j))
		if share > 0 {
			measured = measured.At(float64(j), share)
		}
		if j >= 6 && j <= 10 || j == 16 {
			paper := ""
			if j == 16 {
				paper = "1.37e-15 m"
			}
			rows = append(rows, []string{fmt.Sprint(j), paper, fmt.Sprintf("%s m", num(math.Pow(math.E*math.Ln2/float64(j), float64(j)), 3)),
				num(counting.MaxBound(m, j), 3), num(counting.TailBound(g, uint64(n), j), 3), fmt.Sprintf("%d of %d", reached, filters)})
		}
	}
	p.table([]string{"j", "paper", "bound", "1 at most", "binomial tail", "measured"}, rows...)
	f := curve.New("Counters of a filter with k = (m/n) ln 2", "value j that some counter reaches", "probability, or its bound")
	f.LogY()
	p.figure("counting", "Section 2.5: four bits, which overflow at 16, are enough", f,
		curve.Named{Name: "m (e ln 2 / j)^j", Points: bound}, curve.Named{Name: "binomial tail", Points: tail},
		curve.Named{Name: "measured", Points: measured, Dots: true})
	p.text(`A counter that reaches 15 stays there, as the survey suggests, so that an overflow
costs false positives but never an element.`)
}

// surveyCompressed is section 2.6.
func (p *page) surveyCompressed() {
	p.section("2.6 Compressed filters, table 1")
	const n, trials = 100000, 5000000
	p.text(`The package is weir/filter/compress. Filters of %d elements are really compressed,
by arithmetic coding, decoded, and asked for %d others. The size that is sent
includes a header of 36 bytes.`, n, trials)
	var rows [][]string
	for _, c := range []struct {
		bits, k     int
		sent, paper string
	}{{16, 11, "16", "0.000459"}, {28, 4, "15.846", "0.000314"}, {48, 3, "15.829", "0.000222"}} {
		g := p.standard(c.bits*n, c.k)
		sent := compress.Encode(holding(g, numbers(0, n)))
		received, err := compress.Decode(sent, g.M())
		p.fail(err)
		if p.err != nil {
			return
		}
		rows = append(rows, []string{fmt.Sprint(c.bits), fmt.Sprint(c.k), c.sent, fixed(compress.SentBits(g, n)/n, 3), fixed(8*float64(len(sent))/n, 3),
			c.paper, num(fpr.Exact(c.bits*n, n, c.k), 4), num(found(received, trials), 3)})
	}
	p.table([]string{"m/n", "k", "z/n, paper", "entropy", "sent", "f, paper", "exact", "measured"}, rows...)

	var curves []curve.Named
	for _, sent := range []float64{8, 12, 16} {
		var points curve.Points
		for _, factor := range span(1, 6, 40) {
			plan, err := compress.Optimal(10000, sent*10000, uint32(factor*sent*10000))
			p.fail(err)
			points = points.At(factor*sent, plan.Rate)
		}
		curves = append(curves, curve.Named{Name: fmt.Sprintf("%g bits sent", sent), Points: points})
	}
	f := curve.New("Best filter for a size on the wire", "bits an element in memory", "false-positive rate")
	f.LogY()
	p.figure("compress", "Section 2.6: the larger and sparser in memory, the better for the same size on the wire", f, curves...)
	p.text(`The curves have steps since k is a whole number. Each smaller one takes several times
the memory of the last, down to k = 1. The best for 16 bits sent:`)
	rows = nil
	for _, most := range []uint32{16, 28, 48, 50, 194, 30000} {
		plan, err := compress.Optimal(10000, 160000, 10000*most)
		p.fail(err)
		rows = append(rows, []string{fmt.Sprint(most), fixed(float64(plan.Geometry.M())/10000, 1), fmt.Sprint(plan.Geometry.K()), num(plan.Rate, 3)})
	}
	p.table([]string{"bits in memory at most", "used", "k", "false-positive rate"}, rows...)
}

// surveyReconcile is sections 4 and 5.
func (p *page) surveyReconcile() {
	p.section("4 Summary caches, 5.2 and 5.3 differences and intersections")
	const n, bits, changed = 100000, 8, 1000
	g := p.standard(bits*n, 5)
	if p.err != nil {
		return
	}
	publisher := reconcile.NewPublisher(g, filterSeed, 1)
	for b := range numbers(0, n) {
		publisher.Add(b)
	}
	full := len(publisher.Publish())
	for b := range numbers(0, changed) {
		publisher.Remove(b)
	}
	for b := range numbers(n, n+changed) {
		publisher.Add(b)
	}
	delta := len(publisher.Publish())
	p.text(`The package is weir/filter/reconcile. A cache keeps its directory in a counting filter
and sends the bits, later what changed of them. For %d documents at %d bits each the
filter is sent in %d bytes; after %d documents have gone and as many have come, the
update takes %d bytes, %.0f %% of that.`, n, bits, full, changed, delta, 100*float64(delta)/float64(full))

	p.text(`Two peers hold %d items each. B sends its filter; A answers with what seems to be
missing there (5.2), or with what seems to be in both sets (5.3). "Not all elements
in S_A − S_B will be sent, but most will": a fraction as large as the false-positive
rate is left out of the one, or added to the other.`, n)
	var rows [][]string
	for _, c := range []struct{ perItem, k, both int }{{4, 3, 90000}, {8, 6, 90000}, {8, 6, 50000}, {16, 11, 50000}} {
		g := p.standard(c.perItem*n, c.k)
		theirs := holding(g, numbers(n-c.both, 2*n-c.both))
		ours := numbers(0, n)
		missing, common := 0, 0
		for range reconcile.Difference(ours, theirs) {
			missing++
		}
		for range reconcile.Intersection(ours, theirs) {
			common++
		}
		only := float64(n - c.both)
		rate := fpr.Exact(c.perItem*n, n, c.k)
		rows = append(rows, []string{fmt.Sprint(c.perItem), fmt.Sprint(n - c.both), fmt.Sprint(missing), fixed(only*(1-rate), 0),
			fmt.Sprint(c.both), fmt.Sprint(common), fixed(float64(c.both)+only*rate, 0)})
	}
	p.table([]string{"bits an item", "missing at B", "sent", "predicted", "in both", "sent", "predicted"}, rows...)
}

// surveyRouting is sections 6.1 and 6.2.
func (p *page) surveyRouting() {
	p.section("6.1 Routing in a tree, 6.2 attenuated filters")
	p.text(`The package is weir/filter/attenuated. A binary tree of 127 nodes holds 2000 resources;
every node asks for a hundred of them and for a hundred that nobody holds. All resources
are found. False positives cost edges that are passed in vain, and nothing else:`)
	var rows [][]string
	for _, bits := range []int{2, 3, 4, 6, 8} {
		astray, hops, phantom := p.treeRoutes(bits)
		rows = append(rows, []string{fmt.Sprint(bits), fixed(hops, 2), num(astray, 3), num(phantom, 3)})
	}
	p.table([]string{"bits a resource", "hops", "astray", "astray, if nobody holds it"}, rows...)

	const routers, depth, resources = 60, 3, 600
	p.text(`%d routers in a ring, with half as many random chords, hold %d resources, with
filters for up to %d hops over each link. "The attenuated Bloom filter only finds
files within d hops, but it is likely to find the shortest path": of all queries for
a resource within reach, those whose first link lies on a shortest path, at the true
distance.`, routers, resources, depth)
	rows = nil
	for _, bits := range []int{400, 800, 1600, 3200, 4800} {
		right, queries, messages := p.networkRoutes(routers, depth, resources, bits)
		rows = append(rows, []string{fmt.Sprint(bits), fmt.Sprint(queries), fixed(100*float64(right)/float64(queries), 2) + " %", fmt.Sprint(messages)})
	}
	p.table([]string{"bits a level", "queries", "shortest path", "messages until all is known"}, rows...)
	p.text(`Departure: what was learned from a neighbour is not announced back to it. No shortest
path leads over a link and back.`)
}

// treeRoutes gives means for each request: edges passed to what is held and
// edges passed in vain, and those passed in vain for what nobody holds.
func (p *page) treeRoutes(bits int) (astray, hops, phantom float64) {
	const nodes, resources, each = 127, 2000, 100
	k := bloom.OptimalK(uint32(bits*resources), resources)
	tree := []*attenuated.Tree{attenuated.NewTree(p.standard(bits*resources, k), filterSeed)}
	for i := 1; i < nodes; i++ {
		tree = append(tree, tree[(i-1)/2].AddChild())
	}
	rng := rand.New(rand.NewPCG(61, 0))
	var held [][]byte
	for b := range numbers(0, resources) {
		tree[rng.IntN(nodes)].Add(b)
		held = append(held, b)
	}
	for _, node := range tree {
		for range each {
			r, ok := node.Find(held[rng.IntN(resources)])
			if !ok {
				p.fail(errors.New("a resource is not found"))
			}
			hops += float64(r.Hops)
			astray += float64(r.Wasted)
			r, _ = node.Find(binary.LittleEndian.AppendUint64(nil, rng.Uint64()|1<<40))
			phantom += float64(r.Wasted)
		}
	}
	const requests = nodes * each
	return astray / requests, hops / requests, phantom / requests
}

// end is a router's end of a link.
type end struct{ router, link int }

// networkRoutes counts, of the queries of all routers for all resources of
// others within reach, those that are sent over a shortest path, and the
// announcements that it took to make the resources known.
func (p *page) networkRoutes(routers, depth, resources, bits int) (right, queries, messages int) {
	const known = 300.0 / 600 // of the resources, about, within reach over a link
	k := bloom.OptimalK(uint32(bits), uint64(known*float64(resources)))
	g := p.standard(bits, k)
	rng := rand.New(rand.NewPCG(62, 0))
	var all []*attenuated.Router
	far := make([][]end, routers)
	for range routers {
		all = append(all, attenuated.NewRouter(g, filterSeed, depth))
	}
	connect := func(a, b int) {
		la, lb := all[a].AddLink(), all[b].AddLink()
		far[a], far[b] = append(far[a], end{b, lb}), append(far[b], end{a, la})
	}
	for i := range routers {
		connect(i, (i+1)%routers)
	}
	for range routers / 2 {
		if a, b := rng.IntN(routers), rng.IntN(routers); a != b {
			connect(a, b)
		}
	}
	var holder []int
	for b := range numbers(0, resources) {
		holder = append(holder, rng.IntN(routers))
		all[holder[len(holder)-1]].Add(b)
	}
	for changed := true; changed; {
		changed = false
		for i, r := range all {
			for l, to := range far[i] {
				if f, news := r.Announce(l); news {
					p.fail(all[to.router].Receive(to.link, f))
					messages++
					changed = true
				}
			}
		}
	}
	distance := make([][]int, routers)
	for i := range distance {
		distance[i] = distances(far, i)
	}
	for i, r := range all {
		resource := 0
		for b := range numbers(0, resources) {
			to := holder[resource]
			resource++
			d := distance[i][to]
			if d == 0 || d > depth {
				continue
			}
			queries++
			over, hops, ok := r.Route(b)
			if ok && over != attenuated.Local && hops == d && distance[far[i][over].router][to] == d-1 {
				right++
			}
		}
	}
	return right, queries, messages
}

// distances are the true numbers of hops from a router to all of them.
func distances(far [][]end, from int) []int {
	d := make([]int, len(far))
	for i := range d {
		d[i] = -1
	}
	d[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, e := range far[queue[0]] {
			if d[e.router] < 0 {
				d[e.router] = d[queue[0]] + 1
				queue = append(queue, e.router)
			}
		}
	}
	return d
}
