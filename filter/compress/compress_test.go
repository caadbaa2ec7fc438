package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/must"
)

const seed = 20021010

func standard(m uint32, k int) bloom.Geometry    { return must.Have(bloom.Standard(m, k)) }
func partitioned(m uint32, k int) bloom.Geometry { return must.Have(bloom.Partitioned(m, k)) }

func newRand(t testing.TB) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func random(g bloom.Geometry, n int, rng *rand.Rand) *bloom.Filter {
	f := bloom.New(g, seed)
	for range n {
		f.AddHash(rng.Uint64())
	}
	return f
}

// Table 1 of the survey, by its formulas and by compressing real filters and
// querying the decompressed ones.
//
// Tolerances: the formulas agree to the digits given, 5·10⁻⁸ and 5·10⁻⁴. The number of zeros of a
// filter with a = kn/m has the variance m·e^−a·(1 − (1+a)e^−a), and each zero
// turned into a one changes the size by log₂(p/(1−p)) bits; the size sent may
// differ by five such standard deviations, and 36 bytes of header. The rate is
// judged by the binomial distribution with a sample that finds errors of 10 %.
func TestTable1(t *testing.T) {
	const n = 400_000
	for _, c := range []struct {
		perElement uint32 // m/n
		k          int
		f, z       float64 // false-positive rate, bits sent per element
	}{
		{16, 11, 4.587e-4, 16},
		{28, 4, 3.1405e-4, 15.846},
		{48, 3, 2.2240e-4, 15.829},
	} {
		t.Run(fmt.Sprintf("m=%dn/k=%d", c.perElement, c.k), func(t *testing.T) {
			g := standard(c.perElement*n, c.k)
			rate, z := g.FalsePositiveRate(n), SentBits(g, n)/n
			if math.Abs(rate-c.f) > 5e-8 {
				t.Errorf("predicted rate is %.6g, want %.6g", rate, c.f)
			}
			if math.Abs(z-c.z) > 0.0005 {
				t.Errorf("predicted size is %.5f bits per element, want %.3f", z, c.z)
			}

			rng := newRand(t)
			sent := Encode(random(g, n, rng))
			bits := 8 * float64(len(sent)) / n
			a := float64(c.k) / float64(c.perElement)
			p := math.Exp(-a)
			sd := math.Sqrt(float64(c.perElement)/n*p*(1-(1+a)*p)) * math.Abs(math.Log2(p/(1-p)))
			t.Logf("size %.5f bits per element, predicted %.5f, standard deviation %.5f", bits, z, sd)
			if math.Abs(bits-z) > 5*sd+8.0*(headerLen+onesLen+checksumLen+2)/n {
				t.Errorf("size %.5f bits per element, want %.5f", bits, z)
			}

			received := must.Have(Decode(sent, g.M()))
			hits, trials := 0, trial.Count(rate, 0.1)
			for range trials {
				if received.ContainsHash(rng.Uint64()) {
					hits++
				}
			}
			trial.Check(t, hits, trials, rate)
		})
	}
}

// With 16 transmitted bits per element, the optimum has Table 1's k at each of
// its sizes in memory, and no other sparse filter within the limits is better.
func TestOptimal(t *testing.T) {
	const n, sent = 10_000, 16 * 10_000
	last := math.Inf(1)
	for _, c := range []struct {
		perElement uint32
		k          int
	}{{16, 11}, {28, 4}, {48, 3}} {
		maxM := c.perElement * n
		p := must.Have(Optimal(n, sent, maxM))
		t.Logf("at most %dn bits: m/n = %.3f, k = %d, sent/n = %.4f, rate %.5g",
			c.perElement, float64(p.Geometry.M())/n, p.Geometry.K(), p.Sent/n, p.Rate)
		if p.Geometry.K() != c.k || p.Geometry.M() > maxM || p.Sent > sent {
			t.Errorf("at most %dn bits: plan %+v, want k = %d", c.perElement, p, c.k)
		}
		if p.Rate >= last {
			t.Errorf("at most %dn bits: rate %v is not below %v", c.perElement, p.Rate, last)
		}
		last = p.Rate
		for k := 1; k <= 33; k++ {
			for m := uint32(n / 10); m <= maxM; m += n / 10 {
				g := standard(m, k)
				if k <= bloom.OptimalK(m, n) && SentBits(g, n) <= sent && g.FalsePositiveRate(n) < p.Rate {
					t.Errorf("m = %d, k = %d is better than %+v", m, k, p)
				}
			}
		}
	}
	// Dense filters, which are equally good, are not considered.
	for memory := uint32(2); memory < 20; memory++ {
		if g := must.Have(Optimal(n, 2*n, memory*n)).Geometry; g.K() > bloom.OptimalK(g.M(), n) {
			t.Errorf("the plan for 2 of %d bits is the dense filter m = %d, k = %d", memory, g.M(), g.K())
		}
	}
	// With unlimited memory, one hash function is best.
	if p := must.Have(Optimal(n, sent, math.MaxUint32)); p.Geometry.K() != 1 || p.Rate > 1e-4 {
		t.Errorf("without a limit the plan is %+v", p)
	}
	for _, err := range []error{
		second(Optimal(0, sent, 100)), second(Optimal(n, 0, 100)),
		second(Optimal(n, math.NaN(), 100)), second(Optimal(n, sent, 0)),
	} {
		if err == nil {
			t.Error("an impossible plan was accepted")
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Bits of every density survive a round trip, and their code exceeds their
// entropy by at most two bytes and a millionth.
func TestBitsRoundTrip(t *testing.T) {
	rng := newRand(t)
	for _, n := range []uint32{1, 2, 63, 64, 65, 1000, 100_003} {
		for _, density := range []float64{0, 1e-4, 0.01, 0.06, 0.3, 0.5, 0.9, 0.9999, 1} {
			words := make([]uint64, (n+63)/64)
			ones := 0.0
			for i := range n {
				if rng.Float64() < density {
					words[i/64] |= 1 << (i % 64)
					ones++
				}
			}
			b := AppendBits([]byte("head"), words, n)
			got, err := DecodeBits(b[4:], n)
			if err != nil || !slices.Equal(got, words) {
				t.Fatalf("%d bits of density %v: round trip failed: %v", n, density, err)
			}
			p := ones / float64(n)
			entropy := 0.0
			if 0 < p && p < 1 {
				entropy = -float64(n) * (p*math.Log2(p) + (1-p)*math.Log2(1-p))
			}
			if code := float64(8 * (len(b) - 4 - onesLen)); code > entropy*(1+1e-6)+16 {
				t.Errorf("%d bits of density %v take %.0f, entropy %.1f", n, density, code, entropy)
			}
		}
	}
}

// The coder's worst case for carries: bits that keep the middle of the interval
// inside it for a long time.
func TestBitsStraddle(t *testing.T) {
	for _, pattern := range [][]uint64{
		{0xaaaaaaaaaaaaaaaa}, {0x5555555555555555}, {0xffffffff}, {0xffffffff00000000}, {1}, {1 << 63}, {0xfffffffffffffffe},
	} {
		words := slices.Repeat(pattern, 500)
		got, err := DecodeBits(AppendBits(nil, words, 32_000), 32_000)
		if err != nil || !slices.Equal(got, words) {
			t.Errorf("pattern %x: round trip failed: %v", pattern, err)
		}
	}
}

func TestFilterRoundTrip(t *testing.T) {
	rng := newRand(t)
	for _, g := range []bloom.Geometry{standard(1, 1), standard(70, 3), standard(4800, 3), partitioned(4801, 7)} {
		for _, n := range []int{0, 1, 100, 10_000} {
			f := random(g, n, rng)
			got, err := Decode(Encode(f), g.M())
			if err != nil || !got.Equal(f) {
				t.Errorf("%+v with %d elements: round trip failed: %v", g, n, err)
			}
		}
	}
}

// sealed returns b with a valid checksum, so that decoding gets past it.
func sealed(b []byte) []byte {
	if len(b) < checksumLen {
		return b
	}
	body := slices.Clone(b[:len(b)-checksumLen])
	return binary.LittleEndian.AppendUint64(body, hash.Sum(0, body))
}

// malformed returns one mutation for each reason to reject an encoding.
func malformed() map[string][]byte {
	f := bloom.New(standard(70, 3), seed)
	f.AddHash(1)
	valid := Encode(f)
	set := func(offset int, v byte) []byte {
		b := slices.Clone(valid)
		b[offset] = v
		return sealed(b)
	}
	body := valid[:len(valid)-checksumLen]
	return map[string][]byte{
		"empty":           nil,
		"short":           valid[:headerLen+onesLen+checksumLen-1],
		"magic":           set(0, 'X'),
		"version":         set(4, 2),
		"reserved":        set(7, 1),
		"kind":            set(8, 9),
		"k is 0":          set(9, 0),
		"m is too large":  set(15, 0x40),
		"ones too many":   set(24, 71),
		"ones wrong":      set(24, 4),
		"empty but coded": set(24, 0),
		"code ends early": sealed(append(slices.Clone(body[:headerLen+onesLen+1]), make([]byte, checksumLen)...)),
		"code too long":   sealed(append(slices.Clone(body), make([]byte, checksumLen+1)...)),
		"other code":      set(len(body)-1, body[len(body)-1]^0x55),
		"checksum":        append(slices.Clone(body), make([]byte, checksumLen)...),
	}
}

func TestDecodeRejects(t *testing.T) {
	for what, b := range malformed() {
		f, err := Decode(b, 1000)
		if err == nil || f != nil {
			t.Errorf("%s: no error", what)
		}
		t.Logf("%s: %v", what, err)
	}
	if _, err := DecodeBits([]byte{1, 0}, 5); err == nil {
		t.Error("a truncated number of ones was accepted")
	}
}

// Among all codes of at most two bytes there is exactly one for each value of
// five bits.
func TestBitsAreCanonical(t *testing.T) {
	const n = 5
	values := make(map[uint64]bool)
	try := func(b []byte) {
		words, err := DecodeBits(b, n)
		if err != nil {
			return
		}
		if values[words[0]] {
			t.Errorf("%05b has more than one code", words[0])
		}
		values[words[0]] = true
		if again := AppendBits(nil, words, n); !slices.Equal(again, b) {
			t.Errorf("% x decodes, but encodes again as % x", b, again)
		}
	}
	for ones := range byte(n + 2) {
		try([]byte{ones, 0, 0, 0})
		for i := range 1 << 8 {
			try([]byte{ones, 0, 0, 0, byte(i)})
		}
		for i := range 1 << 16 {
			try([]byte{ones, 0, 0, 0, byte(i >> 8), byte(i)})
		}
	}
	if len(values) != 1<<n {
		t.Errorf("%d values have codes, want %d", len(values), 1<<n)
	}
}

// Zero bytes at the end of a code are part of it, though the decoder reads zeros
// beyond the end.
func TestBitsNeedTheirLastZeros(t *testing.T) {
	const n = 6 * 64
	b := AppendBits(nil, []uint64{0, 0, 0, math.MaxUint64, math.MaxUint64, math.MaxUint64}, n)
	for short := b; ; {
		last := len(short) - 1
		if short[last] != 0 {
			break
		}
		short = short[:last]
		if _, err := DecodeBits(short, n); err == nil {
			t.Errorf("% x was decoded from its first %d bytes", b, last)
		}
	}
	if b[len(b)-1] != 0 {
		t.Errorf("% x does not end in zero", b)
	}
}

func TestDecodeLimitsMemory(t *testing.T) {
	b := Encode(bloom.New(standard(1000, 3), seed))
	if _, err := Decode(b, 1000); err != nil {
		t.Error(err)
	}
	if _, err := Decode(b, 999); err == nil {
		t.Error("a filter of 1000 bits was accepted with a limit of 999")
	}
}

// Decoding and encoding again yields the same bytes: no two messages mean the
// same.
func FuzzDecode(f *testing.F) {
	for _, b := range malformed() {
		f.Add(b)
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	for _, g := range []bloom.Geometry{standard(1, 1), standard(480, 3), partitioned(70, 7)} {
		f.Add(Encode(random(g, 10, rng)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, sealed(b)} {
			d, err := Decode(b, 1<<16)
			if err != nil {
				continue
			}
			if again := Encode(d); !slices.Equal(again, b) {
				t.Fatalf("%x decodes, but encodes again as %x", b, again)
			}
		}
	})
}

// The coder alone, so that the fuzzer need not guess a valid header.
func FuzzDecodeBits(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, uint16(5))
	f.Add([]byte{5, 0, 0, 0}, uint16(5))
	f.Add([]byte{2, 0, 0, 0, 0x80}, uint16(7))
	f.Add(AppendBits(nil, []uint64{0x0102030405060708, 0xff}, 100), uint16(100))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		words, err := DecodeBits(b, uint32(n))
		if err != nil {
			return
		}
		if again := AppendBits(nil, words, uint32(n)); !slices.Equal(again, b) {
			t.Fatalf("%x decodes, but encodes again as %x", b, again)
		}
	})
}

func BenchmarkFilter(b *testing.B) {
	const n = 100_000
	for _, c := range []struct {
		perElement uint32
		k          int
	}{{16, 11}, {28, 4}, {48, 3}} {
		f := bloom.New(standard(c.perElement*n, c.k), seed)
		for i := range uint64(n) {
			f.AddHash(hash.Nth(seed, i))
		}
		sent := Encode(f)
		name := fmt.Sprintf("m=%dn/k=%d/op=", c.perElement, c.k)
		b.Run(name+"encode", func(b *testing.B) {
			b.SetBytes(int64(f.M()) / 8)
			for b.Loop() {
				Encode(f)
			}
		})
		b.Run(name+"decode", func(b *testing.B) {
			b.SetBytes(int64(f.M()) / 8)
			for b.Loop() {
				must.Have(Decode(sent, f.M()))
			}
		})
	}
}
