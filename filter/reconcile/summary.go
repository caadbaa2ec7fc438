package reconcile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"weir/filter/bloom"
	"weir/filter/compress"
	"weir/filter/counting"
	"weir/filter/hash"
)

var (
	// ErrGap means that an update builds on a version that the replica does not
	// have. The replica should request a snapshot.
	ErrGap = errors.New("reconcile: update is for another version")
	// ErrOld means that the replica already has the update's version or a newer
	// one. The update can be ignored.
	ErrOld = errors.New("reconcile: update is not newer than the present version")
)

// Publisher is the owner's side of a summary cache of Fan, Cao, Almeida and
// Broder (section 4): a changing set, kept in a counting filter, whose bits
// others replicate. It sends them the changes since the last update,
// entropy-coded. It is not safe for concurrent use.
type Publisher struct {
	set            *counting.Filter
	epoch, version uint64
	sent           *bloom.Filter // as of version
}

// NewPublisher returns a publisher of an empty set. The seed selects the hash
// functions. The epoch distinguishes restarts of the publisher and must grow
// with each; its start time will do.
func NewPublisher(g bloom.Geometry, seed, epoch uint64) *Publisher {
	return &Publisher{set: counting.New(g, seed), epoch: epoch, sent: bloom.New(g, seed)}
}

// Add adds an element to the set. One added twice must be removed twice.
func (p *Publisher) Add(b []byte) { p.set.Add(b) }

// Remove removes an element from the set. It reports false, and changes nothing, if it is not
// there.
func (p *Publisher) Remove(b []byte) bool { return p.set.Remove(b) }

// Contains reports whether an element may be in the set, published or not.
func (p *Publisher) Contains(b []byte) bool { return p.set.Contains(b) }

// Publish makes the present set the next version and returns the message that
// updates a replica from the previous one: a delta or, if that is smaller and
// the first time, the whole filter. An update without changes keeps the
// replicas from going stale.
func (p *Publisher) Publish() []byte {
	before := p.sent
	p.sent = p.set.Bits()
	p.version++
	changes := xor(before.Words(), p.sent.Words())
	if p.version == 1 || p.rarer(changes) > p.rarer(p.sent.Words()) {
		return p.Snapshot()
	}
	return p.message(kindDelta, changes)
}

// rarer returns the number of ones or zeros among M bits, whichever is smaller:
// it determines the length of their code.
func (p *Publisher) rarer(words []uint64) int {
	ones := 0
	for _, w := range words {
		ones += bits.OnesCount64(w)
	}
	return min(ones, int(p.set.M())-ones)
}

// Snapshot returns a message that brings any replica to the last published
// version, for replicas that are new or have missed an update.
func (p *Publisher) Snapshot() []byte { return p.message(kindFull, p.sent.Words()) }

// A message, in little-endian order:
//
//	 0  magic "WSUM"
//	 4  version of the format, 1
//	 5  kind: 0 for a filter, 1 for the changes since the previous version
//	 6  zero, 2 bytes
//	 8  epoch, 8 bytes
//	16  version of the set, 8 bytes
//	24  geometry, as encoded by weir/filter/bloom
//	32  seed, 8 bytes
//	40  XXH64 of the encoding of the resulting filter, with seed 0, 8 bytes
//	48  its bits, or a mask of the changed ones, as encoded by weir/filter/compress
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksums detect corruption, not forgery.
const (
	prefix      = "WSUM\x01"
	kindFull    = 0
	kindDelta   = 1
	headerLen   = 48
	checksumLen = 8
)

func (p *Publisher) message(kind byte, words []uint64) []byte {
	b := append([]byte(prefix), kind, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, p.epoch)
	b = binary.LittleEndian.AppendUint64(b, p.version)
	b, _ = p.set.Geometry.AppendBinary(b) // never fails
	b = binary.LittleEndian.AppendUint64(b, p.set.Seed())
	b = binary.LittleEndian.AppendUint64(b, sum(p.sent))
	b = compress.AppendBits(b, words, p.set.M())
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
}

func sum(f *bloom.Filter) uint64 {
	b, _ := f.MarshalBinary() // never fails
	return hash.Sum(0, b)
}

func xor(a, b []uint64) []uint64 {
	c := make([]uint64, len(a))
	for i := range c {
		c[i] = a[i] ^ b[i]
	}
	return c
}

// Answer is the result of a lookup in a replica.
type Answer uint8

const (
	Unknown Answer = iota // the replica is empty or stale
	Absent                // the set did not contain the element as of the last update
	Present               // the set contained it then, unless it is a false positive
)

// String returns "unknown", "absent" or "present".
func (a Answer) String() string { return [...]string{"unknown", "absent", "present"}[a] }

// Replica is the other side of a summary cache: a copy of a Publisher's filter.
// The set may change between updates, so even Absent can be wrong; the maximum
// age bounds for how long. Concurrent lookups are safe; an update must not run
// concurrently with anything else.
type Replica struct {
	maxM           uint32
	maxAge         time.Duration
	filter         *bloom.Filter // nil before the first update
	epoch, version uint64
	updated        time.Time
}

// NewReplica returns an empty replica that accepts filters of at most maxM bits
// and is stale if its last update is older than maxAge.
func NewReplica(maxM uint32, maxAge time.Duration) *Replica {
	return &Replica{maxM: maxM, maxAge: maxAge}
}

// Version returns the publisher's epoch and the version of its set: 0, 0 before
// the first update.
func (r *Replica) Version() (epoch, version uint64) { return r.epoch, r.version }

// Stale reports whether the last update is too old at the time now, or there
// was none.
func (r *Replica) Stale(now time.Time) bool {
	return r.filter == nil || now.Sub(r.updated) > r.maxAge
}

// Lookup looks up the element b at the time now.
func (r *Replica) Lookup(b []byte, now time.Time) Answer {
	switch {
	case r.Stale(now):
		return Unknown
	case r.filter.Contains(b):
		return Present
	}
	return Absent
}

// Apply updates the replica with a message received at the time now. It returns
// ErrOld for a message that was overtaken or duplicated, ErrGap if earlier
// messages were missed, and another error for a corrupted one. On any error the
// replica is unchanged.
func (r *Replica) Apply(msg []byte, now time.Time) error {
	if len(msg) < headerLen+checksumLen {
		return fmt.Errorf("reconcile: update of %d bytes, need at least %d", len(msg), headerLen+checksumLen)
	}
	if string(msg[:5]) != prefix || msg[5] > kindDelta || msg[6] != 0 || msg[7] != 0 {
		return fmt.Errorf("reconcile: update begins with % x, want % x and a kind", msg[:8], prefix)
	}
	body := msg[:len(msg)-checksumLen]
	if hash.Sum(0, body) != binary.LittleEndian.Uint64(msg[len(body):]) {
		return errors.New("reconcile: checksum of update does not match")
	}
	delta := msg[5] == kindDelta
	epoch, version := binary.LittleEndian.Uint64(msg[8:]), binary.LittleEndian.Uint64(msg[16:])
	if r.filter != nil && (epoch < r.epoch || epoch == r.epoch && version <= r.version) {
		return ErrOld
	}
	if delta && (r.filter == nil || epoch != r.epoch || version != r.version+1) {
		return ErrGap
	}

	var g bloom.Geometry
	if err := g.UnmarshalBinary(msg[24:32]); err != nil {
		return fmt.Errorf("reconcile: update: %w", err)
	}
	seed := binary.LittleEndian.Uint64(msg[32:])
	if g.M() > r.maxM {
		return fmt.Errorf("reconcile: update of a filter of %d bits exceeds the limit of %d", g.M(), r.maxM)
	}
	if delta && (g != r.filter.Geometry || seed != r.filter.Seed()) {
		return fmt.Errorf("reconcile: update: %w", bloom.ErrIncompatible)
	}
	words, err := compress.DecodeBits(body[headerLen:], g.M())
	if err != nil {
		return fmt.Errorf("reconcile: update: %w", err)
	}
	if delta {
		words = xor(words, r.filter.Words())
	}
	f, err := bloom.FromWords(g, seed, words)
	if err != nil {
		return fmt.Errorf("reconcile: update: %w", err)
	}
	if sum(f) != binary.LittleEndian.Uint64(msg[40:]) {
		return errors.New("reconcile: update does not result in the publisher's filter")
	}
	r.filter, r.epoch, r.version, r.updated = f, epoch, version, now
	return nil
}
