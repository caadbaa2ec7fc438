package hash

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// MaxLen is the length of the longest input of a Secret's Sum, in bytes.
const MaxLen = 60

const maxPairs = (MaxLen + 7) / 8 // of 32-bit words

// Secret selects one of a strongly universal family of hash functions: unlike
// XXH64, whose collisions can be computed without its seed, no two inputs
// collide more often than chance has it, however they are chosen, as long as
// they are chosen without the secret. bpf/universal.h is its twin in C.
//
// An input of ℓ bytes, a multiple of 4, is the little-endian 32-bit words
// x₀, y₀, x₁, y₁, …, the last pair with y = 0 if there is no such word. With
// 64-bit coefficients a and c, one pair of them more than of words, and two
// offsets b for each length, all secret, uniform and independent,
//
//	m₁ = b₁(ℓ) + Σ (aᵢ + xᵢ)(cᵢ + yᵢ)      mod 2⁶⁴
//	m₂ = b₂(ℓ) + Σ (aᵢ₊₁ + xᵢ)(cᵢ₊₁ + yᵢ)  mod 2⁶⁴
//
// and the hash is mix(m₁ ⊕ ⌊m₂/2³²⌋), where ⊕ is exclusive or, and mix the
// avalanche of XXH64, a bijection without secrets.
//
// # Theorem
//
// For any two different inputs, of one length or of two, both hashes are
// uniform and independent: each of the 2¹²⁸ pairs of values has probability
// 2⁻¹²⁸. Hence
//
//   - both hashes are equal with probability 2⁻⁶⁴;
//   - any k chosen bits of both are equal with probability 2⁻ᵏ: the
//     fingerprint of membership's Table, 48 bits, with 2⁻⁴⁸;
//   - a given listed key is found for a given unlisted one, in either of its
//     two buckets of n, with at most 2⁻⁶³ if n ≥ 2¹⁶, else 2⁻⁴⁸(2/n + 2⁻¹⁵):
//     next to the fingerprint, the upper 16 bits remain to the bucket. With N
//     listed keys and M others, all chosen by an attacker, at most N·M·2⁻⁶³
//     false answers are expected, 10⁻⁸ for half a million and 200,000.
//
// Proof. Different lengths have different offsets, which are independent of
// each other and of all else, and make m₁ and m₂ of both inputs uniform.
//
// Inputs of one length differ by dxᵢ and dyᵢ. In the difference of their m₁
// the products aᵢcᵢ cancel: D₁ = Σ (aᵢ·dyᵢ + cᵢ·dxᵢ) + a constant of the
// inputs; D₂ likewise with aᵢ₊₁ and cᵢ₊₁. The offsets make m₁ and m₂ of the
// first input uniform whatever the coefficients are. Given these two values,
// the coefficients are therefore still uniform. Let p be the last pair with a
// difference d, 0 < |d| < 2³², say 2ᵗ times an odd number, t < 32. A uniform
// 64-bit number times d is uniform on the multiples of 2ᵗ, so D₁, by the
// coefficients of p, is uniform on the numbers of one remainder modulo 2ᵗ,
// whatever the coefficients before it are, and so is m₁ of the second input. As
// t ≤ 32, equally many of these have each upper half: that half is uniform. D₂
// contains the coefficients of p+1, which D₁ does not: given all before, the
// upper half of the second input's m₂ is uniform in the same way, whatever both
// m₁ are. All four upper halves are therefore uniform and independent, and stay
// so when those of m₂ are combined with the lower halves of m₁ by an exclusive or,
// and when mix permutes the values of each hash.
//
// # Sources
//
// Universal families are Carter and Wegman's (1979), strongly universal ones
// Wegman and Carter's (1981). The sum with one product for two words is NH's
// (Black et al., "UMAC", CRYPTO 1999), where coefficients have 32 bits and only
// the whole result is bounded; 64-bit ones make the upper half strongly
// universal (Dietzfelbinger 1996; Thorup, "High speed hashing for integers and
// strings", section 3), with such products in Lemire and Kaser, "Strongly
// universal string hashing is fast" (2014), and measured beside carry-less
// ones in their "Faster 64-bit universal hashing using carry-less
// multiplications" (2016). The second sum with the coefficients shifted by one
// pair is the Toeplitz construction (Krawczyk 1994), as in UMAC.
//
// # Limits
//
// The bound is on pairs and on inputs chosen without the secret: from enough
// hashes the coefficients can be computed. Three hashes are not independent, so that
// the load of buckets and filters by chosen keys is bounded only in its
// variance; mix, without which the hashes of keys that count upwards would be an
// arithmetic progression, spreads them as well as XXH64 does.
type Secret struct {
	Pairs   [maxPairs + 1][2]uint64 // a and c
	Offsets [MaxLen/4 + 1][2]uint64 // b₁ and b₂ of the length in words
}

// NewSecret is NewSecrets for one secret.
func NewSecret(seed Seed) *Secret { return NewSecrets(seed, 1)[0] }

// NewSecrets expands a seed to n secrets by ChaCha8 (rand.ChaCha8). They are
// uniform and independent as far as ChaCha8 is indistinguishable from random
// numbers.
func NewSecrets(seed Seed, n int) []*Secret {
	secrets := make([]*Secret, n)
	r := rand.NewChaCha8(seed)
	for i := range secrets {
		s := new(Secret)
		for i := range s.Pairs {
			s.Pairs[i] = [2]uint64{r.Uint64(), r.Uint64()}
		}
		for i := range s.Offsets {
			s.Offsets[i] = [2]uint64{r.Uint64(), r.Uint64()}
		}
		secrets[i] = s
	}
	return secrets
}

// Format keeps the secret out of messages, whatever the verb.
func (s *Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// Seed is a value from which secrets derive, and as secret as they are. The zero Seed
// stands for none.
type Seed [32]byte

// NewSeed returns a random seed.
func NewSeed() (s Seed) {
	_, _ = crand.Read(s[:]) // never fails
	return s
}

// Format keeps the seed out of messages, whatever the verb.
func (s Seed) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

const hidden = "(secret)"

// Sum returns the hash of b. It panics unless the length is a multiple of 4, up
// to MaxLen.
func (s *Secret) Sum(b []byte) uint64 {
	if len(b)%4 != 0 || len(b) > MaxLen {
		panic("hash: length of input")
	}
	m := s.Offsets[len(b)/4]
	m1, m2 := m[0], m[1]
	i := 0
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		x, y := w&0xffffffff, w>>32
		m1 += (s.Pairs[i][0] + x) * (s.Pairs[i][1] + y)
		i++
		m2 += (s.Pairs[i][0] + x) * (s.Pairs[i][1] + y)
	}
	if len(b) > 0 {
		x := uint64(binary.LittleEndian.Uint32(b))
		m1 += (s.Pairs[i][0] + x) * s.Pairs[i][1]
		m2 += (s.Pairs[i+1][0] + x) * s.Pairs[i+1][1]
	}
	return avalanche(m1 ^ m2>>32)
}
