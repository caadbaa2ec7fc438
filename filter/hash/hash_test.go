package hash_test

import (
	"encoding/binary"
	"math"
	"math/bits"
	"testing"

	"github.com/cespare/xxhash/v2"

	"weir/filter/hash"
	"weir/tests/seed"
)

const (
	prime1 = 0x9E3779B185EBCA87
	prime2 = 0xC2B2AE3D27D4EB4F
	prime3 = 0x165667B19E3779F9
	prime4 = 0x85EBCA77C2B2AE63
	prime5 = 0x27D4EB2F165667C5
)

// specified returns XXH64 by its specification, step by step.
func specified(seed uint64, b []byte) uint64 {
	round := func(acc, lane uint64) uint64 { return bits.RotateLeft64(acc+lane*prime2, 31) * prime1 }
	acc, length := seed+prime5, uint64(len(b))
	if len(b) >= 32 {
		v := [4]uint64{seed, seed, seed, seed}
		v[0] += prime1 // in steps: the constants' sum is no 64-bit constant
		v[0] += prime2
		v[1] += prime2
		v[3] -= prime1
		for ; len(b) >= 32; b = b[32:] {
			for i := range v {
				v[i] = round(v[i], binary.LittleEndian.Uint64(b[8*i:]))
			}
		}
		acc = bits.RotateLeft64(v[0], 1) + bits.RotateLeft64(v[1], 7) + bits.RotateLeft64(v[2], 12) + bits.RotateLeft64(v[3], 18)
		for _, x := range v {
			acc = (acc^round(0, x))*prime1 + prime4
		}
	}
	acc += length
	for ; len(b) >= 8; b = b[8:] {
		acc = bits.RotateLeft64(acc^round(0, binary.LittleEndian.Uint64(b)), 27)*prime1 + prime4
	}
	if len(b) >= 4 {
		acc = bits.RotateLeft64(acc^uint64(binary.LittleEndian.Uint32(b))*prime1, 23)*prime2 + prime3
		b = b[4:]
	}
	for _, x := range b {
		acc = bits.RotateLeft64(acc^uint64(x)*prime5, 11) * prime1
	}
	acc = (acc ^ acc>>33) * prime2
	acc = (acc ^ acc>>29) * prime3
	return acc ^ acc>>32
}

// The vectors of xxHash's own self-test: the length of a prefix of a
// pseudo-random buffer, and a seed.
func TestSumVectors(t *testing.T) {
	const prime32 = 2654435761
	buffer := make([]byte, 222)
	for i, gen := 0, uint64(prime32); i < len(buffer); i++ {
		buffer[i] = byte(gen >> 56)
		gen *= 11400714785074694797
	}
	for _, v := range []struct {
		length     int
		seed, want uint64
	}{
		{0, 0, 0xEF46DB3751D8E999}, {0, prime32, 0xAC75FDA2929B17EF},
		{1, 0, 0xE934A84ADB052768}, {1, prime32, 0x5014607643A9B4C3},
		{4, 0, 0x9136A0DCA57457EE},
		{14, 0, 0x8282DCC4994E35C8}, {14, prime32, 0xC3BD6BF63DEB6DF0},
		{222, 0, 0xB641AE8CB691C174}, {222, prime32, 0x20CB8AB7AE10C14A},
	} {
		if got := hash.Sum(v.seed, buffer[:v.length]); got != v.want {
			t.Errorf("%d bytes with seed %#x: %#x, want %#x", v.length, v.seed, got, v.want)
		}
	}
}

func TestSumAsSpecified(t *testing.T) {
	r := seed.New(t)
	for range 100_000 {
		b, under := make([]byte, r.IntN(70)), r.Uint64()
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		got := hash.Sum(under, b)
		if want := specified(under, b); got != want {
			t.Fatalf("% x with seed %#x: %#x, want %#x", b, under, got, want)
		}
		d := xxhash.NewWithSeed(under)
		d.Write(b)
		if want := d.Sum64(); got != want {
			t.Fatalf("% x with seed %#x: %#x, xxhash has %#x", b, under, got, want)
		}
	}
}

// The published outputs of SplitMix64 from the state 1234567.
func TestNth(t *testing.T) {
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := hash.Nth(1234567, uint64(i+1)); got != want {
			t.Errorf("output %d: %d, want %d", i+1, got, want)
		}
	}
}

func TestReduce(t *testing.T) {
	for _, n := range []uint32{1, 3, 1000, math.MaxUint32} {
		if got := hash.Reduce(math.MaxUint64, n); got != n-1 {
			t.Errorf("the highest hash is mapped to %d of %d", got, n)
		}
		if got := hash.Reduce(math.MaxUint32, n); got != 0 {
			t.Errorf("lower bits matter: %d of %d", got, n)
		}
	}
	var count [5]int
	for i := range uint64(5 << 10) {
		count[hash.Reduce(i*(math.MaxUint64/(5<<10)), 5)]++
	}
	for i, n := range count {
		if n < 1<<10-1 || n > 1<<10+1 {
			t.Errorf("%d of %d evenly spread hashes are mapped to %d of 5", n, 5<<10, i)
		}
	}
}
