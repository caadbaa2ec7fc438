package member

import "math"

// Geometry of the cuckoo filter: four slots a bucket, and how full it is planned.
const (
	cuckooSlots = 4
	cuckooLoad  = 0.95
)

// cuckooKind is the cuckoo filter of Fan, Andersen, Kaminsky and Mitzenmacher.
var cuckooKind = Kind{
	Name:    "cuckoo",
	Source:  "Fan et al., Cuckoo Filter, CoNEXT 2014, section 3",
	Changes: "add, delete",
	Bits: func(n int, r float64) float64 {
		return float64(cuckooBuckets(n)*cuckooSlots*cuckooWidth(r)) / float64(n)
	},
	Rate: func(n int, r float64) float64 {
		load := float64(n) / float64(cuckooBuckets(n)*cuckooSlots)
		return 1 - math.Pow(1-1/(math.Exp2(float64(cuckooWidth(r)))-1), 2*cuckooSlots*load)
	},
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		return retry(seed, func(seed uint64) (Filter, bool) {
			f := newCuckoo(cuckooBuckets(len(keys)), cuckooWidth(r), seed)
			for _, k := range keys {
				if !f.add(k) {
					return nil, false
				}
			}
			return f, true
		})
	},
}

func cuckooBuckets(n int) int { return int(math.Ceil(float64(n) / cuckooSlots / cuckooLoad)) }

// cuckooWidth returns the bits of a fingerprint: of as many as two full buckets have, one
// equals that of an absent key with the wanted probability (section 5.1).
func cuckooWidth(r float64) int { return int(math.Ceil(r + math.Log2(2*cuckooSlots*cuckooLoad))) }

// cuckoo has each fingerprint in one of two buckets, whose numbers add up to a hash of the
// fingerprint, modulo their number: the other bucket is known without the key. (With an
// exclusive or, as printed, the number of buckets must be a power of two.)
type cuckoo struct {
	memory
	buckets, width int
	seed           uint64
	moves          uint64 // made so far; they choose which fingerprint moves
}

func newCuckoo(buckets, width int, seed uint64) *cuckoo {
	return &cuckoo{memory: newMemory(buckets * cuckooSlots * width), buckets: buckets, width: width, seed: seed}
}

// place returns a key's fingerprint, which is not 0, and its first bucket.
func (f *cuckoo) place(key uint64) (fingerprint uint64, bucket int) {
	h := mix(key, f.seed)
	return 1 + h&(1<<32-1)*(1<<f.width-1)>>32, reduce(h, f.buckets)
}

func (f *cuckoo) other(fingerprint uint64, bucket int) int {
	b := reduce(mix(fingerprint, f.seed), f.buckets) - bucket
	if b < 0 {
		b += f.buckets
	}
	return b
}

// slot returns the first bit of a slot.
func (f *cuckoo) slot(bucket, i int) int { return (bucket*cuckooSlots + i) * f.width }

// find returns the slot of a bucket with a fingerprint, 0 being that of an empty one, or −1.
func (f *cuckoo) find(bucket int, fingerprint uint64) int {
	for i := range cuckooSlots {
		if f.get(f.slot(bucket, i), f.width) == fingerprint {
			return i
		}
	}
	return -1
}

func (f *cuckoo) put(bucket int, fingerprint uint64) bool {
	i := f.find(bucket, 0)
	if i >= 0 {
		f.set(f.slot(bucket, i), f.width, fingerprint)
	}
	return i >= 0
}

// add fails if 500 moves make no room.
func (f *cuckoo) add(key uint64) bool {
	fingerprint, bucket := f.place(key)
	if f.put(bucket, fingerprint) {
		return true
	}
	for range 500 {
		bucket = f.other(fingerprint, bucket)
		if f.put(bucket, fingerprint) {
			return true
		}
		f.moves++
		slot := f.slot(bucket, int(mix(f.moves, f.seed)%cuckooSlots))
		moved := f.get(slot, f.width)
		f.set(slot, f.width, fingerprint)
		fingerprint = moved
	}
	return false
}

func (f *cuckoo) Contains(key uint64) bool {
	fingerprint, bucket := f.place(key)
	return f.find(bucket, fingerprint) >= 0 || f.find(f.other(fingerprint, bucket), fingerprint) >= 0
}

func (f *cuckoo) Delete(key uint64) {
	fingerprint, bucket := f.place(key)
	i := f.find(bucket, fingerprint)
	if i < 0 {
		bucket = f.other(fingerprint, bucket)
		if i = f.find(bucket, fingerprint); i < 0 {
			return
		}
	}
	f.set(f.slot(bucket, i), f.width, 0)
}

func (f *cuckoo) Bits() int            { return f.buckets * cuckooSlots * f.width }
func (f *cuckoo) Reads(key uint64) int { return f.watch(func() { f.Contains(key) }) }
