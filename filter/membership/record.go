package membership

import (
	"errors"
	"sync/atomic"

	"weir/filter/invertible"
)

// record is what the memory of an approximate set has besides bits and counters, so that
// another process can go on with them after this one was killed at any instruction: the
// change that is being made, and a table of the keys, to be compared with that of the keys
// that the set is to have.
//
//	word 0      kind of change, and the step that is being made; 0: none is
//	word 1      hash of the key
//	words 2, 3  the word that the step changes, as it was before: of even and of odd steps
//	the rest    an invertible.Table of the hashes of all keys
//
// A step changes one word: a counter's, then one of the table. It has been made if that
// word differs from what it was before. Programs in the kernel read none of this.
type record struct {
	head    []uint64
	keys    *invertible.Table
	cascade *Cascade
}

const (
	recordHead = 4
	// maxDifference is the number of keys by which a set may differ from what it is to
	// contain and be adopted: several times what changes in place at once, mostly.
	maxDifference = 20_000
)

var recordWords = recordHead + invertible.Words(maxDifference)

// Kinds of changes, above the step.
const (
	adding   uint64 = 1 << 32
	removing uint64 = 2 << 32
	stepMask        = adding - 1
)

func newRecord(words []uint64, c *Cascade) *record {
	if len(words) == 0 {
		return nil
	}
	keys, err := invertible.New(words[recordHead:])
	if err != nil {
		panic(err) // cannot happen: the size is a constant
	}
	return &record{words[:recordHead], keys, c}
}

// change adds or removes the key with hash h.
func (r *record) change(kind, h uint64) {
	atomic.StoreUint64(&r.head[1], h)
	r.run(kind, h, 0)
}

// run makes the steps of a change from one of them on.
func (r *record) run(kind, h uint64, from int) {
	bits := r.cascade.first + r.cascade.rest
	for i := from; i < bits+invertible.UpdateWords; i++ {
		word, next, p := r.step(kind, h, i)
		atomic.StoreUint64(&r.head[2+i&1], *word)
		atomic.StoreUint64(&r.head[0], kind|uint64(i))
		if kind == adding && i < bits {
			r.cascade.set(p/64, p%64)
		}
		atomic.StoreUint64(word, next)
		if i < bits && r.cascade.counters.Get(p) == 0 {
			r.cascade.clear(p/64, p%64)
		}
	}
	atomic.StoreUint64(&r.head[0], 0)
}

// step returns the word that a step changes and what it becomes; of a counter's, the
// position of its bit as well.
func (r *record) step(kind, h uint64, i int) (word *uint64, next, p uint64) {
	if bits := r.cascade.first + r.cascade.rest; i >= bits {
		word, delta := r.keys.Update(h, i-bits)
		if kind == removing {
			delta = -delta
		}
		return word, *word + delta, 0
	}
	p = r.cascade.position(h, i)
	word, up, down := r.cascade.counters.Around(p)
	if kind == removing {
		return word, down, p
	}
	return word, up, p
}

// finish makes what is left of the change that was interrupted. It fails where the
// memory is not that of a set that was interrupted.
func (r *record) finish() error {
	kind, i, h := r.head[0]&^stepMask, int(r.head[0]&stepMask), r.head[1]
	bits := r.cascade.first + r.cascade.rest
	switch {
	case kind == 0 && i == 0:
		return nil
	case kind != adding && kind != removing, i >= bits+invertible.UpdateWords:
		return errors.New("membership: the record of a change is damaged")
	}
	word, _, p := r.step(kind, h, i)
	if *word != r.head[2+i&1] {
		if i < bits && r.cascade.counters.Get(p) == 0 {
			r.cascade.clear(p/64, p%64)
		}
		i++
	}
	r.run(kind, h, i)
	return nil
}
