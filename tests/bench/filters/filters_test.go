// These tests compare weir's cascade with other Bloom filters in Go.
//
// make test-long runs them; for a comparison in one table,
//
//	go test -run '^$' -bench . -count 8 . | tee bench.txt
//	benchstat -col /filter bench.txt
//
// On an idle AMD EPYC, at a rate of 0.001, the test of the bar has
//
//	                 bits a key   absent    present
//	weir                  14.66   9.7 ns    14.4 ns
//	bits-and-blooms       14.38  49.8 ns    55.4 ns
package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/bits-and-blooms/bloom/v3"

	weir "weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/timed"
)

// What the filters are made for.
const (
	listed = 1_000_000
	rate   = 1e-3
)

// contender is a filter for the listed keys at the rate. Each hashes its keys
// in the way in which it is meant to be used, and that is part of its time.
type contender struct {
	name   string
	bits   int
	insert func(keys []byte)            // all of the keys, one after the other
	query  func(keys []byte) (hits int) // likewise
}

// contenders are made anew, and empty, the cascade first.
func contenders(r *rand.Rand) []contender { return []contender{cascade(r.Uint64()), bitsAndBlooms()} }

// cascade is weir's, of as few lines as reach the rate with the best number of
// bits in the second line. Its keys are hashed by XXH64 under a secret. Its
// insertion counts, so that keys can be removed; that of the others does not.
func cascade(secret uint64) contender {
	lines := 1 + uint32(sort.Search(math.MaxInt32, func(i int) bool {
		return fpr.BestCascade(listed, uint32(i+1), fpr.MaxFurther).Rate(listed) <= rate
	}))
	l := fpr.BestCascade(listed, lines, fpr.MaxFurther)
	c := weir.New(make([]uint64, l.Lines*weir.LineWords), l.First, l.Rest)
	return contender{
		name: "weir",
		bits: l.Bits(),
		insert: func(keys []byte) {
			for ; len(keys) > 0; keys = keys[key.LenV4:] {
				c.Add(hash.Sum(secret, keys[:key.LenV4]))
			}
		},
		query: func(keys []byte) (hits int) {
			for ; len(keys) > 0; keys = keys[key.LenV4:] {
				if c.Contains(hash.Sum(secret, keys[:key.LenV4])) {
					hits++
				}
			}
			return hits
		},
	}
}

// bitsAndBlooms is a standard Bloom filter. It hashes its keys itself, by
// MurmurHash3 without a seed.
func bitsAndBlooms() contender {
	f := bloom.NewWithEstimates(listed, rate)
	return contender{
		name: "bits-and-blooms",
		bits: int(f.Cap()),
		insert: func(keys []byte) {
			for ; len(keys) > 0; keys = keys[key.LenV4:] {
				f.Add(keys[:key.LenV4])
			}
		},
		query: func(keys []byte) (hits int) {
			for ; len(keys) > 0; keys = keys[key.LenV4:] {
				if f.Test(keys[:key.LenV4]) {
					hits++
				}
			}
			return hits
		},
	}
}

// random gives n keys of IPv4 sources in random order: the even or the odd
// addresses, so that keys of different parity differ.
func random(r *rand.Rand, n int, parity uint32) []byte {
	keys := make([]byte, 0, n*key.LenV4)
	for range n {
		keys = append(keys, 0, 32, 0, 0)
		keys = binary.BigEndian.AppendUint32(keys, r.Uint32()&^1|parity)
	}
	return keys
}

const present, absent = 0, 1

// The rates must be equal for the times to be comparable. In four million
// queries chance moves a rate of 0.001 by 1.6 %.
func TestRatesAreEqual(t *testing.T) {
	long.Only(t, "ten million look-ups")
	r := seed.New(t)
	in, out := random(r, listed, present), random(r, 4*listed, absent)
	for _, c := range contenders(r) {
		c.insert(in)
		measured := float64(c.query(out)) / (4 * listed)
		t.Logf("%-16s %.2f bits a key, rate %.4g", c.name, float64(c.bits)/listed, measured)
		if math.Abs(measured/rate-1) > 0.1 {
			t.Errorf("%s: rate %.4g, want %g", c.name, measured, rate)
		}
		if hits := c.query(in); hits != listed {
			t.Errorf("%s: %d keys of %d are found", c.name, hits, listed)
		}
	}
}

// The bar: a query for a key that is not listed, as most packets ask, takes the
// cascade no longer than any other. A present key costs it a second line, where
// a blocked filter reads one: that ratio is only logged.
//
// The contenders take turns at pieces of the keys. Of each piece the fastest
// time counts, since all else that the machine does can only add to it.
func TestQueryTakesNoLonger(t *testing.T) {
	timed.Alone(t)
	long.Only(t, "a hundred million look-ups")
	const rounds, pieces = 25, 20
	r := seed.New(t)
	in := random(r, listed, present)
	all := contenders(r)
	for _, c := range all {
		c.insert(in)
	}
	for _, keys := range []struct {
		name string
		keys []byte
		bar  bool
	}{{"absent", random(r, listed, absent), true}, {"present", in, false}} {
		ns := make([]float64, len(all)) // a query
		for piece := range slices.Chunk(keys.keys, len(keys.keys)/pieces) {
			fastest := make([]time.Duration, len(all))
			for range rounds {
				for i, c := range all {
					start := time.Now()
					c.query(piece)
					if took := time.Since(start); fastest[i] == 0 || took < fastest[i] {
						fastest[i] = took
					}
				}
			}
			for i := range all {
				ns[i] += float64(fastest[i]) / listed
			}
		}
		for i, c := range all {
			t.Logf("%-8s %-16s %6.2f ns, weir takes %.2f of it", keys.name, c.name, ns[i], ns[0]/ns[i])
			if keys.bar && ns[0] > ns[i] {
				t.Errorf("%s keys: a query takes weir %.2f of the time of %s, want 1 at most", keys.name, ns[0]/ns[i], c.name)
			}
		}
	}
}

func BenchmarkInsert(b *testing.B) {
	r := seed.New(b)
	in := random(r, listed, present)
	for _, c := range contenders(r) {
		b.Run(fmt.Sprintf("keys=%d/filter=%s", listed, c.name), func(b *testing.B) {
			inTurn(b, in, c.insert)
		})
	}
}

func BenchmarkQuery(b *testing.B) {
	r := seed.New(b)
	in, out := random(r, listed, present), random(r, listed, absent)
	for _, c := range contenders(r) {
		c.insert(in)
		for _, keys := range []struct {
			name string
			keys []byte
		}{{"absent", out}, {"present", in}} {
			b.Run(fmt.Sprintf("keys=%d/query=%s/filter=%s", listed, keys.name, c.name), func(b *testing.B) {
				inTurn(b, keys.keys, func(keys []byte) { c.query(keys) })
				b.ReportMetric(float64(c.bits)/listed, "bits/key")
			})
		}
	}
}

// inTurn does b.N operations, over all of the keys again and again.
func inTurn(b *testing.B, keys []byte, do func(keys []byte)) {
	for left := b.N * key.LenV4; left > 0; left -= len(keys) {
		do(keys[:min(left, len(keys))])
	}
}
