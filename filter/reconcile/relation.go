package reconcile

import (
	"bytes"
	"iter"

	"weir/filter/bloom"
)

// Row is a row of a relation that is joined by its key.
type Row struct{ Key, Value []byte }

// Semijoin yields the rows that may join with those of which theirs is the filter of keys:
// what the second host of a Bloomjoin answers the first (section 3.2, after Mackert and
// Lohman). It contains all rows that join, and a fraction of the others that is the
// filter's false-positive rate.
func Semijoin(rows iter.Seq[Row], theirs *bloom.Filter) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for r := range rows {
			if theirs.Contains(r.Key) && !yield(r) {
				return
			}
		}
	}
}

// Pair is a row of a join.
type Pair struct{ Key, Left, Right []byte }

// Join yields the pairs of rows with the same key: the last step of a Bloomjoin, in which
// the first host removes the false positives of the candidates.
func Join(rows, candidates iter.Seq[Row]) iter.Seq[Pair] {
	return func(yield func(Pair) bool) {
		byKey := make(map[string][][]byte)
		for r := range rows {
			byKey[string(r.Key)] = append(byKey[string(r.Key)], r.Value)
		}
		for c := range candidates {
			for _, left := range byKey[string(c.Key)] {
				if !yield(Pair{c.Key, left, c.Value}) {
					return
				}
			}
		}
	}
}

// Differential is a differential file (section 3.2, after Severance and Lohman): changes
// to a large file of records since its last merge, with a Bloom filter of the changed
// keys. A read of an unchanged record goes to the main file alone, but for false
// positives. Concurrent reads are safe; a change must not run concurrently with anything
// else.
type Differential struct {
	main    func(key []byte) ([]byte, bool)
	changes map[string][]byte // nil: deleted
	filter  *bloom.Filter
}

// NewDifferential returns a file without changes to the main one, which main reads.
func NewDifferential(g bloom.Geometry, seed uint64, main func(key []byte) (record []byte, ok bool)) *Differential {
	return &Differential{main, make(map[string][]byte), bloom.New(g, seed)}
}

// Put changes a record or adds it.
func (d *Differential) Put(key, record []byte) {
	d.filter.Add(key)
	d.changes[string(key)] = append([]byte{}, record...)
}

// Remove removes a record.
func (d *Differential) Remove(key []byte) {
	d.filter.Add(key)
	d.changes[string(key)] = nil
}

// Get returns a record, and whether the changes had to be searched for it.
func (d *Differential) Get(key []byte) (record []byte, ok, searched bool) {
	if d.filter.Contains(key) {
		if record, changed := d.changes[string(key)]; changed {
			return bytes.Clone(record), record != nil, true
		}
		searched = true
	}
	record, ok = d.main(key)
	return record, ok, searched
}

// Merged yields the changes, those that delete with a nil Value, for the main file to
// take, and forgets them.
func (d *Differential) Merged() iter.Seq[Row] {
	changes := d.changes
	d.changes = make(map[string][]byte)
	d.filter.Clear()
	return func(yield func(Row) bool) {
		for k, v := range changes {
			if !yield(Row{[]byte(k), v}) {
				return
			}
		}
	}
}
