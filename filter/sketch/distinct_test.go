package sketch

import (
	"math"
	"testing"

	"weir/filter/hash"
)

// The estimate is right wherever the flows were counted: in one bank or in
// several, in the sketch or only in the memory.
func TestDistinct(t *testing.T) {
	const lines, width = 4096, 4 * 4096
	for _, c := range []struct {
		name   string
		flows  uint32
		banks  int
		common uint32 // flows that all banks have
		limit  uint64 // 1: only the memory, as long as it has room
		kept   uint32 // flows of the interval before: these do not count
	}{
		{"none", 0, 2, 0, 1000, 0},
		{"one", 1, 1, 0, 1000, 0},
		{"few", 100, 1, 0, 1000, 0},
		{"one per counter", width, 1, 0, 1000, 0},
		{"many", 5 * width, 1, 0, 1000, 0},
		{"several banks", width, 3, 0, 1000, 0},
		{"several banks, flows in common", width, 3, width, 1000, 0},
		{"several banks, some in common", width, 3, width / 2, 1000, 0},
		{"in the memory", 2000, 2, 500, 1, 0},
		{"in the memory and in the sketch", 20_000, 2, 500, 1, 0},
		{"kept", 2000, 2, 500, 1000, 1000},
		{"kept, not seen", 0, 2, 0, 1000, 1000},
	} {
		test := func(t *testing.T, cold uint32) {
			tracker := cooled(sources.of(Packets, lines, 512), cold)
			id := func(n uint32) uint32 { return n }
			if cold > 0 { // at random: see Distinct
				id = func(n uint32) uint32 { return uint32(hash.Nth(uint64(n), 1)) }
			}
			var banks []*Bank
			for range c.banks {
				b := mustNewBank(t, tracker)
				b.Admit(c.limit, 0)
				for n := range c.kept { // half of them come again, if any do
					k := source(id(c.flows/2 + n))
					if !b.Keep(Flow{Key: k, Hash: b.Hash(k)}) {
						t.Fatal("no room")
					}
				}
				banks = append(banks, b)
			}
			for n := range c.flows {
				if n < c.common {
					for _, b := range banks {
						b.send(id(n), 3)
					}
				} else {
					banks[int(n)%c.banks].send(id(n), 3)
				}
			}
			got, n := Distinct(banks...), float64(c.flows)
			load := n / width
			if cold > 0 { // kept flows raise its counters, too, seen or not
				load = (n + float64(c.kept)) / width
			}
			// Whang's standard deviation for one row; that of the mean of four
			// rows that share lines is smaller.
			sigma := math.Sqrt(width * (math.Exp(load) - load - 1))
			t.Logf("%.0f of %d flows, standard deviation %.0f", got, c.flows, sigma)
			if math.Abs(got-n) > 5*sigma+1 {
				t.Errorf("%.0f of %d flows", got, c.flows)
			}
		}
		t.Run(c.name, func(t *testing.T) { test(t, 0) })
		t.Run(c.name+", cold", func(t *testing.T) { test(t, width/64) })
	}
}

// A sketch without a zero counter only yields a lower bound.
func TestDistinctSaturated(t *testing.T) {
	tracker := sources.of(Packets, 16, 1)
	b := mustNewBank(t, tracker)
	b.Admit(1000, 0)
	last := 0.
	for n := range uint32(5000) {
		b.send(n, 1)
		got := Distinct(b)
		if got < last {
			t.Fatalf("%g flows, and %g with one more", last, got)
		}
		last = got
	}
	if width := 4. * 16; math.IsInf(last, 0) || last < width*math.Log(width) || last > 5000 {
		t.Errorf("%g of 5000 flows", last)
	}
	if got := Distinct(); got != 0 {
		t.Errorf("%g flows in no banks", got)
	}
}
