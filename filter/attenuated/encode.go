package attenuated

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"weir/filter/bloom"
	"weir/filter/internal/sealed"
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
)

// MaxDepth bounds the depth of decoded filters.
const MaxDepth = 255

func appendHeader(b []byte, magic string, depth int, g bloom.Geometry, seed uint64) []byte {
	b = append(append(b, magic...), byte(depth), 0, 0)
	b, _ = g.AppendBinary(b) // never fails
	return binary.LittleEndian.AppendUint64(b, seed)
}

// decoder reads an encoding. After a failure it reads zeros.
type decoder struct {
	*sealed.Reader
	geometry bloom.Geometry
	seed     uint64
	depth    int
}

func newDecoder(b []byte, magic string) *decoder {
	d := &decoder{Reader: sealed.Open("attenuated", magic, b)}
	d.depth = int(d.Uint8())
	d.Zero(2)
	if encoded := d.Bytes(bloom.GeometryLen); encoded != nil {
		if err := d.geometry.UnmarshalBinary(encoded); err != nil {
			d.Fail("%w", err)
		}
	}
	d.seed = d.Uint64()
	return d
}

// filter reads the bits of a filter, for which it takes no memory before they are there.
func (d *decoder) filter() *bloom.Filter {
	words := d.Words((uint64(d.geometry.M()) + 63) / 64)
	if d.Err() != nil {
		return nil
	}
	f, err := bloom.FromWords(d.geometry, d.seed, words)
	if err != nil {
		d.Fail("%w", err)
	}
	return f
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
		b = sealed.AppendWords(b, l.Words())
	}
	return sealed.Seal(b, start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) { return f.AppendBinary(nil) }

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary produces;
// otherwise it fails and leaves f unchanged. It implements encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	d := newDecoder(b, filterMagic)
	if d.Err() == nil && d.depth == 0 {
		d.Fail("depth 0")
	}
	decoded := Filter{seed: d.seed}
	for i := 0; i < d.depth && d.Err() == nil; i++ {
		decoded.levels = append(decoded.levels, d.filter())
	}
	if err := d.End(); err != nil {
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
	return sealed.Seal(b, start), nil
}

func (t *Tree) appendNodes(b []byte, depth int) (_ []byte, err error) {
	if depth == 0 {
		return b, fmt.Errorf("attenuated: encode: the tree is deeper than %d", MaxDepth)
	}
	b = sealed.AppendWords(b, t.own.Words())
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

var errForeign = errors.New("a node's filter is not that of its resources")

// UnmarshalBinary decodes b into t, a root. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves t unchanged. It implements
// encoding.BinaryUnmarshaler.
func (t *Tree) UnmarshalBinary(b []byte) error {
	if t.parent != nil {
		return errors.New("attenuated: decode: the node is no root")
	}
	d := newDecoder(b, treeMagic)
	if d.Err() == nil && d.depth != 0 {
		d.Fail("magic and version % x, want % x", b[:8], treeMagic)
	}
	decoded := d.node(MaxDepth)
	if err := d.End(); err != nil {
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
		d.Fail("the tree is deeper than %d", MaxDepth)
	}
	own := d.filter()
	resources, children := d.Uvarint(), d.Uvarint()
	t := &Tree{resources: make(map[string]struct{}), own: own}
	last := ""
	for i := range resources {
		n := d.Uvarint()
		if d.Err() != nil {
			return nil
		}
		r := string(d.Bytes(n))
		if i > 0 && r <= last {
			d.Fail("resources are not in order")
		}
		t.resources[r], last = struct{}{}, r
	}
	if d.Err() != nil {
		return nil
	}
	check := bloom.New(d.geometry, d.seed)
	for r := range t.resources {
		check.Add([]byte(r))
	}
	if !check.Equal(own) {
		d.Fail("%w", errForeign)
		return nil
	}
	t.unified = own.Clone()
	for range children {
		c := d.node(depth - 1)
		if d.Err() != nil {
			return nil
		}
		c.parent = t
		t.children = append(t.children, c)
		_ = t.unified.Union(c.unified) // cannot fail: all nodes share one geometry
	}
	return t
}
