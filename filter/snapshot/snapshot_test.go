package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"weir/tests/long"
	"weir/tests/seed"
)

// group returns the group of n keys that key makes.
func group(tag uint32, size, n int, key func() []byte) Group {
	g := Group{Tag: tag, Bits: size}
	if size == 0 {
		return g
	}
	beyond := byte(0xff) >> ((size-1)%8 + 1)
	var all [][]byte
	for range n {
		k := key()[:g.Width()]
		k[len(k)-1] &^= beyond
		all = append(all, k)
	}
	slices.SortFunc(all, bytes.Compare)
	all = slices.CompactFunc(all, bytes.Equal)
	for _, k := range all {
		g.Keys = append(g.Keys, k...)
	}
	return g
}

// TestRoundTrip encodes and decodes sets of all lengths, dense and sparse.
func TestRoundTrip(t *testing.T) {
	long.Seconds(t)
	r := seed.New(t)
	for round := range 300 {
		var set []Group
		tag := uint32(0)
		total := 0
		for range r.IntN(5) {
			tag += 1 + uint32(r.IntN(1000))
			size := r.IntN(MaxBits + 1)
			if r.IntN(2) == 0 {
				size = []int{0, 1, 7, 8, 9, 24, 31, 32, 33, 63, 64, 65, 127, 128, 320}[r.IntN(15)]
			}
			dense := r.IntN(3)
			g := group(tag, size, r.IntN(1000), func() []byte {
				k := make([]byte, 64)
				for i := range k {
					switch dense {
					case 0:
						k[i] = byte(r.Uint32())
					case 1:
						k[i] = byte(r.Uint32() >> 30 / 3)
					default:
						k[i] = 0xff ^ byte(r.IntN(1+i/4))
					}
				}
				return k
			})
			total += g.Len()
			set = append(set, g)
		}
		b, err := Append(nil, set)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		got, err := Decode(b, total)
		if err != nil || !equal(got, set) {
			t.Fatalf("round %d: %v\n%v\n%v", round, err, got, set)
		}
		if Of(got) != Of(set) {
			t.Fatal("another checksum")
		}
		if total > 0 {
			if _, err := Decode(b, total-1); !errors.Is(err, ErrTooMany) {
				t.Fatalf("round %d: %d keys, one more than allowed: %v", round, total, err)
			}
		}
		for range 20 { // what is cut off or has something behind it is refused
			if _, err := Decode(b[:r.IntN(len(b))], math.MaxInt); err == nil {
				t.Fatalf("round %d: a part was taken for the whole", round)
			}
		}
		if _, err := Decode(append(b, 0), math.MaxInt); err == nil {
			t.Fatalf("round %d: a byte too many", round)
		}
	}
}

func equal(a, b []Group) bool {
	return slices.EqualFunc(a, b, func(g, h Group) bool {
		return g.Tag == h.Tag && g.Bits == h.Bits && bytes.Equal(g.Keys, h.Keys)
	})
}

// Both forms of a group decode to it.
func TestForms(t *testing.T) {
	r := seed.New(t)
	for _, size := range []int{1, 32, 64, 65, 128, 320} {
		g := group(1, size, 5000, func() []byte {
			k := make([]byte, 64)
			for i := range k {
				k[i] = byte(r.Uint32())
			}
			return k
		})
		rice, zstd := Group{Bits: size}, Group{Bits: size}
		if err := rice.decodeRice(g.rice(nil), g.Len()); err != nil || !bytes.Equal(rice.Keys, g.Keys) {
			t.Errorf("%d bits: Rice: %v", size, err)
		}
		if err := zstd.decodeZstd(g.zstd(), g.Len()); err != nil || !bytes.Equal(zstd.Keys, g.Keys) {
			t.Errorf("%d bits: Zstandard: %v", size, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, set := range map[string][]Group{
		"descending tags": {{Tag: 2, Bits: 0}, {Tag: 1, Bits: 0}},
		"a tag twice":     {{Tag: 1, Bits: 0}, {Tag: 1, Bits: 8}},
		"descending keys": {{Bits: 8, Keys: []byte{2, 1}}},
		"a key twice":     {{Bits: 8, Keys: []byte{1, 1}}},
		"bits beyond":     {{Bits: 7, Keys: []byte{1}}},
		"half a key":      {{Bits: 16, Keys: []byte{1}}},
		"too long":        {{Bits: MaxBits + 1}},
		"negative":        {{Bits: -1}},
	} {
		if _, err := Append(nil, set); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, b := range map[string][]byte{
		"nothing":         {},
		"another version": {2, 0},
		"many groups":     binary.AppendUvarint([]byte{version}, 1<<40),
		"no keys follow":  {version, 1, 1, 32, 100, formRice, 0},
		"another form":    {version, 1, 1, 32, 1, forms, 1, 0},
		"no Zstandard":    {version, 1, 1, 32, 1, formZstd, 1, 0},
	} {
		if _, err := Decode(b, math.MaxInt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestSum changes a set and follows its checksum.
func TestSum(t *testing.T) {
	r := seed.New(t)
	key := func() []byte { return binary.BigEndian.AppendUint32(nil, r.Uint32()) }
	a, b := group(1, 32, 1000, key), group(1, 32, 1000, key)
	var both Sum
	both.Add([]Group{a})
	both.Add([]Group{b})
	both.Remove([]Group{a})
	if want := Of([]Group{b}); both != want {
		t.Errorf("%v, want %v", both, want)
	}
	c := b
	c.Tag = 2
	if Of([]Group{b}) == Of([]Group{c}) {
		t.Error("groups of another tag have the same checksum")
	}
	if reflect.DeepEqual(Of(nil), Of([]Group{{Bits: 0}})) {
		t.Error("the key of 0 bits is not in the checksum")
	}
}

// TestSize compares the size of random IPv4 addresses with the entropy, and that of a
// small change.
func TestSize(t *testing.T) {
	n, r := long.Or(1_000_000, 10_000_000), seed.New(t)
	addresses := func(n int) Group {
		all := make([]uint32, n+n/100)
		for i := range all {
			all[i] = r.Uint32()
		}
		slices.Sort(all)
		all = slices.Compact(all)
		g := Group{Bits: 32, Keys: make([]byte, 0, 4*n)}
		step := float64(len(all)) / float64(n) // leaves out some anywhere
		for i := range n {
			g.Keys = binary.BigEndian.AppendUint32(g.Keys, all[int(float64(i)*step)])
		}
		return g
	}
	size := func(g Group) float64 {
		b, err := Append(nil, []Group{g})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b, g.Len())
		if err != nil || !equal(got, []Group{g}) {
			t.Fatalf("another set: %v", err)
		}
		return float64(len(b))
	}
	entropy := func(n float64) float64 { // of a set of n of 2³², in bytes
		p := n / (1 << 32)
		return (1 << 32) / 8 * (-p*math.Log2(p) - (1-p)*math.Log2(1-p))
	}
	whole, least := size(addresses(n)), entropy(float64(n))
	t.Logf("%d addresses: %.0f bytes, %.3f of the entropy", n, whole, whole/least)
	if whole > 1.01*least || whole > 13e6 {
		t.Errorf("%d addresses take %.0f bytes, the entropy is %.0f", n, whole, least)
	}
	change := size(addresses(5000)) * 2
	t.Logf("5,000 additions and removals: %.0f bytes", change)
	if change > 27_000 {
		t.Errorf("5,000 additions and removals take %.0f bytes", change)
	}
}

// FuzzDecode decodes arbitrary bytes: what is accepted is a set, and encodes to a set
// that is the same.
func FuzzDecode(f *testing.F) {
	for _, set := range [][]Group{
		nil,
		{{Tag: 1, Bits: 0}, {Tag: 9, Bits: 32, Keys: []byte{1, 2, 3, 4, 5, 6, 7, 8}}},
		{{Tag: 1, Bits: 65, Keys: []byte{1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x80}}},
		{{Bits: 8, Keys: bytes.Repeat([]byte{0}, 1)}},
	} {
		b, err := Append(nil, set)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := Decode(b, 1<<16)
		if err != nil {
			return
		}
		again, err := Append(nil, set)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(again, 1<<16); err != nil || !equal(got, set) {
			t.Fatalf("%v: %v, want %v", err, got, set)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	g := group(0, 32, 1_000_000, func() []byte { return binary.BigEndian.AppendUint32(nil, rand.Uint32()) })
	var out []byte
	for b.Loop() {
		out, _ = Append(out[:0], []Group{g})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(g.Len()), "ns/key")
}

func BenchmarkDecode(b *testing.B) {
	g := group(0, 32, 1_000_000, func() []byte { return binary.BigEndian.AppendUint32(nil, rand.Uint32()) })
	in, _ := Append(nil, []Group{g})
	for b.Loop() {
		if _, err := Decode(in, g.Len()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(g.Len()), "ns/key")
}
