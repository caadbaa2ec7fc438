package membership

import (
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weir/filter/bloom"
	"weir/filter/key"
)

// DirectoryLayout is the geometry of a directory, which says in one read which
// lengths of IPv4 prefixes may match an address. Without it, a lookup in the prefix
// table takes a read for each length, whether or not anything near the address is
// listed.
//
// A directory of B bits has 2^B words for sources if any are listed, then 2^B for
// destinations, of 64 bits each in the CPU's byte order. A word belongs to a network
// of length B:
//
//	word = address >> 32-B
//	part = (address mod 2^(32-B)) * P >> 32-B      P = 64 - number of lengths
//
// Bit `part` of a word is set if a prefix touches that part of its network, and bit
// P+i if one of the i-th length of both sides, in the order of lookups, touches the
// network. An address may match lengths whose bit is set, of either side, if the bit
// of its part is.
//
// The bits of a prefix are set before it is added. Those of a removed one stay until
// [Set.Tidy]: they only cost reads.
type DirectoryLayout struct {
	Bits     int // B; 0: there is no directory
	Lengths  int
	Src, Dst bool
}

// Parts returns the number of parts of a network.
func (l DirectoryLayout) Parts() int { return 64 - l.Lengths }

// SrcWords and DstWords return the numbers of words of sources and destinations.
func (l DirectoryLayout) SrcWords() int { return l.words(l.Src) }
func (l DirectoryLayout) DstWords() int { return l.words(l.Dst) }

// Words returns the number of words.
func (l DirectoryLayout) Words() int { return l.SrcWords() + l.DstWords() }

func (l DirectoryLayout) words(side bool) int {
	if l.Bits == 0 || !side {
		return 0
	}
	return 1 << l.Bits
}

const (
	// The directories that are planned: of at least a page, the least that the kernel
	// allocates, and small enough for a near cache.
	minDirectoryBits, maxDirectoryBits = 9, 16
	// fewLengths is how many lengths are looked up without a directory: it would cost
	// as much.
	fewLengths = 2

	// The costs of a packet, in lookups of one length without a directory: of reading
	// the directory, of going on to the lengths that it leaves open, and of a lookup
	// there, as its branch is mispredicted.
	directoryRead = 1.0
	distantRead   = 4.0 // where the near cache has no room for it
	openLengths   = 1.0
	openLookup    = 1.5
	// The price of memory, for each byte an entry. The directory of a small set costs
	// little, however many bytes an entry that is.
	bytePerPrefix = 0.35
	fewPrefixes   = 1 << 17

	// planSample is about how many prefixes are asked what listed packets cost.
	planSample = 1 << 13
)

// WithDirectory returns the layout with a directory of words of networks of some
// length, or without one: 0.
func (l Layout) WithDirectory(bits int) Layout {
	l.Directory = DirectoryLayout{}
	if bits > 0 && l.Prefixes.Lines > 0 {
		l.Directory.Bits, l.Directory.Lengths = bits, len(l.V4)
		for _, s := range l.V4 {
			l.Directory.Src = l.Directory.Src || s.DstBits == 0
			l.Directory.Dst = l.Directory.Dst || s.DstBits > 0
		}
	}
	return l
}

// planDirectory plans the directory that makes packets quickest, clean and listed ones
// alike, if any does. It then replaces the front, which is read for each length.
func (l *Layout) planDirectory(c Census) {
	if l.Prefixes.Lines == 0 || len(l.V4) <= fewLengths || len(c.Prefixes) == 0 || c.NearCache == 0 {
		return
	}
	n := 0
	for _, s := range l.V4 {
		n += c.Keys[s.Shape]
	}
	// More than touch all parts, unless many are near to each other.
	if n > 64<<maxDirectoryBits {
		return
	}
	spread := newSpread(l.lengthBits(), c.Prefixes, 1+n/planSample)
	best, cost := 0, float64(len(l.V4))+spread.lookupsOfAll()
	for bits := maxDirectoryBits; bits >= minDirectoryBits; bits-- {
		bytes := 8 * l.WithDirectory(bits).Directory.Words()
		read := directoryRead
		if 2*bytes > c.NearCache {
			read = distantRead
		}
		got := 2*read + openLookup*spread.open() + openLengths + openLookup*spread.lookups() +
			bytePerPrefix*float64(bytes)/float64(n+fewPrefixes)
		if got < cost {
			best, cost = bits, got
		}
		spread.halve()
	}
	if best > 0 {
		*l = l.WithDirectory(best)
		l.Prefixes.Front = 0
	}
}

// lengthBits are bits that stand for the lengths of one side, by length.
type lengthBits [2][33]uint64

func (b *lengthBits) of(p Prefix) uint64 { return b[side(p.Dst)][p.Bits] }

func side(dst bool) int {
	if dst {
		return 1
	}
	return 0
}

// lengthBits returns the bits of the lengths in a directory's words.
func (l *Layout) lengthBits() (b lengthBits) {
	for i, s := range l.V4 {
		if !l.Hashed(s.Shape) {
			b[side(s.DstBits > 0)][s.SrcBits+s.DstBits] = 1 << (64 - len(l.V4) + i)
		}
	}
	return b
}

// networks yields the networks of a length that a prefix touches, and the parts of
// each, as bits.
func (p Prefix) networks(length, parts int) iter.Seq2[uint32, uint64] {
	shift := 32 - length
	first, last := p.Addr, p.Addr|uint32(1<<(32-p.Bits)-1)
	return func(yield func(uint32, uint64) bool) {
		for n := first >> shift; ; n++ {
			from, to := 0, parts-1
			if n == first>>shift {
				from = part(first, shift, parts)
			}
			if n == last>>shift {
				to = part(last, shift, parts)
			}
			if !yield(n, 1<<(to+1)-1<<from) || n == last>>shift {
				return
			}
		}
	}
}

// part returns the part of its network in which an address is.
func part(addr uint32, shift, parts int) int {
	return int(uint64(addr<<(32-shift)) * uint64(parts) >> 32)
}

// spread is which lengths touch which networks, to predict how many lengths a
// directory leaves open. It assumes a directory with 64 parts beside the lengths.
type spread struct {
	lengths, parts [2][]uint64
	of             lengthBits
	sample         []Prefix
	bits           int
}

// newSpread returns the spread over the longest networks, with a sample of one in
// every prefixes.
func newSpread(of lengthBits, prefixes []iter.Seq[Prefix], every int) *spread {
	s := &spread{of: of, bits: maxDirectoryBits}
	for i := range s.parts {
		s.lengths[i], s.parts[i] = make([]uint64, 1<<maxDirectoryBits), make([]uint64, 1<<maxDirectoryBits)
	}
	samples := make([][]Prefix, len(prefixes))
	var all sync.WaitGroup
	for i, chunk := range prefixes {
		all.Go(func() {
			n := 0
			for p := range chunk {
				if n++; n%every == 0 {
					samples[i] = append(samples[i], p)
				}
				length, side := s.of.of(p), side(p.Dst)
				for n, parts := range p.networks(maxDirectoryBits, 64) {
					orWord(&s.lengths[side][n], length)
					orWord(&s.parts[side][n], parts)
				}
			}
		})
	}
	all.Wait()
	s.sample = slices.Concat(samples...)
	return s
}

// lookups returns the mean number of lookups that find a prefix of the sample.
func (s *spread) lookups() float64 {
	return s.mean(func(p Prefix) uint64 { return s.lengths[side(p.Dst)][p.Addr>>(32-s.bits)] })
}

// lookupsOfAll returns the same without a directory: of all lengths, in order.
func (s *spread) lookupsOfAll() float64 {
	var all uint64
	for _, lengths := range s.of {
		for _, b := range lengths {
			all |= b
		}
	}
	return s.mean(func(Prefix) uint64 { return all })
}

// mean returns the mean number of open lengths up to that of a prefix of the sample, its
// own among them.
func (s *spread) mean(open func(Prefix) uint64) float64 {
	n := 0
	for _, p := range s.sample {
		n += 1 + bits.OnesCount64(open(p)&(s.of.of(p)-1))
	}
	return float64(n) / float64(max(1, len(s.sample)))
}

// open returns how many lengths are open to a random address.
func (s *spread) open() float64 {
	n := 0
	for side, parts := range s.parts {
		for i, p := range parts {
			n += bits.OnesCount64(p) * bits.OnesCount64(s.lengths[side][i])
		}
	}
	return float64(n) / float64(64*len(s.parts[0]))
}

// halve makes networks of a length shorter by one.
func (s *spread) halve() {
	for side, parts := range s.parts {
		lengths := s.lengths[side]
		for i := range len(parts) / 2 {
			lengths[i] = lengths[2*i] | lengths[2*i+1]
			parts[i] = bloom.OrPairs(parts[2*i]) | bloom.OrPairs(parts[2*i+1])<<32
		}
		s.lengths[side], s.parts[side] = lengths[:len(parts)/2], parts[:len(parts)/2]
	}
	s.bits--
}

// directory is the directory of a set. A nil one leaves all lengths open.
type directory struct {
	DirectoryLayout
	words   []uint64
	lengths lengthBits
	stale   int // parts that removed prefixes touched since the words were exact
}

func newDirectory(l *Layout, words []uint64) *directory {
	if l.Directory.Bits == 0 {
		return nil
	}
	return &directory{DirectoryLayout: l.Directory, words: words, lengths: l.lengthBits()}
}

// side returns the words of sources or of destinations.
func (d *directory) side(dst bool) []uint64 {
	if dst {
		return d.words[d.SrcWords():]
	}
	return d.words[:d.SrcWords()]
}

// add opens the length of a prefix to the addresses that it matches. It is safe for
// concurrent use.
func (d *directory) add(p Prefix) {
	if d == nil {
		return
	}
	words, length := d.side(p.Dst), d.lengths.of(p)
	for n, parts := range p.networks(d.Bits, d.Parts()) {
		orWord(&words[n], length|parts)
	}
}

func orWord(w *uint64, bits uint64) {
	if atomic.LoadUint64(w)&bits != bits {
		atomic.OrUint64(w, bits)
	}
}

// open returns the bits of the lengths that may match a packet.
func (d *directory) open(t key.Tuple) uint64 {
	if d == nil {
		return ^uint64(0)
	}
	return d.read(t.Src, false) | d.read(t.Dst, true)
}

func (d *directory) read(a netip.Addr, dst bool) uint64 {
	words := d.side(dst)
	if len(words) == 0 || !a.Is4() {
		return 0
	}
	n, shift := number(a), 32-d.Bits
	w := words[n>>shift]
	if w>>part(n, shift, d.Parts())&1 == 0 {
		return 0
	}
	return w >> d.Parts() << d.Parts()
}

// isOpen reports whether the length of a shape is among bits that open returned.
func (d *directory) isOpen(open uint64, s key.Shape) bool {
	return d == nil || d.lengths[side(s.DstBits > 0)][s.SrcBits+s.DstBits]&open != 0
}

// remove counts what a removed prefix leaves open.
func (d *directory) remove(p Prefix) {
	if d == nil {
		return
	}
	for _, parts := range p.networks(d.Bits, d.Parts()) {
		d.stale += bits.OnesCount64(parts)
	}
}

// isStale reports whether it is time to renew the words, if there are n prefixes: what
// removed ones leave open would cost too many reads. Few long ones do not matter, and
// n of them are worth the work; a short one alone may leave all lengths open.
func (d *directory) isStale(n int) bool {
	return d != nil && d.stale > roomKeys+min(n, len(d.words)*d.Parts()/16)
}

// renew closes what no prefix needs. A word keeps the bits that prefixes need, which
// must not change meanwhile.
func (d *directory) renew(prefixes iter.Seq[Prefix]) {
	next := *d
	next.words = make([]uint64, len(d.words))
	for p := range prefixes {
		next.add(p)
	}
	for i, w := range next.words {
		if d.words[i] != w {
			atomic.StoreUint64(&d.words[i], w)
		}
	}
	d.stale = 0
}
