package attenuated

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// The encodings, in little-endian order. Both begin with
//
//	 0  magic "WATT", or "WTRE" for a tree
//	 4  version, 1
//	 5  depth of a filter; zero for a tree
//	 6  zero, 2 bytes
//	 8  geometry, as encoded by weir/filter/bloom
//	16  seed, 8 bytes
//
// and end with the XXH64 of everything before it, with seed 0, 8 bytes. Between are, of a
// filter, the bits of each level, the nearest first, in words of 8 bytes, and of a tree
// its nodes, each before its children:
//
//	the node's own filter, in words of 8 bytes
//	the number of its resources, and of its children, as varints
//	its resources in the order of their bytes, each after its length as a varint
//
// The checksum detects corruption, not forgery.
const (
	filterMagic = "WATT\x01"
	treeMagic   = "WTRE\x01"
	headerLen   = 24
	checksumLen = 8
)

// MaxDepth bounds the depth of decoded filters.
const MaxDepth = 255

func appendHeader(b []byte, magic string, depth int, g bloom.Geometry, seed uint64) []byte {
	b = append(append(b, magic...), byte(depth), 0, 0)
	b, _ = g.AppendBinary(b) // never fails
	return binary.LittleEndian.AppendUint64(b, seed)
}

func appendWords(b []byte, words []uint64) []byte {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// decoder reads an encoding. After a failure it reads zeros.
type decoder struct {
	rest     []byte
	geometry bloom.Geometry
	seed     uint64
	depth    int
	err      error
}

func newDecoder(b []byte, magic string) *decoder {
	d := &decoder{}
	switch {
	case len(b) < headerLen+checksumLen:
		d.fail("%d bytes, need at least %d", len(b), headerLen+checksumLen)
	case string(b[:5]) != magic || b[6] != 0 || b[7] != 0:
		d.fail("magic and version % x, want % x", b[:8], magic)
	default:
		body := b[:len(b)-checksumLen]
		if hash.Sum(0, body) != binary.LittleEndian.Uint64(b[len(body):]) {
			d.fail("checksum does not match")
		}
		if err := d.geometry.UnmarshalBinary(body[8:16]); err != nil {
			d.fail("%w", err)
		}
		d.depth, d.seed, d.rest = int(body[5]), binary.LittleEndian.Uint64(body[16:]), body[headerLen:]
	}
	return d
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("attenuated: decode: "+format, args...)
	}
	d.rest = nil
}

// filter reads the bits of a filter, for which it takes no memory before they are there.
func (d *decoder) filter() *bloom.Filter {
	n := (int(d.geometry.M()) + 63) / 64
	if d.err == nil && len(d.rest)/8 < n {
		d.fail("%d bytes of bits, want %d", len(d.rest), 8*n)
	}
	if d.err != nil {
		return nil
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(d.rest[8*i:])
	}
	d.rest = d.rest[8*n:]
	f, err := bloom.FromWords(d.geometry, d.seed, words)
	if err != nil {
		d.fail("%w", err)
	}
	return f
}

// number reads a varint that is at most the number of bytes left.
func (d *decoder) number() int {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 || v > uint64(len(d.rest)-n) {
		d.fail("a number is cut short, too large or has leading zeros")
		return 0
	}
	d.rest = d.rest[n:]
	return int(v)
}

func (d *decoder) end() error {
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes too many", len(d.rest))
	}
	return d.err
}

// AppendBinary appends the filter's encoding to b. It fails if the filter is deeper than
// MaxDepth, or has no level. It implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	if len(f.levels) < 1 || len(f.levels) > MaxDepth {
		return b, fmt.Errorf("attenuated: encode: depth %d, want 1 to %d", len(f.levels), MaxDepth)
	}
	start := len(b)
	b = appendHeader(b, filterMagic, len(f.levels), f.levels[0].Geometry, f.seed)
	for _, l := range f.levels {
		b = appendWords(b, l.Words())
	}
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b[start:])), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary produces;
// otherwise it fails and leaves f unchanged. It implements encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	d := newDecoder(b, filterMagic)
	if d.err == nil && d.depth == 0 {
		d.fail("depth 0")
	}
	decoded := Filter{seed: d.seed}
	for i := 0; i < d.depth && d.err == nil; i++ {
		decoded.levels = append(decoded.levels, d.filter())
	}
	if err := d.end(); err != nil {
		return err
	}
	*f = decoded
	return nil
}

// AppendBinary appends the encoding of the tree below the node to b: what a node hands
// over when it moves. It fails if that is deeper than MaxDepth. It implements
// encoding.BinaryAppender.
func (t *Tree) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b, err := t.appendNodes(appendHeader(b, treeMagic, 0, t.own.Geometry, t.own.Seed()), MaxDepth)
	if err != nil {
		return b[:start], err
	}
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b[start:])), nil
}

func (t *Tree) appendNodes(b []byte, depth int) (_ []byte, err error) {
	if depth == 0 {
		return b, fmt.Errorf("attenuated: encode: the tree is deeper than %d", MaxDepth)
	}
	b = appendWords(b, t.own.Words())
	b = binary.AppendUvarint(b, uint64(len(t.resources)))
	b = binary.AppendUvarint(b, uint64(len(t.children)))
	for _, r := range slices.Sorted(maps.Keys(t.resources)) {
		b = append(binary.AppendUvarint(b, uint64(len(r))), r...)
	}
	for _, c := range t.children {
		if b, err = c.appendNodes(b, depth-1); err != nil {
			return b, err
		}
	}
	return b, nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (t *Tree) MarshalBinary() ([]byte, error) { return t.AppendBinary(nil) }

var errForeign = errors.New("attenuated: decode: a node's filter is not that of its resources")

// UnmarshalBinary decodes b into t, a root. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves t unchanged. It implements
// encoding.BinaryUnmarshaler.
func (t *Tree) UnmarshalBinary(b []byte) error {
	if t.parent != nil {
		return errors.New("attenuated: decode: the node is no root")
	}
	d := newDecoder(b, treeMagic)
	if d.err == nil && d.depth != 0 {
		d.fail("magic and version % x, want % x", b[:8], treeMagic)
	}
	decoded := d.node(MaxDepth)
	if err := d.end(); err != nil {
		return err
	}
	*t = *decoded
	for _, c := range t.children {
		c.parent = t
	}
	return nil
}

func (d *decoder) node(depth int) *Tree {
	if depth == 0 {
		d.fail("the tree is deeper than %d", MaxDepth)
	}
	own := d.filter()
	resources, children := d.number(), d.number()
	t := &Tree{resources: make(map[string]struct{}), own: own}
	last := ""
	for i := range resources {
		n := d.number()
		if d.err != nil {
			return nil
		}
		r := string(d.rest[:n])
		if d.rest = d.rest[n:]; i > 0 && r <= last {
			d.fail("resources are not in order")
		}
		t.resources[r], last = struct{}{}, r
	}
	if d.err != nil {
		return nil
	}
	check := bloom.New(d.geometry, d.seed)
	for r := range t.resources {
		check.Add([]byte(r))
	}
	if !check.Equal(own) {
		d.err = errForeign
		return nil
	}
	t.unified = own.Clone()
	for range children {
		c := d.node(depth - 1)
		if d.err != nil {
			return nil
		}
		c.parent = t
		t.children = append(t.children, c)
		_ = t.unified.Union(c.unified) // cannot fail: all nodes share one geometry
	}
	return t
}
