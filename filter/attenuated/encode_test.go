package attenuated

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"weir/filter/bloom"
	"weir/filter/hash"
)

func small(t testing.TB) bloom.Geometry {
	t.Helper()
	g, err := bloom.Standard(100, 3)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// examples are encodings of a filter and of a tree.
func examples(t testing.TB) (filter, tree []byte) {
	t.Helper()
	r := NewRouter(small(t), 7, 3)
	l := r.AddLink()
	r.Add([]byte("a"))
	f, _ := r.Announce(l)
	root := NewTree(small(t), 7)
	root.Add([]byte("root's"))
	for i := range 3 {
		c := root.AddChild()
		c.Add(fmt.Append(nil, i))
		c.AddChild().Add(fmt.Append(nil, "below", i))
	}
	filter, err := f.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if tree, err = root.MarshalBinary(); err != nil {
		t.Fatal(err)
	}
	return filter, tree
}

// What is decoded routes as what was encoded.
func TestEncode(t *testing.T) {
	filter, tree := examples(t)
	var f Filter
	if err := f.UnmarshalBinary(filter); err != nil {
		t.Fatal(err)
	}
	if hops, ok := f.Lookup([]byte("a")); !ok || hops != 1 || f.Depth() != 3 {
		t.Errorf("%d hops, %t, of %d", hops, ok, f.Depth())
	}
	r := NewRouter(small(t), 7, 3)
	if err := r.Receive(r.AddLink(), &f); err != nil {
		t.Error(err)
	}
	root := NewTree(small(t), 1)
	if err := root.UnmarshalBinary(tree); err != nil {
		t.Fatal(err)
	}
	leaf := root.children[0].children[0]
	for _, b := range []string{"root's", "0", "2", "below1"} {
		if route, ok := leaf.Find([]byte(b)); !ok || route.Holder == nil {
			t.Errorf("%s is not found", b)
		}
	}
	if !root.children[2].children[0].Remove([]byte("below2")) {
		t.Error("below2 cannot be removed")
	}
	if root.unified.Contains([]byte("below2")) && !root.own.Contains([]byte("below2")) {
		if _, ok := root.Find([]byte("below2")); ok {
			t.Error("what was removed is found")
		}
	}
	if err := root.children[0].UnmarshalBinary(tree); err == nil {
		t.Error("a child was replaced")
	}
}

// Lengths of the encodings' ends, as encode.go says.
const (
	headerLen   = 24
	checksumLen = 8
)

// What is damaged is refused, and changes nothing.
func TestDecodeRefuses(t *testing.T) {
	filter, tree := examples(t)
	// again corrects the checksum.
	again := func(b []byte, change func([]byte) []byte) []byte {
		b = change(bytes.Clone(b[:len(b)-checksumLen]))
		return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
	}
	set := func(at int, to ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], to); return b }
	}
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"cut short":     filter[:len(filter)-1],
		"another depth": again(filter, set(5, 4)),
		"no depth":      again(filter, set(5, 0)),
		"a huge filter": again(filter, set(12, 0, 0, 0, 0xff)),
		"more bytes":    again(filter, func(b []byte) []byte { return append(b, 0) }),
		"a tree":        tree,
		"a bit flipped": append([]byte{filter[0] ^ 1}, filter[1:]...),
	} {
		f := New(small(t), 7, 1)
		if err := f.UnmarshalBinary(b); err == nil || f.Depth() != 1 {
			t.Errorf("%s: error %v, depth %d", name, err, f.Depth())
		}
	}
	const resources = headerLen + 16 // behind the root's filter
	for name, b := range map[string][]byte{
		"nothing":           nil,
		"a filter":          filter,
		"a depth":           again(tree, set(5, 1)),
		"more resources":    again(tree, set(resources, 2)),
		"children missing":  again(tree, set(resources+1, 9)),
		"another resource":  again(tree, set(resources+3, 'R')),
		"a long number":     again(tree, set(resources, 0xff, 0xff, 0xff, 0xff)),
		"more bytes":        again(tree, func(b []byte) []byte { return append(b, 0) }),
		"a node cut short":  again(tree, func(b []byte) []byte { return b[:len(b)-3] }),
		"a foreign filter":  again(tree, set(headerLen, 0xff)),
		"another's version": again(tree, set(4, 2)),
	} {
		root := NewTree(small(t), 7)
		if err := root.UnmarshalBinary(b); err == nil || len(root.children) > 0 {
			t.Errorf("%s: error %v, %d children", name, err, len(root.children))
		}
	}
	deep := NewTree(small(t), 7)
	for range MaxDepth {
		deep = deep.AddChild()
	}
	for deep.parent != nil {
		deep = deep.parent
	}
	if _, err := deep.MarshalBinary(); err == nil {
		t.Error("a tree that is too deep was encoded")
	}
	if _, err := New(small(t), 7, 0).MarshalBinary(); err == nil {
		t.Error("a filter without levels was encoded")
	}
}

// Whatever is accepted is encoded to the same bytes.
func FuzzUnmarshal(f *testing.F) {
	filter, tree := examples(f)
	f.Add(filter[:len(filter)-checksumLen])
	f.Add(tree[:len(tree)-checksumLen])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = binary.LittleEndian.AppendUint64(b, hash.Sum(0, b))
		var f Filter
		if f.UnmarshalBinary(b) == nil {
			if again, err := f.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x is encoded to %x, %v", b, again, err)
			}
		}
		var tree Tree
		if tree.UnmarshalBinary(b) == nil {
			if again, err := tree.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%x is encoded to %x, %v", b, again, err)
			}
		}
	})
}
