// Package bloomier implements the Bloomier filter of Chazelle, Kilian, Rubinfeld and Tal
// (The Bloomier filter: an efficient data structure for static support lookup tables,
// 2004; Broder and Mitzenmacher's survey, section 9): a fixed map in a few bits an
// element, which returns the right value for each of its keys, and for another key either
// that it is absent or, with a known probability, any value.
//
// Without values it is the perfect-hash scheme of the survey's section 2.2: the j bits
// φ(x) are stored for each x of a fixed set, so that the false-positive rate is 2^−j. That
// takes n·j bits with a perfect hash function, and 1.23 times as many here, where the
// table takes the place of that function.
package bloomier

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"

	"weir/filter/hash"
	"weir/filter/internal/sealed"
)

// ErrDuplicate means that a key has several values.
var ErrDuplicate = errors.New("bloomier: a key occurs twice")

// Each key has a cell in each of three parts. Below 0.818 keys a cell, in the limit, there
// is an order in which each key has a cell of its own that no later one uses.
const (
	parts = 3
	load  = 1 / 1.24
	spare = 32
)

// Filter is a map from 64-bit hashes to values of some bits. It cannot be changed.
type Filter struct {
	cells  []uint64
	part   uint32
	seed   uint64
	values int    // bits of a value
	mask   uint64 // of value and check
}

// Entry is a key, by its 64-bit hash, and its value.
type Entry struct{ Hash, Value uint64 }

// New returns the filter of entries with values of the given number of bits, 0 … 48, and
// check bits, which distinguish absent keys from present ones; both together have 1 … 63 bits. It fails with
// ErrDuplicate if a key occurs twice.
func New(entries []Entry, values, check int) (*Filter, error) {
	if values < 0 || check < 0 || values > 48 || values+check < 1 || values+check > 63 {
		return nil, fmt.Errorf("bloomier: values of %d bits and %d to check", values, check)
	}
	seen := make(map[uint64]bool, len(entries))
	for _, e := range entries {
		if seen[e.Hash] {
			return nil, ErrDuplicate
		}
		seen[e.Hash] = true
		if e.Value>>values != 0 {
			return nil, fmt.Errorf("bloomier: value %d has more than %d bits", e.Value, values)
		}
	}
	part := uint32(float64(len(entries))/load)/parts + spare
	f := &Filter{part: part, values: values, mask: 1<<(values+check) - 1}
	for {
		f.seed = rand.Uint64()
		f.cells = make([]uint64, parts*part)
		if f.fill(entries) {
			return f, nil
		}
	}
}

// fill fills the cells, and reports false if the keys have no order.
func (f *Filter) fill(entries []Entry) bool {
	keys := make([]uint64, len(f.cells)) // of each cell, the exclusive or of its keys' indices
	count := make([]int, len(f.cells))
	for i, e := range entries {
		for _, c := range f.place(e.Hash) {
			keys[c] ^= uint64(i)
			count[c]++
		}
	}
	type own struct{ key, cell uint64 }
	var order []own
	var single []uint64
	for c, n := range count {
		if n == 1 {
			single = append(single, uint64(c))
		}
	}
	for len(single) > 0 {
		c := single[len(single)-1]
		single = single[:len(single)-1]
		if count[c] != 1 {
			continue
		}
		k := keys[c]
		order = append(order, own{k, c})
		for _, other := range f.place(entries[k].Hash) {
			keys[other] ^= k
			if count[other]--; count[other] == 1 {
				single = append(single, other)
			}
		}
	}
	if len(order) < len(entries) {
		return false
	}
	// The last key is stored first: nothing that comes later changes its other cells.
	for _, o := range slices.Backward(order) {
		e := entries[o.key]
		f.cells[o.cell] = f.encoded(e) ^ f.sum(e.Hash) ^ f.cells[o.cell]
	}
	return true
}

// encoded is a value, and the bits that distinguish its key from absent ones.
func (f *Filter) encoded(e Entry) uint64 {
	return (hash.Nth(e.Hash^f.seed, parts+1)<<f.values | e.Value) & f.mask
}

func (f *Filter) place(h uint64) (cells [parts]uint64) {
	for p := range uint64(parts) {
		cells[p] = uint64(hash.Reduce(hash.Nth(h^f.seed, p+1), f.part)) + p*uint64(f.part)
	}
	return cells
}

func (f *Filter) sum(h uint64) (sum uint64) {
	for _, c := range f.place(h) {
		sum ^= f.cells[c]
	}
	return sum
}

// Lookup returns the value of the key with hash h. It is false for a key that is absent,
// but with the probability FalsePositiveRate.
func (f *Filter) Lookup(h uint64) (value uint64, ok bool) {
	got := f.sum(h)
	value = got & (1<<f.values - 1)
	return value, got == f.encoded(Entry{h, value})
}

// FalsePositiveRate returns the probability that an absent key has a value: 2^−check.
func (f *Filter) FalsePositiveRate() float64 {
	return 1 / float64(f.mask>>f.values+1)
}

// Bits returns the size of the cells, each of which takes as many bits as value and check.
func (f *Filter) Bits() int {
	return bits.Len64(f.mask) * len(f.cells)
}

// The encoding, in little-endian order: magic "WBMR", version 1, the bits of a value, those of a
// value and its check, a zero byte; the cells of a part in 4 bytes, 4 zero bytes, the seed, the
// cells in words of 8 bytes, and the XXH64 of everything before it, with seed 0. The checksum
// detects corruption, not forgery.
const header = "WBMR\x01"

// AppendBinary appends the filter's encoding to b. The error is always nil. It implements
// encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(append(b, header...), byte(f.values), byte(bits.Len64(f.mask)), 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.part))
	b = binary.LittleEndian.AppendUint64(b, f.seed)
	return sealed.Seal(sealed.AppendWords(b, f.cells), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary produces; otherwise it
// fails and leaves f unchanged. It implements encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("bloomier", header, b)
	d := Filter{values: int(r.Uint8())}
	both := int(r.Uint8())
	r.Zero(1)
	if d.part = r.Uint32(); r.Err() == nil && (d.values > 48 || both < max(1, d.values) || both > 63 || d.part < 1) {
		r.Fail("values of %d bits, %d with their check, and parts of %d cells", d.values, both, d.part)
	}
	r.Zero(4)
	d.mask, d.seed = 1<<both-1, r.Uint64()
	d.cells = r.Words(parts * uint64(d.part))
	for i, c := range d.cells {
		if c&^d.mask != 0 {
			r.Fail("cell %d has more than %d bits", i, both)
			break
		}
	}
	if err := r.End(); err != nil {
		return err
	}
	*f = d
	return nil
}
