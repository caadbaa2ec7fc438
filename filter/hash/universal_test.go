package hash_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"weir/filter/hash"
	"weir/tests/long"
	"weir/tests/seed"
)

// The lengths of keys, of the invariant parts of packets, and one between.
var lengths = []int{8, 12, 16, 20, 28, 40, 60}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func newSecret(r *rand.Rand) *hash.Secret { return hash.NewSecret([32]byte(randomBytes(r, 32))) }

// inverse returns the inverse of an odd number modulo 2⁶⁴.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

// unmixed returns the number that XXH64's avalanche maps to h: m₁ ⊕ ⌊m₂/2³²⌋,
// where the mixer does not hide what hashes have in common.
func unmixed(h uint64) uint64 {
	h ^= h >> 32
	h *= inverse3
	h ^= h>>29 ^ h>>58
	h *= inverse2
	return h ^ h>>33
}

var inverse2, inverse3 = inverse(prime2), inverse(prime3)

// The formulas of the documentation, in integers of any size.
func TestSecretAsSpecified(t *testing.T) {
	r := seed.Secrets(t)
	number := func(x uint64) *big.Int { return new(big.Int).SetUint64(x) }
	for range 20_000 {
		s, b := newSecret(r), randomBytes(r, 4*r.IntN(hash.MaxLen/4+1))
		words := make([]uint64, 2*(len(s.Pairs)-1))
		for i := range len(b) / 4 {
			words[i] = uint64(binary.LittleEndian.Uint32(b[4*i:]))
		}
		var want uint64
		for shift := range 2 {
			m := number(s.Offsets[len(b)/4][shift])
			for i := 0; 8*i < len(b); i++ {
				a := new(big.Int).Add(number(s.Pairs[i+shift][0]), number(words[2*i]))
				c := new(big.Int).Add(number(s.Pairs[i+shift][1]), number(words[2*i+1]))
				m.Add(m, a.Mul(a, c))
			}
			m.Mod(m, number(0).Lsh(big.NewInt(1), 64))
			want ^= m.Uint64() >> (32 * shift)
		}
		if got := unmixed(s.Sum(b)); got != want {
			t.Fatalf("% x: %#x before the mixer, want %#x", b, got, want)
		}
	}
}

func TestSecretRefusesLengths(t *testing.T) {
	s := newSecret(seed.Secrets(t))
	for n := range 80 {
		func() {
			defer func() {
				if got, want := recover() != nil, n%4 != 0 || n > hash.MaxLen; got != want {
					t.Errorf("%d bytes: panic %v, want %v", n, got, want)
				}
			}()
			s.Sum(make([]byte, n))
		}()
	}
}

// Equal seeds make equal secrets, and no two numbers of theirs are equal.
func TestNewSecrets(t *testing.T) {
	seed := hash.NewSeed()
	if seed == (hash.Seed{}) || seed == hash.NewSeed() {
		t.Error("two seeds are equal")
	}
	secrets := hash.NewSecrets(seed, 4)
	if *secrets[0] != *hash.NewSecret(seed) {
		t.Error("a seed makes two secrets")
	}
	seen, want := make(map[uint64]bool), 0
	for _, s := range secrets {
		for _, p := range append(s.Pairs[:], s.Offsets[:]...) {
			seen[p[0]], seen[p[1]] = true, true
		}
		want += 2 * (len(s.Pairs) + len(s.Offsets))
	}
	if len(seen) != want {
		t.Errorf("%d numbers, want %d", len(seen), want)
	}
}

// Neither a seed nor a secret, nor what contains them, prints their bytes.
func TestSecretsAreNotPrinted(t *testing.T) {
	seed := hash.Seed{}
	for i := range seed {
		seed[i] = 0xa5
	}
	secret := hash.NewSecret(seed)
	number := secret.Pairs[0][0]
	for _, v := range []any{seed, &seed, secret, struct {
		Seed   hash.Seed
		Secret *hash.Secret
	}{seed, secret}} {
		for _, verb := range []string{"%v", "%+v", "%s", "%#v", "%x", "%X", "%q"} {
			text := fmt.Sprintf(verb, v)
			for _, part := range []string{"165", "a5", "A5", fmt.Sprint(number), fmt.Sprintf("%x", number)} {
				if strings.Contains(text, part) {
					t.Errorf("%T as %s: %s", v, verb, text)
				}
			}
		}
	}
}

// The theorem where all secrets can be counted: words of w bits, coefficients of
// c, whose sums are uniform but for their lowest w bits. For any two inputs, each
// pair of hashes comes from equally many secrets.
func TestTheorem(t *testing.T) {
	for _, test := range []struct{ w, c, words int }{{1, 2, 2}, {1, 2, 3}, {1, 2, 4}, {2, 3, 2}} {
		word, mask, out := 1<<test.w-1, 1<<test.c-1, test.c-test.w
		secrets := 1 << (test.c * (2*((test.words+1)/2+1) + 2)) // coefficients and offsets
		sum := func(secret, x int) int {
			n := func(i int) int { return secret >> (test.c * i) & mask }
			m1, m2 := n(0), n(1)
			for i := 0; i < test.words; i += 2 {
				lo, hi := x>>(test.w*i)&word, x>>(test.w*(i+1))&word
				m1 += (n(2+i) + lo) * (n(3+i) + hi)
				m2 += (n(4+i) + lo) * (n(5+i) + hi)
			}
			low := m1&(1<<out-1) ^ m2&mask>>test.w
			return m1&mask>>test.w<<out | low
		}
		for x := range 1 << (test.w * test.words) {
			for _, y := range []int{x ^ 1, x ^ 1<<(test.w*test.words-1)} { // odd and, in words of two bits, even
				count := make([]int, 1<<(4*out))
				for s := range secrets {
					count[sum(s, x)<<(2*out)|sum(s, y)]++
				}
				for pair, n := range count {
					if want := secrets >> (4 * out); n != want {
						t.Fatalf("%+v: %#x and %#x have the hashes %#x with %d secrets, want %d", test, x, y, pair, n, want)
					}
				}
			}
		}
	}
}

// Two inputs chosen without a secret.
type pair struct {
	name string
	a, b []byte
}

func round(w uint64) uint64   { return bits.RotateLeft64(w*prime2, 31) * prime1 }
func unround(y uint64) uint64 { return bits.RotateLeft64(y*inverse(prime1), -31) * inverse(prime2) }

// An input of words of 64 bits, without the last bytes that do not fit.
func input(length int, words ...uint64) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b[:length]
}

// flipped is the word whose round in XXH64 differs from w's in one bit.
func flipped(w uint64, bit int) uint64 { return unround(round(w) ^ 1<<(bit&63)) }

// certain are inputs that collide under XXH64 with every seed. Flipping bit 36
// of a word's round flips, after the rotation by 27, the highest bit of the
// state; multiplied by an odd number, that bit alone remains, and the next word's
// round flips it back.
func certain() []pair {
	return []pair{
		{"words 0 and 1 of 16 bytes", input(16, 5, 7), input(16, flipped(5, 36), flipped(7, 63))},
		{"words 0 and 1 of 20 bytes", input(20, 5, 7, 9), input(20, flipped(5, 36), flipped(7, 63), 9)},
		{"words 1 and 2 of 28 bytes", input(28, 3, 5, 7, 9), input(28, 3, flipped(5, 36), flipped(7, 63), 9)},
	}
}

// likely are keys of IPv6 addresses, with one head, that differ in the second
// word and by 2ʲ in the last four bytes: both change the state by 2ʲ·prime1, which an exclusive or leaves equal
// for about one seed of 2¹⁵ at j = 31.
func likely(r *rand.Rand, n int) []pair {
	const j, head = 31, 0xb80d0120_00008001
	p := make([]pair, n)
	for i := range p {
		w, tail := r.Uint64(), uint64(r.Uint32())
		p[i] = pair{"second word and tail", input(20, head, w, tail), input(20, head, flipped(w, j-27), tail^1<<j)}
	}
	return p
}

func equal(p pair, sum func([]byte) uint64) bool { return sum(p.a) == sum(p.b) }

// TestXXH64CanBeAimedAt documents why Secret is there, and that the pairs which
// TestSecretCannotBeAimedAt tries are those that break XXH64.
func TestXXH64CanBeAimedAt(t *testing.T) {
	r := seed.Secrets(t)
	for _, p := range certain() {
		if string(p.a) == string(p.b) {
			t.Errorf("%s: equal", p.name)
		}
		for range 1000 {
			if seed := r.Uint64(); !equal(p, func(b []byte) uint64 { return hash.Sum(seed, b) }) {
				t.Fatalf("%s: no collision with seed %#x", p.name, seed)
			}
		}
	}
	const batch, batches = 1000, 1000
	n, all := 0, batch*batches
	for range batches {
		for _, p := range likely(r, batch) {
			if seed := r.Uint64(); equal(p, func(b []byte) uint64 { return hash.Sum(seed, b) }) {
				n++
			}
		}
	}
	t.Logf("%d collisions of %d: 2^%.2f", n, all, math.Log2(float64(n)/float64(all)))
	if want := binomial(all, math.Exp2(-15.07)); n < want.least || n > want.most {
		t.Errorf("want %d … %d", want.least, want.most)
	}
}

type interval struct{ least, most int }

// binomial returns the numbers of successes in n trials that are not less likely
// than e⁻³², by Chernoff's bound.
func binomial(n int, p float64) interval {
	outside := func(k int) bool {
		q := float64(k) / float64(n)
		d := 0.0
		if q > 0 {
			d += q * math.Log(q/p)
		}
		if q < 1 {
			d += (1 - q) * math.Log((1-q)/(1-p))
		}
		return float64(n)*d > 32
	}
	mean := int(float64(n) * p)
	i := interval{mean, mean + 1}
	for i.least > 0 && !outside(i.least-1) {
		i.least--
	}
	for i.most < n && !outside(i.most+1) {
		i.most++
	}
	return i
}

// window is some bits of two hashes, before the mixer or behind it.
type window struct {
	name  string
	mask  uint64
	mixed bool
}

// windows are the ends of both halves, where sums are weakest, both halves at
// once, and what filters use of the mixed hash.
func windows(width int) []window {
	w, v := uint64(1)<<width-1, uint64(1)<<(width/2)-1
	return []window{
		{"upper half, highest", w << (64 - width), false},
		{"upper half, lowest", w << 32, false},
		{"lower half, highest", w << (32 - width), false},
		{"lower half, lowest", w, false},
		{"both halves, highest", v<<(64-width/2) | v<<(32-width/2), false},
		{"both halves, lowest", v<<32 | v, false},
		{"bucket", w << (64 - width), true},
		{"fingerprint, highest", w << (48 - width), true},
		{"fingerprint, lowest", w, true},
	}
}

// differences hashes each pair's inputs under many secrets and compares the
// number of equal windows with the theorem, both ways since it is exact. Only
// few bits are compared, so that collisions happen. Consecutive pairs should
// have the same a, which is then hashed once.
func differences(t *testing.T, r *rand.Rand, secrets int, pairs []pair) {
	t.Helper()
	width := min(bits.Len(uint(secrets))-5, 20) &^ 1 // 8 expected collisions or more
	win := windows(width)
	workers := runtime.GOMAXPROCS(0)
	counts := make([][][]int, workers)
	var fingerprints atomic.Int64
	var wg sync.WaitGroup
	for k := range workers {
		own := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() {
			count := make([][]int, len(pairs))
			for i := range count {
				count[i] = make([]int, len(win))
			}
			for range secrets / workers {
				s := newSecret(own)
				var a []byte
				var ha, ua uint64
				for i, p := range pairs {
					if len(a) == 0 || &a[0] != &p.a[0] {
						a, ha = p.a, s.Sum(p.a)
						ua = unmixed(ha)
					}
					h := s.Sum(p.b)
					mixed, plain := h^ha, unmixed(h)^ua
					if mixed<<16 == 0 {
						fingerprints.Add(1)
					}
					for j := range win {
						x := plain
						if win[j].mixed {
							x = mixed
						}
						if x&win[j].mask == 0 {
							count[i][j]++
						}
					}
				}
			}
			counts[k] = count
		})
	}
	wg.Wait()
	trials := secrets / workers * workers
	for j, w := range win {
		p := math.Exp2(-float64(bits.OnesCount64(w.mask)))
		one, all := binomial(trials, p), 0
		for i := range pairs {
			n := 0
			for k := range workers {
				n += counts[k][i][j]
			}
			all += n
			if n < one.least || n > one.most {
				t.Errorf("%s, %s: %d collisions of %d, want %d … %d", pairs[i].name, w.name, n, trials, one.least, one.most)
			}
		}
		t.Logf("%s, %d bits: %d collisions of %d, %.4f of the bound", w.name, bits.OnesCount64(w.mask), all, trials*len(pairs),
			float64(all)/(p*float64(trials)*float64(len(pairs))))
	}
	if n := fingerprints.Load(); n > 0 { // expected: 2⁻⁴⁸ of fewer than 2³⁴
		t.Errorf("%d collisions of whole fingerprints", n)
	}
}

// The pairs that XXH64 does not survive: 10⁷ secrets with WEIR_EXHAUSTIVE=1.
func TestSecretCannotBeAimedAt(t *testing.T) {
	r := seed.Secrets(t)
	differences(t, r, long.Rounds(200_000, 2_000_000, 10_000_000), append(certain(), likely(r, 8)...))
}

// Inputs that differ in one bit: each of them, in a random input and in zeros.
// 10⁶ secrets with WEIR_EXHAUSTIVE=1.
func TestSecretDiffersByOneBit(t *testing.T) {
	r, draws := seed.Secrets(t), long.Rounds(4096, 20_000, 1_000_000)
	for _, length := range lengths {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			var pairs []pair
			for _, a := range [][]byte{make([]byte, length), randomBytes(r, length)} {
				for bit := range 8 * length {
					b := append([]byte(nil), a...)
					b[bit/8] ^= 1 << (bit % 8)
					pairs = append(pairs, pair{fmt.Sprintf("bit %d", bit), a, b})
				}
			}
			differences(t, r, draws, pairs)
		})
	}
}

// Inputs that differ in two words, by ±2ʲ each or in a bit each: a sample, or
// all of them with WEIR_EXHAUSTIVE=1.
func TestSecretDiffersInTwoWords(t *testing.T) {
	r, share := seed.Secrets(t), long.Rounds(400, 1500, math.MaxInt)
	for _, length := range lengths {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			var pairs []pair
			a := randomBytes(r, length)
			word := func(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
			for u := range length / 4 {
				for v := range u {
					for which := range 3 << 10 {
						i, j := which%32, which/32%32
						b := append([]byte(nil), a...)
						x, y := word(b, u), word(b, v)
						switch which >> 10 {
						case 0:
							x, y = x+1<<i, y+1<<j
						case 1:
							x, y = x+1<<i, y-1<<j
						default:
							x, y = x^1<<i, y^1<<j
						}
						binary.LittleEndian.PutUint32(b[4*u:], x)
						binary.LittleEndian.PutUint32(b[4*v:], y)
						pairs = append(pairs, pair{fmt.Sprintf("words %d and %d, %d", v, u, which), a, b})
					}
				}
			}
			r.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
			differences(t, r, 4096, pairs[:min(share, len(pairs))])
		})
	}
}

// Inputs of different lengths, one the other's beginning: zeros behind it, or
// none.
func TestSecretDiffersByLength(t *testing.T) {
	var pairs []pair
	for n := 4; n <= hash.MaxLen; n += 4 {
		a := make([]byte, n)
		for m := 0; m < n; m += 4 {
			pairs = append(pairs, pair{fmt.Sprintf("%d and %d bytes", n, m), a, a[:m]})
		}
	}
	differences(t, seed.Secrets(t), 4096, pairs)
}

// Keys that count upwards fill the buckets as random ones would: chi-square,
// with the fingerprint's bits too, under many secrets.
func TestSecretSpreads(t *testing.T) {
	r := seed.Secrets(t)
	const buckets, keys = 1024, 1 << 15
	for _, k := range []struct {
		name string
		make func(i uint32) []byte
	}{
		{"hosts of an IPv6 /64", func(i uint32) []byte {
			b := input(20, 0xb80d0120_00008001, 0x42, 0)
			binary.BigEndian.PutUint32(b[16:], i)
			return b
		}},
		{"IPv6 /64s", func(i uint32) []byte {
			b := input(20, 0xb80d0120_00004001, 0, 0)
			binary.BigEndian.PutUint32(b[8:], i)
			return b
		}},
		{"IPv4 addresses", func(i uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0, 32, 0, 0}, 10<<24+i) }},
		{"ports of IPv4 flows", func(i uint32) []byte {
			b := input(16, 0x0100000a_0620200e, 0x0200000a)
			binary.BigEndian.PutUint16(b[12:], uint16(i))
			binary.BigEndian.PutUint16(b[14:], uint16(i>>16))
			return b
		}},
		{"ports of IPv6 flows", func(i uint32) []byte {
			b := input(40, 0xb80d0120_0680800f, 0x42, 0x1, 0x1, 0)
			binary.BigEndian.PutUint32(b[36:], i<<8)
			return b
		}},
	} {
		const secrets = 16
		var sum, sumLow float64
		for range secrets {
			s := newSecret(r)
			var high, low [buckets]int
			for i := range uint32(keys) {
				h := s.Sum(k.make(i))
				high[hash.Reduce(h, buckets)]++
				low[h%buckets]++
			}
			sum += chiSquare(high[:], keys)
			sumLow += chiSquare(low[:], keys)
		}
		// The sum's degrees of freedom are f, its deviation √2f.
		f := float64(secrets * (buckets - 1))
		for name, x := range map[string]float64{"bucket": sum, "lowest bits": sumLow} {
			z := (x - f) / math.Sqrt(2*f)
			t.Logf("%s, %s: chi-square %.0f of %.0f, %+.1f deviations", k.name, name, x, f, z)
			if math.Abs(z) > 7 {
				t.Errorf("%s, %s: %.1f deviations from random numbers", k.name, name, z)
			}
		}
	}
}

func chiSquare(counts []int, n int) float64 {
	expected, sum := float64(n)/float64(len(counts)), 0.0
	for _, c := range counts {
		sum += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	return sum
}

// Each key contains the hash before it: the time is that from a key to its hash.
func BenchmarkSum(b *testing.B) {
	s := hash.NewSecret([32]byte{1})
	for _, length := range lengths {
		key := make([]byte, length)
		b.Run(fmt.Sprintf("xxh64/%d", length), func(b *testing.B) {
			for b.Loop() {
				binary.LittleEndian.PutUint64(key, hash.Sum(1, key))
			}
		})
		b.Run(fmt.Sprintf("universal/%d", length), func(b *testing.B) {
			for b.Loop() {
				binary.LittleEndian.PutUint64(key, s.Sum(key))
			}
		})
	}
}
