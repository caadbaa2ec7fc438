package stable

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"weir/filter/hash"
)

// A filter that was encoded and decoded answers as before, and goes on as before.
func TestEncode(t *testing.T) {
	for _, a := range Algorithms {
		p := Within(a, 1001, 3, 4, 10)
		f := mustNew(t, p, rand.NewPCG(1, 1))
		for i := range uint64(3000) {
			f.Add(hash.Nth(0, i), 1+int(i)%f.M())
		}
		b, err := f.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		// Both draw the same numbers from here on.
		g := mustNew(t, p, rand.NewPCG(2, 2))
		if err := g.UnmarshalBinary(b); err != nil {
			t.Fatalf("%v: %v", a, err)
		}
		f.rng = rand.New(rand.NewPCG(2, 2))
		for i := range uint64(6000) {
			if f.Observe(hash.Nth(0, i), 1+int(i)%f.M()) != g.Observe(hash.Nth(0, i), 1+int(i)%f.M()) {
				t.Fatalf("%v: the answers about item %d differ", a, i)
			}
		}
		again, _ := g.MarshalBinary()
		if now, _ := f.MarshalBinary(); !bytes.Equal(now, again) {
			t.Errorf("%v: the filters differ", a)
		}
	}
}

// Where the cells begin, and the length of the checksum, as encode.go says.
const (
	headerLen   = 20
	checksumLen = 8
)

func TestDecodeRejects(t *testing.T) {
	f := mustNew(t, Params{Algorithm: IBFMC, Cells: 101, Bits: 3, K: 5, P: 10}, rand.NewPCG(0, 0))
	good, err := f.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	signed := func(change func([]byte) []byte) []byte {
		b := change(bytes.Clone(good[:len(good)-checksumLen]))
		return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
	}
	set := func(at int, to byte) []byte { return signed(func(b []byte) []byte { b[at] = to; return b }) }
	for want, b := range map[string][]byte{
		"need at least":     good[:12],
		"magic and version": append([]byte("WSTB\x02"), good[5:]...),
		"checksum":          append(bytes.Clone(good[:30]), append([]byte{good[30] ^ 1}, good[31:]...)...),
		"unknown algorithm": set(5, 5),
		"cells of 9 bits":   set(6, 9),
		"want 0":            set(7, 1),
		"0 cells per item":  set(12, 0),
		"too many":          signed(func(b []byte) []byte { return append(b, 0) }),
		"behind the last":   set(headerLen+37, 0x80),
	} {
		if err := new(Filter).UnmarshalBinary(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, a := range Algorithms {
		filter := mustNew(f, Within(a, 10, 3, 2, 3), rand.NewPCG(0, 0))
		filter.Add(1, 1)
		b, _ := filter.MarshalBinary()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var filter Filter
		if filter.UnmarshalBinary(b) != nil {
			return
		}
		filter.Observe(1, 1)
		if filter.UnmarshalBinary(b) != nil {
			t.Fatal("the same bytes are refused")
		}
		if again, err := filter.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("% x is encoded as % x, %v", b, again, err)
		}
	})
}
