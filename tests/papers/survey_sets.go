package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"weir/filter/attenuated"
	"weir/filter/bloom"
	"weir/filter/counting"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/reconcile"
)

// surveyDatabases is section 3.2.
func (p *page) surveyDatabases() {
	p.section("3.2 Semijoins and differential files")
	const rows, keys, chosen = 200000, 20000, 1000
	p.text(`The package is weir/filter/reconcile. One host knows %d of %d keys, another %d rows, one
of which has each key as often as the others. The first sends a filter of its keys, the
second answers with rows that may join, and the first removes those that do not. Bytes count
the filter and the rows, of 8 bytes each, as against a list of the keys with 8
bytes each and the rows that join.`, chosen, keys, rows)
	var table [][]string
	for _, bits := range []int{4, 8, 16} {
		f := holding(p.standard(bits*chosen, bloom.OptimalK(uint32(bits*chosen), chosen)), numbers(0, chosen))
		all := func(yield func(reconcile.Row) bool) {
			for i := range rows {
				if !yield(reconcile.Row{Key: binary.LittleEndian.AppendUint64(nil, uint64(i%keys))}) {
					return
				}
			}
		}
		candidates := len(slices.Collect(reconcile.Semijoin(all, f)))
		joined := rows / keys * chosen
		rate := fpr.Exact(bits*chosen, chosen, f.K())
		table = append(table, []string{fmt.Sprint(bits), fmt.Sprint(candidates), fixed(float64(joined)+rate*(rows-float64(joined)), 0),
			fmt.Sprint(bits*chosen/8 + 8*candidates), fmt.Sprint(8*chosen + 8*joined)})
	}
	p.table([]string{"bits a key", "rows sent", "predicted", "bytes", "with a list"}, table...)

	const changed = 1000
	p.text(`Of the %d records of a file %d have changed since it was last written. A filter of the
changed keys says where to look first; "a false positive forces one to read the differential
file and the database even when a record has not been changed". Reads of all unchanged
records that did so:`, keys, changed)
	table = nil
	for _, bits := range []int{4, 8, 16} {
		g := p.standard(bits*changed, bloom.OptimalK(uint32(bits*changed), changed))
		d := reconcile.NewDifferential(g, filterSeed, func([]byte) ([]byte, bool) { return nil, true })
		for k := range numbers(0, changed) {
			d.Put(k, nil)
		}
		both := 0
		for k := range numbers(changed, keys) {
			if _, _, searched := d.Get(k); searched {
				both++
			}
		}
		rate := fpr.Exact(bits*changed, changed, g.K())
		table = append(table, []string{fmt.Sprint(bits), fmt.Sprint(both), fixed(rate*(keys-changed), 0)})
	}
	p.table([]string{"bits a changed key", "read both", "predicted"}, table...)
}

// surveyTrees is the second part of section 5.2.
func (p *page) surveyTrees() {
	p.section("5.2 Reconciliation trees")
	const n, missing = 50000, 500
	p.text(`Byers et al. have a structure that "allows for faster determination of elements in S_A − S_B
when the difference is small": a trie over the hashes of the elements, in which each node is
known by the sum of the hashes below it. B sends a filter of the inner nodes and one of the
elements; A descends where its own nodes are not found there, and leaves a subtree when
more nodes in a row are found than the correction level. Of %d elements %d are missing at B;
the bits are divided equally between both filters.`, n, missing)
	ours := reconcile.NewTree(filterSeed, numbers(0, n))
	theirs := reconcile.NewTree(filterSeed, numbers(missing, n+missing))
	var rows [][]string
	for _, bits := range []int{8, 12, 16} {
		half := uint32(bits * n / 2)
		g := p.standard(int(half), bloom.OptimalK(half, n))
		s := theirs.Summary(g, g)
		row := []string{fmt.Sprint(bits)}
		for correction := range 5 {
			found, visited := 0, 0
			for range ours.Missing(s, correction, &visited) {
				found++
			}
			row = append(row, fmt.Sprintf("%.1f %%, %d", 100*float64(found)/missing, visited))
		}
		whole := p.standard(bits*n, bloom.OptimalK(uint32(bits*n), n))
		row = append(row, fmt.Sprintf("%.1f %%, %d", 100*(1-fpr.Exact(bits*n, n, whole.K())), n))
		rows = append(rows, row)
	}
	p.text("The share of the missing elements that is found, and the number of nodes or elements looked at:")
	p.table([]string{"bits an element", "correction 0", "1", "2", "3", "4", "one filter of as many bits"}, rows...)
	p.text(`With the same bits a plain filter finds more and looks at every element; a tree looks at the
paths that lead to a difference. The survey gives no figures.`)
}

// surveyGrid is section 6.3.
func (p *page) surveyGrid() {
	p.section("6.3 Geographic routing")
	const levels, hosts, messages = 5, 5000, 20000
	p.text(`The package is weir/filter/attenuated. A square of 32 by 32 smallest squares is divided into
four, and these again, five times; %d mobile hosts are in it. A message goes to the sibling of
the smallest square around it that appears to contain the host, and on into smaller ones. Every
host is found. Means of %d messages:`, hosts, messages)
	var rows [][]string
	for _, bits := range []float64{4, 6, 8, 12, 16} {
		var geometries []bloom.Geometry
		for i := range levels {
			n := max(1, hosts>>(2*(levels-i)))
			m := int(bits * float64(n))
			geometries = append(geometries, p.standard(m, bloom.OptimalK(uint32(m), uint64(n))))
		}
		g := attenuated.NewGrid(filterSeed, geometries...)
		rng := rand.New(rand.NewPCG(63, 0))
		anywhere := func() attenuated.Place { return attenuated.Place{X: rng.IntN(g.Side()), Y: rng.IntN(g.Side())} }
		var all [][]byte
		for b := range numbers(0, hosts) {
			p.fail(g.Move(b, anywhere()))
			all = append(all, b)
		}
		var hops, wasted, distance, direct float64
		for range messages {
			from := anywhere()
			j, ok := g.Find(all[rng.IntN(hosts)], from)
			if !ok {
				p.fail(errors.New("a host is not found"))
			}
			hops += float64(j.Hops) / messages
			wasted += float64(j.Wasted) / messages
			distance += float64(j.Distance) / messages
			direct += (math.Abs(float64(j.To.X-from.X)) + math.Abs(float64(j.To.Y-from.Y))) / messages
		}
		rows = append(rows, []string{fmt.Sprint(bits), fixed(hops, 2), fixed(wasted, 3), fixed(distance/direct, 2)})
	}
	p.table([]string{"bits a host and level", "hops", "in vain", "way, of the direct one"}, rows...)
	p.text(`Departure: all nodes of a square know the same, so that the filters of a square are kept once.`)
}

// recurring is the spectral filter with a second one for elements whose least counter is
// alone, by Cohen and Matias.
type recurring struct{ first, second *counting.MinimumSelection }

// recurs reports whether two or more of an element's counters are the least.
func recurs(f *counting.MinimumSelection, counts func(i int) uint32) bool {
	least, times := uint32(math.MaxUint32), 0
	for i := range f.K() {
		switch c := counts(i); {
		case c < least:
			least, times = c, 1
		case c == least:
			times++
		}
	}
	return times > 1
}

func (r recurring) insert(h uint64) {
	r.first.AddHash(h, 1)
	if recurs(r.first, func(i int) uint32 { return r.first.Counter(h, i) }) {
		return
	}
	if r.second.CountHash(h) > 0 {
		r.second.AddHash(h, 1)
		return
	}
	r.second.AddHash(h, r.first.CountHash(h))
}

func (r recurring) count(h uint64) uint32 {
	n := r.first.CountHash(h)
	if recurs(r.first, func(i int) uint32 { return r.first.Counter(h, i) }) {
		return n
	}
	if second := r.second.CountHash(h); second > 0 {
		return min(n, second)
	}
	return n
}

// surveySpectral is the first part of section 9.
func (p *page) surveySpectral() {
	p.section("9 Spectral filters")
	const elements, insertions = 10000, 500000
	stream := make([]uint64, 0, insertions)
	z := rand.NewZipf(rand.New(rand.NewPCG(9, 0)), 1.1, 1, elements-1)
	truth := make(map[uint64]uint32)
	for range insertions {
		h := hash.Nth(filterSeed, z.Uint64())
		stream = append(stream, h)
		truth[h]++
	}
	p.text(`The package is weir/filter/counting. %d insertions of %d different elements, Zipf 1.1, with
k = 5. Recurring minimum keeps a second filter, of a third of the counters, for elements whose
least counter is alone. The share of the elements whose multiplicity is estimated wrongly, and
among these too low:`, insertions, len(truth))
	var rows [][]string
	for _, each := range []int{5, 7, 10, 15} {
		n := uint64(len(truth))
		m := each * len(truth)
		selection := counting.NewMinimumSelection(p.standard(m, 5), filterSeed)
		increase := counting.NewMinimalIncrease(p.standard(m, 5), filterSeed)
		twice := recurring{
			counting.NewMinimumSelection(p.standard(m-m/3, 5), filterSeed),
			counting.NewMinimumSelection(p.standard(m/3, 5), filterSeed+1),
		}
		for _, h := range stream {
			selection.AddHash(h, 1)
			increase.AddHash(h, 1)
			twice.insert(h)
		}
		wrong := func(count func(uint64) uint32) (share, low float64) {
			for h, want := range truth {
				if got := count(h); got != want {
					share += 1 / float64(n)
					if got < want {
						low += 1 / float64(n)
					}
				}
			}
			return share, low
		}
		s, _ := wrong(selection.CountHash)
		i, _ := wrong(increase.CountHash)
		r, low := wrong(twice.count)
		rows = append(rows, []string{fmt.Sprint(each), num(fpr.Exact(m, int(n), 5), 3), num(s, 3), num(i, 3), fmt.Sprintf("%s (%s)", num(r, 3), num(low, 3))})
	}
	p.table([]string{"counters an element", "predicted", "minimum selection", "minimal increase", "recurring minimum (too low)"}, rows...)
	p.text(`"Predicted" is the false-positive rate, which Cohen and Matias give as the probability of an
error of minimum selection. In the same memory recurring minimum makes two to five times as
many errors as minimum selection, and some of them are too low: an element that finds its
counters in the second filter already set by others is entered there too late. So it is left
out; where nothing is deleted, minimal increase is best.`)
}

// surveySpaceCode is the second part of section 9.
func (p *page) surveySpaceCode() {
	p.section("9 Space-code filters")
	const groups, levels, each = 32, 8, 100
	sizes := []int{1, 4, 16, 64, 256, 1024, 4096, 16384}
	g := p.standard(1<<19, 3)
	s := counting.NewSpaceCode(g, filterSeed, groups, levels, rand.NewPCG(9, 1))
	flow := func(i, j int) uint64 { return hash.Nth(filterSeed, uint64(i*each+j)) }
	packets := 0
	for i, size := range sizes {
		for j := range each {
			for range size {
				s.AddHash(flow(i, j))
			}
			packets += size
		}
	}
	p.text(`The package is weir/filter/counting. The goal is "to obtain accurate estimates of packet
counts for all flows on a network router, not only the large flows": here of %d packets of
%d flows, %d of each size, in %d levels of %d groups of hash functions, 64 KiB each.`, packets, len(sizes)*each, each, levels, groups)
	var rows [][]string
	for i, size := range sizes {
		var mean, squares float64
		for j := range each {
			n := s.CountHash(flow(i, j)) / float64(size)
			mean += n / each
			squares += (n - 1) * (n - 1) / each
		}
		rows = append(rows, []string{fmt.Sprint(size), fixed(mean, 3), fixed(math.Sqrt(squares), 3)})
	}
	p.table([]string{"packets of a flow", "mean estimate, of that", "standard error"}, rows...)
	p.text(`Departure: one likelihood weighs all levels, where the authors choose some of them. The data
plane does without: its trackers count heavy flows exactly, in less memory.`)
}
