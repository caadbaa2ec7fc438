package history

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"weir/filter/ordered"
)

// Count is a number of packets, and their bytes.
type Count struct{ Packets, Bytes uint64 }

func (c Count) plus(d Count) Count { return Count{c.Packets + d.Packets, c.Bytes + d.Bytes} }

// Reason is the packets that were counted under a reason.
type Reason struct {
	Name  string
	Drops bool // they were dropped
	Count
}

// List is the packets that a block list has matched.
type List struct {
	Name string
	Count
	Alone     uint64 // packets that no other list would have dropped, as far as their addresses are known
	Conversed int    // of its addresses, with how many this host had conversed in a day, at most
}

// Record has the counts of an interval. A Record does not change once it was
// returned.
type Record struct {
	Begin   time.Time
	Covered time.Duration // for which was counted; less than the interval where the daemon did not run
	Reasons []Reason      // by name, those that pass before those that drop
	Lists   []List        // the largest first, at most MaxLists
	Other   Count         // of the lists that are left out
}

// MaxLists bounds the lists of a record. What the others have matched is one sum.
const MaxLists = 32

// Passed returns the packets that passed.
func (r *Record) Passed() Count { return r.sum(false) }

// Dropped returns the packets that were dropped.
func (r *Record) Dropped() Count { return r.sum(true) }

func (r *Record) sum(drops bool) (n Count) {
	for _, c := range r.Reasons {
		if c.Drops == drops {
			n = n.plus(c.Count)
		}
	}
	return n
}

// add adds what another record counted.
func (r *Record) add(o Record) {
	r.Covered += o.Covered
	for _, c := range o.Reasons {
		at, found := slices.BinarySearchFunc(r.Reasons, c, byReason)
		if !found {
			r.Reasons = slices.Insert(slices.Clip(r.Reasons), at, Reason{Name: c.Name, Drops: c.Drops})
		}
		r.Reasons[at].Count = r.Reasons[at].plus(c.Count)
	}
	for _, l := range o.Lists {
		at := slices.IndexFunc(r.Lists, func(of List) bool { return of.Name == l.Name })
		if at < 0 {
			at, r.Lists = len(r.Lists), append(r.Lists, List{Name: l.Name})
		}
		r.Lists[at].Count = r.Lists[at].plus(l.Count)
		r.Lists[at].Alone += l.Alone
		r.Lists[at].Conversed = max(r.Lists[at].Conversed, l.Conversed)
	}
	r.Other = r.Other.plus(o.Other)
}

// trim leaves the largest lists. What a list alone dropped is recorded once in ten minutes, so it
// comes before conversations, which are recorded each second.
func (r *Record) trim(most int) {
	ordered.By(r.Lists, func(a, b List) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(b.Alone, a.Alone), cmp.Compare(b.Conversed, a.Conversed),
			cmp.Compare(a.Name, b.Name))
	})
	for _, l := range r.Lists[min(most, len(r.Lists)):] {
		r.Other = r.Other.plus(l.Count)
	}
	r.Lists = r.Lists[:min(most, len(r.Lists))]
}

// clone returns a copy that shares nothing with r.
func (r *Record) clone() Record {
	c := *r
	c.Reasons, c.Lists = slices.Clone(r.Reasons), slices.Clone(r.Lists)
	return c
}

func byReason(a, b Reason) int {
	if a.Name == b.Name && a.Drops != b.Drops {
		if b.Drops {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.Name, b.Name)
}

// A record in its slot, in little-endian order:
//
//	 0  XXH64 of the rest, with seed 0, 8 bytes
//	 8  magic "WHS" and the version, 1
//	12  length of the whole, 4 bytes
//	16  begin, 8 bytes, in seconds since 1970
//	24  covered, 8 bytes, in nanoseconds
//	32  the number of reasons, of each its name, 1 if it drops, and its count; the
//	    number of lists, of each its name and count; the count of other lists
//
// Numbers from 32 on are varints, names have their length before them. The checksum
// detects what was written in part, and corruption, not forgery.
//
// Behind the record, where earlier versions do not read, follows the worth of its lists, if they have any:
//
//	 0  XXH64 of the rest and of the record's checksum, 8 bytes
//	 8  length of the whole, 2 bytes
//	10  of each list of the record, packets of it alone, and conversed
const (
	magic     = "WHS\x01"
	headerLen = 32
	worthLen  = 10 // before the lists
)

var errDamaged = errors.New("damaged")

// encode returns a record's slot. Of lists for which there is no room, only the sum is
// stored.
func encode(r Record) []byte {
	b := append(make([]byte, 8, slotLen), magic...)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Begin.Unix()))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Covered))
	b = binary.AppendUvarint(b, uint64(len(r.Reasons)))
	for _, c := range r.Reasons {
		drops := byte(0)
		if c.Drops {
			drops = 1
		}
		b = appendCount(append(appendName(b, c.Name), drops), c.Count)
	}
	const (
		largest = 2 * binary.MaxVarintLen64 // of a count
		least   = 1 + largest               // of the number of lists, and other
	)
	r = r.clone()
	r.trim(MaxLists)
	var lists, worth []byte
	valued := false
	for i, l := range r.Lists {
		next := appendCount(appendName(lists, l.Name), l.Count)
		of := binary.AppendUvarint(binary.AppendUvarint(worth, l.Alone), uint64(l.Conversed))
		if len(b)+len(next)+least+worthLen+len(of) > slotLen {
			r.trim(i)
			break
		}
		lists, worth, valued = next, of, valued || l.Alone > 0 || l.Conversed > 0
	}
	b = append(append(b, byte(len(r.Lists))), lists...)
	b = appendCount(b, r.Other)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(b)))
	binary.LittleEndian.PutUint64(b, xxhash.Sum64(b[8:]))
	if !valued {
		return b
	}
	head := binary.LittleEndian.AppendUint16(make([]byte, 8, worthLen), uint16(worthLen+len(worth)))
	worth = append(head, worth...)
	binary.LittleEndian.PutUint64(worth, worthSum(worth, b))
	return append(b, worth...)
}

// worthSum returns the checksum of the worth of lists, with the record before it.
func worthSum(worth, record []byte) uint64 {
	return xxhash.Sum64(append(slices.Clone(worth[8:]), record[:8]...))
}

// decodeWorth adds the worth of lists, which is behind their record in a slot.
func (r *Record) decodeWorth(record, slot []byte) {
	rest := slot[len(record):]
	if len(rest) < worthLen {
		return
	}
	n := int(binary.LittleEndian.Uint16(rest[8:]))
	if n < worthLen || n > len(rest) || worthSum(rest[:n], record) != binary.LittleEndian.Uint64(rest) {
		return
	}
	d := decoder{rest: rest[worthLen:n]}
	for i := range r.Lists {
		r.Lists[i].Alone, r.Lists[i].Conversed = d.number(), int(min(d.number(), math.MaxInt32))
	}
}

func appendName(b []byte, name string) []byte {
	name = name[:min(len(name), 255)]
	return append(append(b, byte(len(name))), name...)
}

func appendCount(b []byte, c Count) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, c.Packets), c.Bytes)
}

// beginOf returns the begin of the record in a slot, if its header and checksum are
// right, and its bytes.
func beginOf(slot []byte) (begin time.Time, record []byte, ok bool) {
	if len(slot) < headerLen || string(slot[8:12]) != magic {
		return begin, nil, false
	}
	n := binary.LittleEndian.Uint32(slot[12:])
	if n < headerLen || n > uint32(len(slot)) || xxhash.Sum64(slot[8:n]) != binary.LittleEndian.Uint64(slot) {
		return begin, nil, false
	}
	return time.Unix(int64(binary.LittleEndian.Uint64(slot[16:])), 0), slot[:n], true
}

// decode is the inverse of encode. It fails on anything that is not whole. names
// shares strings among records.
func decode(slot []byte, names map[string]string) (Record, error) {
	begin, record, ok := beginOf(slot)
	if !ok {
		return Record{}, errDamaged
	}
	r := Record{Begin: begin, Covered: time.Duration(binary.LittleEndian.Uint64(record[24:]))}
	d := decoder{rest: record[headerLen:], names: names}
	for n := d.number(); n > 0 && !d.failed; n-- {
		c := Reason{Name: d.name()}
		c.Drops = d.byte() == 1
		c.Count = d.count()
		r.Reasons = append(r.Reasons, c)
	}
	for n := d.number(); n > 0 && !d.failed; n-- {
		l := List{Name: d.name()}
		l.Count = d.count()
		r.Lists = append(r.Lists, l)
	}
	r.Other = d.count()
	if d.failed || len(d.rest) > 0 || !slices.IsSortedFunc(r.Reasons, byReason) || r.Covered < 0 {
		return Record{}, errDamaged
	}
	r.decodeWorth(record, slot)
	return r, nil
}

// decoder reads the parts of a record. After a failure it reads zeros.
type decoder struct {
	rest   []byte
	names  map[string]string
	failed bool
}

func (d *decoder) take(n int) []byte {
	if d.failed = d.failed || n > len(d.rest); d.failed {
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.failed = true
		return 0
	}
	d.take(n)
	return v
}

func (d *decoder) name() string {
	b := d.take(int(d.byte()))
	name, known := d.names[string(b)]
	if !known {
		name = string(b)
		d.names[name] = name
	}
	return name
}

func (d *decoder) count() Count {
	packets := d.number()
	return Count{packets, d.number()}
}
