// Package snapshot encodes sets of keys exactly and compactly, to send them to other
// hosts: whole, or as the difference of two versions.
//
// A set is divided into groups of keys of the same length, such as the IPv4 prefixes
// of 24 bits. A group is encoded in ascending order as the gaps between its keys, in
// the smaller of two forms:
//
//   - Rice codes (Rice and Plaunt, "Adaptive variable-length coding for efficient
//     compression of spacecraft television data", IEEE Trans. Comm. 1971) with a
//     parameter for each block of gaps. For n random keys of b bits they take about
//     log₂(2ᵇ/n) + 1.6 bits a key, 0.5 % more than the entropy.
//   - Variable-length integers compressed with Zstandard, for keys in clusters that
//     repeat.
//
// An encoding is not authenticated. Decoding bounds its memory by the number of keys
// that the caller allows and by the length of the input, whatever that contains.
package snapshot

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// Group is a set of keys of one kind. All have Bits significant bits.
type Group struct {
	Tag  uint32 // what the keys are; groups of a set have ascending tags
	Bits int    // 0…MaxBits
	Keys []byte // one after another in ascending order, each of Width bytes, in network order, zero beyond Bits
}

// MaxBits is the maximum length of a key.
const MaxBits = 512

// Width returns the length of a key in bytes.
func (g Group) Width() int { return (g.Bits + 7) / 8 }

// Len returns the number of keys. A group of 0 bits has the one key there is.
func (g Group) Len() int {
	if g.Bits == 0 {
		return 1
	}
	return len(g.Keys) / g.Width()
}

// Key returns a key by its rank.
func (g Group) Key(i int) []byte { return g.Keys[i*g.Width() : (i+1)*g.Width()] }

// version is the first byte of an encoding.
const version = 1

// The forms of a group.
const (
	formRice = iota
	formZstd
	forms
)

// maxGroups bounds the groups of a set: more than there are shapes in use.
const maxGroups = 1 << 16

// ErrTooMany means that an encoding has more keys than the caller allows.
var ErrTooMany = errors.New("snapshot: more keys than allowed")

// Append appends the encoding of a set to b. It fails if groups or keys are not in
// ascending order, or a key has bits beyond its length.
func Append(b []byte, set []Group) ([]byte, error) {
	if len(set) > maxGroups {
		return nil, fmt.Errorf("snapshot: %d groups, more than %d", len(set), maxGroups)
	}
	b = append(b, version)
	b = binary.AppendUvarint(b, uint64(len(set)))
	for i, g := range set {
		if i > 0 && g.Tag <= set[i-1].Tag {
			return nil, fmt.Errorf("snapshot: group %d: tag %d after %d", i, g.Tag, set[i-1].Tag)
		}
		if err := g.check(); err != nil {
			return nil, err
		}
		b = binary.AppendUvarint(b, uint64(g.Tag))
		b = binary.AppendUvarint(b, uint64(g.Bits))
		b = binary.AppendUvarint(b, uint64(g.Len()))
		if g.Bits == 0 {
			continue
		}
		form, body := byte(formRice), g.rice(nil)
		if g.repeats() {
			if z := g.zstd(); len(z) < len(body) {
				form, body = formZstd, z
			}
		}
		b = append(b, form)
		b = binary.AppendUvarint(b, uint64(len(body)))
		b = append(b, body...)
	}
	return b, nil
}

// check returns an error unless the group's keys are as its type says.
func (g Group) check() error {
	switch {
	case g.Bits < 0 || g.Bits > MaxBits:
		return fmt.Errorf("snapshot: group %d: keys of %d bits, want 0 to %d", g.Tag, g.Bits, MaxBits)
	case g.Bits == 0 && len(g.Keys) > 0, g.Bits > 0 && len(g.Keys)%g.Width() != 0:
		return fmt.Errorf("snapshot: group %d: %d bytes are no whole number of keys", g.Tag, len(g.Keys))
	case g.Bits == 0:
		return nil
	}
	beyond := byte(0xff) >> ((g.Bits-1)%8 + 1)
	for i := range g.Len() {
		k := g.Key(i)
		if k[len(k)-1]&beyond != 0 {
			return fmt.Errorf("snapshot: group %d, key %d: bits beyond %d", g.Tag, i, g.Bits)
		}
		if i > 0 && bytes.Compare(g.Key(i-1), k) >= 0 {
			return fmt.Errorf("snapshot: group %d: keys %d and %d are not in ascending order", g.Tag, i-1, i)
		}
	}
	return nil
}

// A key is split into its head, the first 64 bits, and its tail. Gaps are between
// heads. Keys without a tail are distinct by their heads, and the least gap is 1.

func (g Group) headBits() int { return min(g.Bits, 64) }
func (g Group) tailBits() int { return g.Bits - g.headBits() }

// leastGap is the least difference of the heads of successive keys.
func (g Group) leastGap() uint64 {
	if g.tailBits() == 0 {
		return 1
	}
	return 0
}

// head returns the head of a key, as a number below 2^headBits.
func (g Group) head(k []byte) uint64 {
	var w [8]byte
	copy(w[:], k)
	return binary.BigEndian.Uint64(w[:]) >> (64 - g.headBits())
}

// appendKey appends the key of a head and of a tail that is left-aligned in bytes.
func (g Group) appendKey(b []byte, head uint64, tail []byte) []byte {
	var w [8]byte
	binary.BigEndian.PutUint64(w[:], head<<(64-g.headBits()))
	b = append(b, w[:min(8, g.Width())]...)
	return append(b, tail...)
}

// gaps calls fn with the gap before each key, less the least one, and with its tail.
func (g Group) gaps(fn func(gap uint64, tail []byte)) {
	least := g.leastGap()
	next := uint64(0) // the least head that may follow
	for i := range g.Len() {
		k := g.Key(i)
		h := g.head(k)
		fn(h-next, k[min(8, len(k)):])
		next = h + least
	}
}

const (
	riceBlock = 256 // gaps with a parameter of their own, of 6 bits
	maxUnary  = 32  // ones in a row that announce a gap as it is, in 64 bits
)

// riceCost returns the length in bits of a gap's Rice code of parameter k.
func riceCost(gap uint64, k int) int {
	if q := gap >> k; q < maxUnary {
		return int(q) + 1 + k
	}
	return maxUnary + 64
}

// riceParameter returns the parameter that makes the block's codes shortest. The cost
// is nearly convex in it, with its minimum near the logarithm of the mean gap.
func riceParameter(block []uint64) int {
	mean := uint64(0)
	for _, gap := range block {
		mean += gap / uint64(len(block))
	}
	guess := bits.Len64(mean)
	best, least := 0, -1
	for k := max(0, guess-3); k <= min(63, guess+1); k++ {
		cost := 0
		for _, gap := range block {
			cost += riceCost(gap, k)
		}
		if least < 0 || cost < least {
			best, least = k, cost
		}
	}
	return best
}

// rice appends the group in Rice codes: for each block its parameter, then gap and
// tail of each key.
func (g Group) rice(b []byte) []byte {
	w := bitWriter{b: b}
	block := make([]uint64, 0, riceBlock)
	tails := make([]byte, 0, riceBlock*8)
	flush := func() {
		if len(block) == 0 {
			return
		}
		k := riceParameter(block)
		w.write(uint64(k), 6)
		size := len(tails) / len(block)
		for i, gap := range block {
			if q := gap >> k; q < maxUnary {
				w.write(1<<q-1, int(q)+1) // q ones and a zero
				w.write(gap&(1<<k-1), k)
			} else {
				w.write(1<<maxUnary-1, maxUnary)
				w.write(gap, 64)
			}
			w.bytes(tails[i*size:(i+1)*size], g.tailBits())
		}
		block, tails = block[:0], tails[:0]
	}
	g.gaps(func(gap uint64, tail []byte) {
		block, tails = append(block, gap), append(tails, tail...)
		if len(block) == riceBlock {
			flush()
		}
	})
	flush()
	return w.end()
}

// repeats reports whether Zstandard may be the smaller form, by samples: it takes ten
// times as long as Rice codes.
func (g Group) repeats() bool {
	const samples, keys = 16, 4096
	if g.Len() <= samples*keys {
		return true
	}
	rice, zstd := 0, 0
	for i := range samples {
		at := (g.Len() - keys) / (samples - 1) * i
		s := Group{Bits: g.Bits, Keys: g.Keys[at*g.Width() : (at+keys)*g.Width()]}
		rice += len(s.rice(nil))
		zstd += len(s.zstd())
	}
	return zstd < rice+rice/4 // of all at once, it finds more repetitions
}

// zstd returns the group as variable-length gaps, followed by the tails, compressed.
func (g Group) zstd() []byte {
	raw := make([]byte, 0, 2*len(g.Keys))
	g.gaps(func(gap uint64, _ []byte) { raw = binary.AppendUvarint(raw, gap) })
	g.gaps(func(_ uint64, tail []byte) { raw = append(raw, tail...) })
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil // its options are right
	}
	defer e.Close()
	return e.EncodeAll(raw, nil)
}

// Decode decodes a set of at most maxKeys keys. It accepts only what Append writes,
// apart from the choice of the form.
func Decode(b []byte, maxKeys int) ([]Group, error) {
	d := &decoder{in: b}
	if v := d.byte(); d.err == nil && v != version {
		return nil, fmt.Errorf("snapshot: version %d, want %d", v, version)
	}
	n := d.uvarint(maxGroups)
	var set []Group
	for range n {
		if d.err != nil {
			break
		}
		tag, size, count := d.uvarint(1<<32-1), d.uvarint(MaxBits), d.uvarint(1<<62)
		g := Group{Tag: uint32(tag), Bits: int(size)}
		if len(set) > 0 && d.err == nil && g.Tag <= set[len(set)-1].Tag {
			return nil, fmt.Errorf("snapshot: tag %d after %d", g.Tag, set[len(set)-1].Tag)
		}
		if count > uint64(maxKeys) {
			return nil, fmt.Errorf("%w: %d", ErrTooMany, maxKeys)
		}
		maxKeys -= int(count)
		if g.Bits == 0 {
			if count != 1 && d.err == nil {
				return nil, fmt.Errorf("snapshot: group %d: %d keys of 0 bits", g.Tag, count)
			}
			set = append(set, g)
			continue
		}
		form := d.byte()
		body := d.bytes(d.uvarint(uint64(len(b))))
		if d.err != nil {
			break
		}
		var err error
		switch form {
		case formRice:
			err = g.decodeRice(body, int(count))
		case formZstd:
			err = g.decodeZstd(body, int(count))
		default:
			err = fmt.Errorf("form %d, want less than %d", form, forms)
		}
		if err == nil {
			err = g.check()
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot: group %d: %w", g.Tag, err)
		}
		set = append(set, g)
	}
	if d.err == nil && len(d.in) > 0 {
		d.err = fmt.Errorf("snapshot: %d bytes after the end", len(d.in))
	}
	if d.err != nil {
		return nil, d.err
	}
	return set, nil
}

var errShort = errors.New("ends early")

func (g *Group) decodeRice(body []byte, count int) error {
	if count > 8*len(body) { // each key takes a bit or more
		return errShort
	}
	g.Keys = make([]byte, 0, count*g.Width())
	r := bitReader{b: body}
	tail := make([]byte, (g.tailBits()+7)/8)
	next, least, k := uint64(0), g.leastGap(), 0
	for i := range count {
		if i%riceBlock == 0 {
			k = int(r.read(6))
		}
		gap := uint64(0)
		if q := r.ones(maxUnary); q < maxUnary {
			gap = uint64(q)<<k | r.read(k)
		} else {
			gap = r.read(64)
		}
		r.bytes(tail, g.tailBits())
		head := next + gap
		if head < next || g.Bits < 64 && head>>g.Bits != 0 {
			return fmt.Errorf("key %d is out of range", i)
		}
		g.Keys = g.appendKey(g.Keys, head, tail)
		next = head + least
		if next < head && i < count-1 {
			return fmt.Errorf("key %d is out of range", i+1)
		}
	}
	return r.end()
}

func (g *Group) decodeZstd(body []byte, count int) error {
	tail := (g.tailBits() + 7) / 8
	const window = 8 << 20 // of the encoder's level
	most := uint64(count) * uint64(binary.MaxVarintLen64+tail)
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(max(most, 1<<16)))
	if err != nil {
		return err
	}
	defer d.Close()
	raw, err := d.DecodeAll(body, nil)
	if err != nil {
		return err
	}
	if count > len(raw) {
		return errShort
	}
	g.Keys = make([]byte, 0, count*g.Width())
	in := decoder{in: raw}
	heads := make([]uint64, 0, count)
	next, least := uint64(0), g.leastGap()
	for i := range count {
		head := next + in.uvarint(1<<64-1)
		if in.err != nil {
			return in.err
		}
		if head < next || g.Bits < 64 && head>>g.Bits != 0 || i > 0 && least == 1 && next == 0 {
			return fmt.Errorf("key %d is out of range", i)
		}
		heads = append(heads, head)
		next = head + least
	}
	if len(in.in) != count*tail {
		return fmt.Errorf("%d bytes of tails, want %d", len(in.in), count*tail)
	}
	for i, head := range heads {
		g.Keys = g.appendKey(g.Keys, head, in.in[i*tail:(i+1)*tail])
	}
	return nil
}

// decoder reads numbers and bytes. After the first error it returns zeros.
type decoder struct {
	in  []byte
	err error
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); len(b) > 0 {
		return b[0]
	}
	return 0
}

func (d *decoder) bytes(n uint64) []byte {
	if d.err == nil && n > uint64(len(d.in)) {
		d.err = fmt.Errorf("snapshot: %w", errShort)
	}
	if d.err != nil {
		return nil
	}
	b := d.in[:n]
	d.in = d.in[n:]
	return b
}

func (d *decoder) uvarint(most uint64) uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.in)
	switch {
	case n <= 0:
		d.err = fmt.Errorf("snapshot: %w", errShort)
		return 0
	case v > most:
		d.err = fmt.Errorf("snapshot: %d, want at most %d", v, most)
		return 0
	}
	d.in = d.in[n:]
	return v
}

// Sum is a checksum of a set that follows its changes: the sum of a 128-bit hash of
// each key. It detects faults, not forgeries. The zero Sum belongs to the empty set.
type Sum [2]uint64

// Of returns the checksum of a set.
func Of(set []Group) (s Sum) {
	s.Add(set)
	return s
}

// Add adds keys that the set did not have.
func (s *Sum) Add(set []Group) { s.each(set, func(a, b uint64) { s[0] += a; s[1] += b }) }

// Remove removes keys that the set had.
func (s *Sum) Remove(set []Group) { s.each(set, func(a, b uint64) { s[0] -= a; s[1] -= b }) }

func (s *Sum) each(set []Group, fn func(a, b uint64)) {
	var text [MaxBits/8 + 5]byte
	for _, g := range set {
		binary.BigEndian.PutUint32(text[:], g.Tag)
		for i := range g.Len() {
			n := 4
			if g.Bits > 0 {
				n += copy(text[4:], g.Key(i))
			}
			text[n] = 0
			a := xxhash.Sum64(text[:n+1])
			text[n] = 1
			fn(a, xxhash.Sum64(text[:n+1]))
		}
	}
}

func (s Sum) String() string { return fmt.Sprintf("%016x%016x", s[0], s[1]) }

// ParseSum returns the checksum of a text that String has returned.
func ParseSum(text string) (s Sum, err error) {
	b, err := hex.DecodeString(text)
	if err == nil && len(b) != 16 {
		err = fmt.Errorf("%d digits", len(text))
	}
	if err != nil {
		return Sum{}, fmt.Errorf("snapshot: checksum %q: %w", text, err)
	}
	return Sum{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, nil
}
