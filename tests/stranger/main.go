// Stranger keeps track of the queries of a name server with twelve packages of weir/filter, as a
// program that knows them from their documentation alone: it is a module of its own, which sees
// what they export and nothing else.
package main

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"

	"weir/filter/blocked"
	"weir/filter/bloom"
	"weir/filter/bloomier"
	"weir/filter/compress"
	"weir/filter/counting"
	"weir/filter/cuckoo"
	"weir/filter/hash"
	"weir/filter/invertible"
	"weir/filter/quotient"
	"weir/filter/sketch"
	"weir/filter/snapshot"
	"weir/filter/stable"
	"weir/filter/weighted"
)

const (
	names = 20_000
	rate  = 0.01
	seed  = 1
)

func name(i int) []byte { return fmt.Appendf(nil, "host%d.example", i) }

func hashOf(i int) uint64 { return hash.Sum(seed, name(i)) }

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stranger:", err)
		os.Exit(1)
	}
}

func run(w io.Writer) error {
	for _, step := range []func(io.Writer) error{sets, savings, counts, values, differences} {
		if err := step(w); err != nil {
			return err
		}
	}
	return nil
}

// set has the methods that all filters of byte strings share.
type set interface {
	Add(b []byte)
	Contains(b []byte) bool
}

// byHash makes a set of one whose elements are hashes.
type byHash struct{ *blocked.Filter }

func (f byHash) Add(b []byte)           { f.Filter.Add(hash.Sum(seed, b)) }
func (f byHash) Contains(b []byte) bool { return f.Filter.Contains(hash.Sum(seed, b)) }

// sets asks several filters of one rate for names that they have and for others.
func sets(w io.Writer) error {
	g, err := bloom.For(names, rate)
	if err != nil {
		return err
	}
	lines, err := blocked.For(names, rate)
	if err != nil {
		return err
	}
	// Names with a number that ends in 00, 20 and so on are asked for a hundred times as often.
	universe := weighted.Universe{
		{Count: names, Frequency: 100, Likelihood: 0.05},
		{Count: 19 * names, Frequency: 1, Likelihood: 0.05},
	}
	classify := func(b []byte) int {
		number := bytes.TrimSuffix(b, []byte(".example"))
		if bytes.HasSuffix(number, []byte("0")) && (number[len(number)-2]-'0')%2 == 0 {
			return 0
		}
		return 1
	}
	m, err := universe.Bits(rate)
	if err != nil {
		return err
	}
	byClass, err := weighted.New(universe, classify, m)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "bits a name: %.1f, in lines %.1f, weighted %.1f\n",
		float64(g.M())/names, 8*float64(lines.Bytes())/names, float64(m)/names)
	for _, f := range []struct {
		name string
		set  set
	}{
		{"bloom", bloom.New(g, seed)},
		{"blocked", byHash{blocked.New(lines)}},
		{"counting", counting.New(g, seed)},
		{"weighted", byClass},
	} {
		for i := range names {
			f.set.Add(name(i))
		}
		missing, wrong, queries := 0, 0., 0.
		for i := range names {
			if !f.set.Contains(name(i)) {
				missing++
			}
		}
		for i := range 5 * names {
			other := name(5*names + i)
			often := universe[classify(other)].Frequency
			queries += often
			if f.set.Contains(other) {
				wrong += often
			}
		}
		fmt.Fprintf(w, "%s: %d missing, 0.2 to 2 %% of the queries wrong: %t\n", f.name, missing, wrong > 0.002*queries && wrong < 0.02*queries)
		if r, ok := f.set.(interface{ Remove(b []byte) bool }); ok {
			fmt.Fprintf(w, "%s: removed %t, and again %t\n", f.name, r.Remove(name(7)), r.Remove(name(7)))
		}
	}
	return nil
}

// savings saves structures, and reads them again.
func savings(w io.Writer) error {
	g, err := bloom.For(names, rate)
	if err != nil {
		return err
	}
	f := counting.New(g, seed)
	table := cuckoo.New(names)
	for i := range names {
		f.Add(name(i))
		if err := table.Add(hashOf(i), uint16(1+i%100)); err != nil {
			return err
		}
	}
	read, readTable := new(counting.Filter), cuckoo.New(0)
	for _, s := range []struct {
		name     string
		from     encoding.BinaryAppender
		into     encoding.BinaryUnmarshaler
		contains func() bool
	}{
		{"counting", f, read, func() bool { return read.Contains(name(3)) && read.Remove(name(3)) }},
		{"cuckoo", table, readTable, func() bool { n, ok := readTable.Lookup(hashOf(42)); return ok && n == 43 }},
	} {
		b, err := s.from.AppendBinary(nil)
		if err != nil {
			return err
		}
		damaged := bytes.Clone(b)
		damaged[len(b)/2]++
		refused := s.into.UnmarshalBinary(damaged) != nil
		if err := s.into.UnmarshalBinary(b); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: damaged bytes refused %t, read again %t\n", s.name, refused, s.contains())
	}
	// To send it, a filter of more bits with fewer functions is compressed.
	sparse, err := bloom.Standard(g.M()*2, 2)
	if err != nil {
		return err
	}
	sent := bloom.New(sparse, seed)
	for i := range names {
		sent.Add(name(i))
	}
	b := compress.Encode(sent)
	received, err := compress.Decode(b, sparse.M())
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "compressed: smaller %t, equal %t\n", 8*len(b) < int(sparse.M()), received.Equal(sent))
	return nil
}

// counts finds names that are asked for often, and those that were asked for before.
func counts(w io.Writer) error {
	rows, width := sketch.Dimensions(0.001, 0.01)
	s, err := sketch.New[uint32](sketch.Rows, rows, width)
	if err != nil {
		return err
	}
	recent, err := stable.New(stable.Params{Algorithm: stable.SBF, Cells: 1 << 16, Bits: 3, K: 3, P: 10}, rand.NewPCG(1, 1))
	if err != nil {
		return err
	}
	repeated := 0
	for i := range names {
		of := i
		if i%10 == 0 {
			of = 0
		}
		s.Add(hashOf(of), 1)
		if recent.Observe(hashOf(of), 1) {
			repeated++
		}
	}
	n := s.Estimate(hashOf(0))
	fmt.Fprintf(w, "host0: at least 2000 queries %t, at most 2020 %t; repeated %t\n", n >= 2000, n <= 2020, repeated >= 1999)
	return nil
}

// values maps names to numbers, exactly and not.
func values(w io.Writer) error {
	var entries []bloomier.Entry
	for i := range names {
		entries = append(entries, bloomier.Entry{Hash: hashOf(i), Value: uint64(i % 256)})
	}
	f, err := bloomier.New(entries, 8, 7)
	if err != nil {
		return err
	}
	v, ok := f.Lookup(hashOf(300))
	fmt.Fprintf(w, "bloomier: %d %t\n", v, ok)

	layout := quotient.Plan(32, names, 1)
	addresses, err := quotient.New(layout, layout.Cut(quotient.NewSecret()))
	if err != nil {
		return err
	}
	for i := range names {
		if err := addresses.Add(uint64(i*i), 1); err != nil {
			return err
		}
	}
	_, square := addresses.Lookup(81)
	_, other := addresses.Lookup(82)
	fmt.Fprintf(w, "quotient: 81 %t, 82 %t, removed %t\n", square, other, addresses.Remove(81))
	// Its keys are saved, in order.
	var all []uint64
	for e := range addresses.All() {
		all = append(all, e.Key)
	}
	slices.Sort(all)
	var keys []byte
	for _, k := range all {
		keys = binary.BigEndian.AppendUint32(keys, uint32(k))
	}
	b, err := snapshot.Append(nil, []snapshot.Group{{Tag: 1, Bits: 32, Keys: keys}})
	if err != nil {
		return err
	}
	groups, err := snapshot.Decode(b, names)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "snapshot: %d addresses, smaller %t\n", groups[0].Len(), len(b) < len(keys))
	return nil
}

// differences finds the names that one of two servers lacks.
func differences(w io.Writer) error {
	var tables [2]*invertible.Table
	for i := range tables {
		t, err := invertible.New(make([]uint64, invertible.Words(10)))
		if err != nil {
			return err
		}
		tables[i] = t
	}
	for i := range names {
		for _, t := range tables {
			t.Add(hashOf(i))
		}
	}
	tables[0].Remove(hashOf(5))
	only, lacks, ok := tables[0].Minus(tables[1]).List()
	fmt.Fprintf(w, "invertible: %t, %d and %d differ, host5 %t\n", ok, len(only), len(lacks), len(lacks) == 1 && lacks[0] == hashOf(5))
	return nil
}
