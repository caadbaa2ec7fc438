package measure

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/tests/bench/probe"
)

// blocklist is a list of IPv4 addresses and prefixes, and its text file, one entry
// a line.
type blocklist struct {
	set      string // random, prefixes, mixed, or the name of a feed
	path     string
	size     int
	entries  []list.V4Prefix // in the order of the file; nil if only the file is needed
	prefixes bool            // has prefixes shorter than /32
	ranges   []span          // the listed ranges, sorted; nil without prefixes
}

// span is a range of addresses, both ends included.
type span struct{ first, last uint32 }

// Generated sets.
const (
	setRandom   = "random"   // addresses
	setPrefixes = "prefixes" // of 20 lengths, none within another
	setMixed    = "mixed"    // addresses and, one line in five, prefixes /24 to /31
)

func (b *blocklist) n() int { return b.size }

// warm returns how many frames bring the set into the caches, or what fits of it: two for each of
// its lines, at four bytes an entry.
func (b *blocklist) warm() int { return min(b.n()/8, probe.KeysLen) }

// inside returns an address that the i-th entry matches.
func (b *blocklist) inside(i int, random *rand.Rand) uint32 {
	p := b.entries[i]
	return p.Addr() + uint32(random.Uint64N(1<<(32-p.Bits())))
}

// outside returns an unlisted address: the i-th if the list has no prefixes, else
// a random one.
func (b *blocklist) outside(i uint32, random *rand.Rand) uint32 {
	if !b.prefixes {
		return address(uint32(b.n()) + i%uint32(1<<32-b.n()))
	}
	for {
		if a := random.Uint32(); !b.lists(a) {
			return a
		}
	}
}

func (b *blocklist) lists(a uint32) bool {
	i := sort.Search(len(b.ranges), func(i int) bool { return b.ranges[i].last >= a })
	return i < len(b.ranges) && b.ranges[i].first <= a
}

// unlisted returns n distinct unlisted addresses.
func (b *blocklist) unlisted(n int) []uint32 {
	random := rand.New(rand.NewPCG(9, 10))
	addrs := make([]uint32, 0, n)
	seen := make(map[uint32]bool, n)
	for i := uint32(0); len(addrs) < n; i++ {
		if a := b.outside(i, random); !seen[a] {
			seen[a] = true
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// draw returns a source of keys of which a share is listed. Keys are distributed
// uniformly or, with an exponent, by Zipf's law.
func (b *blocklist) draw(listed, zipf float64) func() [4]byte {
	random := rand.New(rand.NewPCG(1, uint64(b.n())))
	rank := func(n uint64) uint64 { return random.Uint64N(n) }
	if zipf > 0 {
		z := rand.NewZipf(random, zipf, 1, uint64(b.n()-1))
		rank = func(uint64) uint64 { return z.Uint64() }
	}
	return func() [4]byte {
		if random.Float64() < listed {
			return wireOrder(b.inside(int(rank(uint64(b.n()))), random))
		}
		return wireOrder(b.outside(uint32(rank(1<<31)), random))
	}
}

// address returns the i-th of distinct pseudo-random IPv4 addresses
// (MurmurHash3's finaliser, a bijection). A list of n addresses has the first n.
// None is 0.0.0.0, which ipset refuses.
func address(i uint32) uint32 {
	i++
	i = (i ^ i>>16) * 0x85ebca6b
	i = (i ^ i>>13) * 0xc2b2ae35
	return i ^ i>>16
}

func wireOrder(addr uint32) (b [4]byte) {
	binary.BigEndian.PutUint32(b[:], addr)
	return b
}

// lists makes blocklists, with their files in a temporary directory.
type lists struct {
	dir  string
	last *blocklist // only one is kept, as they may be large
}

func newDir() (string, error) { return os.MkdirTemp("", "weir-bench-") }

func (l *lists) remove() { os.RemoveAll(l.dir) }

// make generates the list of a set with n entries.
func (l *lists) make(set string, n int) (*blocklist, error) {
	if b := l.last; b != nil && b.set == set && b.n() == n {
		return b, nil
	}
	var entries []list.V4Prefix
	switch set {
	case setPrefixes:
		entries = somePrefixes(n)
	default:
		random := rand.New(rand.NewPCG(5, 6))
		entries = make([]list.V4Prefix, n)
		for i := range entries {
			a, bits := address(uint32(i)), 32
			if set == setMixed && i%5 == 0 {
				bits = 24 + random.IntN(8)
				a &^= 1<<(32-bits) - 1
			}
			entries[i] = list.V4(a, bits)
		}
	}
	return l.write(set, entries)
}

// read makes a list of the IPv4 entries of a feed.
func (l *lists) read(path string) (*blocklist, error) {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	e, _, err := listfile.Load(path, listfile.Options{})
	if err != nil {
		return nil, err
	}
	if len(e.V4) == 0 {
		return nil, fmt.Errorf("%s: no IPv4 address or prefix", path)
	}
	slices.Sort(e.V4)
	return l.write(name, slices.Compact(e.V4))
}

func (l *lists) write(set string, entries []list.V4Prefix) (_ *blocklist, err error) {
	b := &blocklist{set: set, path: filepath.Join(l.dir, "list.txt"), size: len(entries), entries: entries}
	b.prefixes = slices.ContainsFunc(entries, func(p list.V4Prefix) bool { return p.Bits() < 32 })
	if b.prefixes {
		b.ranges = merge(entries)
	}
	f, err := os.Create(b.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	var line []byte
	for _, p := range entries {
		line = append(appendEntry(line[:0], p), '\n')
		if _, err := w.Write(line); err != nil {
			return nil, err
		}
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	l.last = b
	return b, nil
}

// appendEntry appends an entry in the form that all contenders read.
func appendEntry(to []byte, p list.V4Prefix) []byte {
	if p.Bits() == 32 {
		return p.Prefix().Addr().AppendTo(to)
	}
	return p.Prefix().AppendTo(to)
}

// merge returns the ranges of addresses that prefixes match.
func merge(prefixes []list.V4Prefix) []span {
	var spans []span
	for _, p := range slices.Sorted(slices.Values(prefixes)) {
		s := span{p.Addr(), p.Addr() | uint32(1<<(32-p.Bits())-1)}
		if n := len(spans); n > 0 && s.first <= spans[n-1].last {
			spans[n-1].last = max(spans[n-1].last, s.last)
		} else {
			spans = append(spans, s)
		}
	}
	return spans
}

// somePrefixes generates prefixes like those of blocklists: /12 to /31, mostly
// /20 to /30, none within another.
func somePrefixes(n int) []list.V4Prefix {
	random := rand.New(rand.NewPCG(3, 4))
	var prefixes []list.V4Prefix
	taken := make(map[uint32]bool) // networks /20
	for len(prefixes) < n {
		bits := min(31, 12+int(18*random.Float64())+random.IntN(3))
		addr := random.Uint32() &^ (1<<(32-bits) - 1)
		from, n := addr>>12, uint32(1)<<max(0, 20-bits)
		free := true
		for i := from; i < from+n; i++ {
			free = free && !taken[i]
		}
		if !free || bits < 18 && random.IntN(64) > 0 {
			continue
		}
		for i := from; i < from+n; i++ {
			taken[i] = true
		}
		prefixes = append(prefixes, list.V4(addr, bits))
	}
	return prefixes
}

func hostOrder(b [4]byte) uint32 { return binary.BigEndian.Uint32(b[:]) }

// zipfFlows returns a source of flows by Zipf's law, by a table of the
// distribution: rand.Zipf needs an exponent above 1.
func zipfFlows(n int, exponent float64) func() int {
	upTo, sum := make([]float64, n), 0.
	for i := range upTo {
		sum += math.Pow(float64(i+1), -exponent)
		upTo[i] = sum
	}
	random := rand.New(rand.NewPCG(15, 16))
	return func() int { return min(n-1, sort.SearchFloat64s(upTo, sum*random.Float64())) }
}
