package contract

import (
	"encoding/binary"
	"fmt"
	"testing"

	"weir/filter/hash"
	"weir/tests/bench/probe"
	"weir/tests/lab"
)

// TestSecretHashes compares the C of the hash with Go's, bit by bit: all
// lengths, several secrets.
func TestSecretHashes(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	for range 4 {
		s := hash.NewSecret(randomSeed(r))
		h, err := probe.LoadHashes(s)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		for i := range 1000 {
			var words [8]uint64
			var b []byte
			for j := range words {
				words[j] = r.Uint64()
				if i < 3 { // all zero, all one, the lowest bits
					words[j] = []uint64{0, 1<<64 - 1, 1<<32 + 1}[i]
				}
				b = binary.LittleEndian.AppendUint64(b, words[j])
			}
			got, err := h.Sums(words)
			if err != nil {
				t.Fatal(err)
			}
			for n, sum := range got {
				if want := s.Sum(b[:4*n]); sum != want {
					t.Fatalf("% x: %#x in C, %#x in Go", b[:4*n], sum, want)
				}
			}
		}
	}
}

func randomSeed(r random) (seed [32]byte) {
	for i := range seed {
		seed[i] = byte(r.Uint32())
	}
	return seed
}

// BenchmarkHashes measures the hashes in the kernel.
func BenchmarkHashes(b *testing.B) {
	keys, err := probe.NewKeys()
	if err != nil {
		b.Skip(err)
	}
	defer keys.Close()
	h, err := probe.LoadHashLoops(hash.NewSecret([32]byte{1}), keys)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	for _, length := range probe.HashLengths {
		for _, name := range []string{"xxh", "universal"} {
			b.Run(fmt.Sprintf("%s/%d", name, length), func(b *testing.B) {
				ns, err := h.Loop(fmt.Sprint(name, length), b.N)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(ns, "ns/op")
			})
		}
	}
}
