// Package cuckoo implements a hash table of fingerprints, each with a number,
// after Fan, Andersen, Kaminsky and Mitzenmacher, "Cuckoo filter: practically better
// than Bloom", 2014. bpf/table.h is the twin.
package cuckoo

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"weir/filter/hash"
	"weir/filter/internal/sealed"
)

// Geometry of the table, the same as in bpf/table.h.
const (
	BucketSlots     = 8 // 64-bit slots in a bucket
	fingerprintBits = 48
	fingerprintMask = 1<<fingerprintBits - 1
	// MaxList is the highest list number that fits into a slot.
	MaxList = 1<<16 - 1
)

// ErrFull is the error of Add. It leaves the table unchanged; the remedy is
// the next generation, larger and with another secret.
var ErrFull = errors.New("cuckoo: table full")

// evictionDepth is the maximum length of a chain of evictions. With eight slots
// a bucket, depth 3 reaches hundreds of buckets, enough for more than 95 %
// fill.
const evictionDepth = 3

// Table stores a fingerprint and a list number for each key and confirms the
// positives of the cascade. It is a cuckoo hash table: each key is in one of
// two buckets of eight slots, usually the first. bpf/table.h is its twin and
// documents the slots.
//
// Its slots may be kernel memory. A key only ever moves from its first bucket
// to its second, and the copy is written before the original is overwritten: a
// reader that looks into the first bucket, then the second, finds a present key
// at every instant. Calls that write must be serialised.
//
// Keys with the same fingerprint in the same pair of buckets cannot be
// distinguished. They share a slot, which stays until the last of them is
// removed, and has the list number that was set last.
type Table struct {
	slots   []uint64
	moved   []uint64    // a bit for each slot: its key must stay, since it is in its second bucket or shares the slot
	sharing map[int]int // by slot, how many keys share it beyond the first
	buckets uint32
	len     int
}

// Fill is the share of a table's slots that may be planned to be in use. Random
// keys find room up to 0.95.
const Fill = 0.88

// New returns an empty table with room for n keys.
func New(n int) *Table {
	return Over(make([]uint64, BucketSlots*(int(float64(n)/(Fill*BucketSlots))+1)))
}

// Over returns a table over slots, which must be zero and a multiple of
// BucketSlots. A table without slots is full.
func Over(slots []uint64) *Table {
	return &Table{
		slots:   slots,
		moved:   make([]uint64, (len(slots)+63)/64),
		sharing: make(map[int]int),
		buckets: uint32(len(slots) / BucketSlots),
	}
}

// Len returns the number of keys.
func (t *Table) Len() int { return t.len }

// Cap returns the number of slots.
func (t *Table) Cap() int { return len(t.slots) }

// Contains reports whether the key with hash h may be in the table: with the
// probability [weir/filter/fpr.Fingerprint] also if it is not.
func (t *Table) Contains(h uint64) bool {
	_, ok := t.find(h)
	return ok
}

// Lookup returns the list number of the key with hash h.
func (t *Table) Lookup(h uint64) (list uint16, ok bool) {
	if i, ok := t.find(h); ok {
		return uint16(t.slots[i] >> fingerprintBits), true
	}
	return 0, false
}

func (t *Table) find(h uint64) (slot int, ok bool) {
	if t.buckets == 0 {
		return 0, false
	}
	fp := h & fingerprintMask
	first := hash.Reduce(h, t.buckets)
	if i, ok := t.search(first, fp); ok {
		return i, true
	}
	return t.search(t.second(first, fp), fp)
}

func (t *Table) search(bucket uint32, fp uint64) (slot int, ok bool) {
	base := int(bucket) * BucketSlots
	for i, s := range t.slots[base : base+BucketSlots] {
		if s&fingerprintMask == fp && s != 0 {
			return base + i, true
		}
	}
	return 0, false
}

// second returns the other bucket of a key. It is computed from the
// fingerprint, so that a key can be moved without knowing its hash; applied
// twice it returns the same bucket.
func (t *Table) second(bucket uint32, fp uint64) uint32 {
	i := int64(hash.Reduce(hash.Nth(fp, 0), t.buckets)) - int64(bucket)
	if i < 0 {
		i += int64(t.buckets)
	}
	return uint32(i)
}

// Add adds the key with hash h and a list number, 1 … MaxList. It returns
// ErrFull if there is no room.
func (t *Table) Add(h uint64, list uint16) error {
	if t.buckets == 0 {
		return ErrFull
	}
	fp := h & fingerprintMask
	if i, ok := t.find(h); ok {
		// The first bucket of one key may be the second one of the other, whose
		// reader would miss a copy that is made there.
		t.put(i, uint64(list)<<fingerprintBits|fp, true)
		t.sharing[i]++
		t.len++
		return nil
	}
	first := hash.Reduce(h, t.buckets)
	second := t.second(first, fp)
	i, moved := t.free(first), false
	if i < 0 {
		i, moved = t.free(second), true
	}
	for depth := 1; i < 0 && depth <= evictionDepth; depth++ {
		if i, moved = t.evict(first, depth, nil), false; i < 0 {
			i, moved = t.evict(second, depth, nil), true
		}
	}
	if i < 0 {
		return ErrFull
	}
	t.put(i, uint64(list)<<fingerprintBits|fp, moved)
	t.len++
	return nil
}

func (t *Table) free(bucket uint32) int {
	base := int(bucket) * BucketSlots
	for i, s := range t.slots[base : base+BucketSlots] {
		if s == 0 {
			return base + i
		}
	}
	return -1
}

// evict copies a key of a full bucket to its second bucket and returns the slot
// of the original, for overwriting, or -1. busy are the buckets further up the
// chain, in which nothing may move.
func (t *Table) evict(bucket uint32, depth int, busy []uint32) int {
	base := int(bucket) * BucketSlots
	busy = append(busy, bucket)
candidates:
	for i := base; i < base+BucketSlots; i++ {
		if t.isMoved(i) {
			continue // its second bucket is this one
		}
		to := t.second(bucket, t.slots[i]&fingerprintMask)
		for _, b := range busy {
			if b == to {
				continue candidates
			}
		}
		j := t.free(to)
		if j < 0 && depth > 1 {
			j = t.evict(to, depth-1, busy)
		}
		if j >= 0 {
			t.put(j, t.slots[i], true)
			return i
		}
	}
	return -1
}

func (t *Table) isMoved(i int) bool { return t.moved[i/64]>>(i%64)&1 != 0 }

func (t *Table) put(i int, slot uint64, moved bool) {
	atomic.StoreUint64(&t.slots[i], slot)
	t.moved[i/64] &^= 1 << (i % 64)
	if moved {
		t.moved[i/64] |= 1 << (i % 64)
	}
}

// SetList changes the list number of a present key.
func (t *Table) SetList(h uint64, list uint16) bool {
	i, ok := t.find(h)
	if ok {
		atomic.StoreUint64(&t.slots[i], uint64(list)<<fingerprintBits|h&fingerprintMask)
	}
	return ok
}

// Remove removes the key with hash h and reports whether it was present.
func (t *Table) Remove(h uint64) bool {
	i, ok := t.find(h)
	if !ok {
		return false
	}
	t.len--
	switch t.sharing[i] {
	case 0:
		t.put(i, 0, false)
	case 1:
		delete(t.sharing, i)
	default:
		t.sharing[i]--
	}
	return true
}

// The encoding, in little-endian order:
//
//	 0  magic "WCKO"
//	 4  version, 1
//	 5  zero, 3 bytes
//	 8  the number of buckets, 4 bytes
//	12  the number of shared slots, 4 bytes
//	16  the slots, of 8 bytes each
//	    a bit for each slot whose key must stay, in words of 8 bytes
//	    the shared slots in ascending order: the slot and how many keys share it beyond
//	    the first, 4 bytes each
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery.
const header = "WCKO\x01\x00\x00\x00"

// AppendBinary appends the table's encoding to b. The error is always nil. It implements
// encoding.BinaryAppender.
func (t *Table) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, header...)
	b = binary.LittleEndian.AppendUint32(b, t.buckets)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.sharing)))
	b = sealed.AppendWords(sealed.AppendWords(b, t.slots), t.moved)
	for _, i := range slices.Sorted(maps.Keys(t.sharing)) {
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		b = binary.LittleEndian.AppendUint32(b, uint32(t.sharing[i]))
	}
	return sealed.Seal(b, start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements encoding.BinaryMarshaler.
func (t *Table) MarshalBinary() ([]byte, error) { return t.AppendBinary(nil) }

// UnmarshalBinary decodes b into t, which has slots of its own from then on. It accepts exactly
// what AppendBinary produces; otherwise it fails and leaves t unchanged. It implements
// encoding.BinaryUnmarshaler.
func (t *Table) UnmarshalBinary(b []byte) error {
	r := sealed.Open("cuckoo", header, b)
	buckets, shared := r.Uint32(), r.Uint32()
	n := uint64(buckets) * BucketSlots
	d := &Table{slots: r.Words(n), moved: r.Words((n + 63) / 64), sharing: make(map[int]int), buckets: buckets}
	if r.Err() == nil {
		d.check(r)
	}
	last := -1
	for range shared {
		i, others := int(r.Uint32()), int(r.Uint32())
		if r.Err() == nil && (i <= last || i >= len(d.slots) || d.slots[i] == 0 || !d.isMoved(i) || others == 0) {
			r.Fail("slot %d is shared by %d", i, others)
		}
		if r.Err() != nil {
			break
		}
		d.sharing[i], last = others, i
		d.len += others
	}
	if err := r.End(); err != nil {
		return err
	}
	*t = *d
	return nil
}

// check counts the keys, and fails where a slot is not as Add leaves it.
func (t *Table) check(r *sealed.Reader) {
	for i, s := range t.slots {
		switch {
		case s != 0 && s>>fingerprintBits == 0:
			r.Fail("slot %d has no list", i)
		case s == 0 && t.isMoved(i):
			r.Fail("slot %d is empty and moved", i)
		case s != 0:
			t.len++
		}
	}
	if used := len(t.slots) % 64; used != 0 && t.moved[len(t.moved)-1]>>used != 0 {
		r.Fail("bits behind the last slot")
	}
}
