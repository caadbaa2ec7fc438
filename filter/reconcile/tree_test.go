package reconcile

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"weir/filter/bloom"
)

// upTo yields the numbers from from to to as bytes.
func upTo(from, to int) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := from; i < to; i++ {
			if !yield(binary.LittleEndian.AppendUint64(nil, uint64(i))) {
				return
			}
		}
	}
}

// sized returns the best filter of m bits for n elements.
func sized(t *testing.T, m, n int) bloom.Geometry {
	t.Helper()
	g, err := bloom.Standard(uint32(m), bloom.OptimalK(uint32(m), uint64(n)))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What is found is missing indeed; more correction finds more; and only a small part of
// the tree is visited for a small difference.
func TestTree(t *testing.T) {
	const n, missing, seed = 10_000, 100, 7
	theirs := NewTree(seed, upTo(missing, n+missing))
	ours := NewTree(seed, upTo(0, n))
	s := theirs.Summary(sized(t, 4*n, n), sized(t, 4*n, n))
	last := 0
	for correction := range 6 {
		found, visited := 0, 0
		for e := range ours.Missing(s, correction, &visited) {
			if binary.LittleEndian.Uint64(e) >= missing {
				t.Fatalf("%x is not missing", e)
			}
			found++
		}
		t.Logf("correction %d: %d of %d found, %d nodes visited", correction, found, missing, visited)
		if found < last {
			t.Errorf("correction %d finds %d, one less found %d", correction, found, last)
		}
		if visited > missing*2*15*(correction+1) {
			t.Errorf("correction %d visits %d nodes", correction, visited)
		}
		last = found
	}
	// Where nothing is missing, the search ends once more matches than the correction are found on each path.
	for correction := range 6 {
		var visited int
		for e := range theirs.Missing(s, correction, &visited) {
			t.Fatalf("%x is missing from its own summary", e)
		}
		if want := 2<<correction - 1; visited != want {
			t.Errorf("correction %d visits %d nodes of equal sets, want %d", correction, visited, want)
		}
	}
	// What the filter of elements misses, no correction finds.
	rate := s.Leaves.FalsePositiveRate(n)
	if want := missing * (1 - rate); math.Abs(float64(last)-want) > 4*math.Sqrt(missing*rate) {
		t.Errorf("%d found, want about %.0f", last, want)
	}
}

func TestTreeEdges(t *testing.T) {
	g := sized(t, 1000, 10)
	none, one, two := NewTree(1, upTo(0, 0)), NewTree(1, upTo(0, 1)), NewTree(1, upTo(0, 2))
	for _, c := range []struct {
		ours, theirs *Tree
		want         int
	}{{none, none, 0}, {none, one, 0}, {one, none, 1}, {two, one, 1}, {one, two, 0}, {two, two, 0}, {two, none, 2}} {
		var all [][]byte
		for e := range c.ours.Missing(c.theirs.Summary(g, g), 1, nil) {
			all = append(all, e)
		}
		if len(all) != c.want {
			t.Errorf("%d elements and %d: %x are missing", len(c.ours.leaves), len(c.theirs.leaves), all)
		}
	}
	for range two.Missing(none.Summary(g, g), 0, nil) {
		break // and the search ends
	}
}

func TestBloomjoin(t *testing.T) {
	const cities, employees = 1000, 20_000
	rows := func(n, every, keys int) iter.Seq[Row] {
		return func(yield func(Row) bool) {
			for i := range n {
				if !yield(Row{fmt.Appendf(nil, "city %d", i*every%keys), fmt.Append(nil, i)}) {
					return
				}
			}
		}
	}
	dear := rows(cities/10, 10, cities) // a tenth of the cities
	keys := bloom.New(sized(t, 8*cities/10, cities/10), 1)
	for r := range dear {
		keys.Add(r.Key)
	}
	live := rows(employees, 1, cities)
	candidates := slices.Collect(Semijoin(live, keys))
	joined := slices.Collect(Join(dear, slices.Values(candidates)))
	if len(joined) != employees/10 {
		t.Errorf("%d employees live in dear cities, want %d", len(joined), employees/10)
	}
	for _, j := range joined {
		if string(j.Key[len("city "):]) != fmt.Sprint(atoi(j.Left)*10) || atoi(j.Right)%cities != atoi(j.Left)*10 {
			t.Fatalf("%s with %s and %s", j.Key, j.Left, j.Right)
		}
	}
	// False positives go by cities: 900 of them, with 20 employees each.
	rate := float64(len(candidates)-len(joined)) / (employees - employees/10)
	if want := keys.FalsePositiveRate(cities / 10); math.Abs(rate-want) > 5*math.Sqrt(want/900) {
		t.Errorf("%d candidates: a false-positive rate of %.4f, want %.4f", len(candidates), rate, want)
	}
}

func atoi(b []byte) (n int) {
	fmt.Sscan(string(b), &n)
	return n
}

func TestDifferential(t *testing.T) {
	const records, changed = 20_000, 1000
	main := make(map[string][]byte)
	for k := range upTo(0, records) {
		main[string(k)] = []byte("old")
	}
	d := NewDifferential(sized(t, 8*changed, changed), 1, func(k []byte) ([]byte, bool) {
		r, ok := main[string(k)]
		return r, ok
	})
	for k := range upTo(0, changed/2) {
		d.Put(k, []byte("new"))
	}
	for k := range upTo(changed/2, changed) {
		d.Remove(k)
	}
	i, vain := 0, 0
	for k := range upTo(0, records) {
		r, ok, searched := d.Get(k)
		want := "old"
		if i < changed/2 {
			want = "new"
		}
		if deleted := i >= changed/2 && i < changed; ok == deleted || ok && string(r) != want || i < changed && !searched {
			t.Fatalf("record %d: %q, %t, searched %t", i, r, ok, searched)
		}
		if i >= changed && searched {
			vain++
		}
		i++
	}
	rate := d.filter.FalsePositiveRate(changed)
	if want := rate * (records - changed); math.Abs(float64(vain)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d searches in vain, want %.0f", vain, want)
	}
	for r := range d.Merged() {
		if r.Value == nil {
			delete(main, string(r.Key))
		} else {
			main[string(r.Key)] = r.Value
		}
	}
	for k := range upTo(0, changed) {
		if r, ok, searched := d.Get(k); searched || ok && string(r) != "new" {
			t.Fatalf("after the merge: %q, %t, searched %t", r, ok, searched)
		}
	}
}
