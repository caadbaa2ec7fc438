package membership

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
)

// The design's bars for memory, in bytes per key.
func TestLayoutMemory(t *testing.T) {
	flow := key.Shape{SrcBits: 32, DstBits: 32}
	for _, n := range []int{1_000_000, 10_000_000} {
		for mode, most := range map[Mode]float64{Exact: 11, Approximate: 2.1} {
			c := Census{Keys: map[key.Shape]int{flow: n}}
			l, err := PlanLayout(c, mode, 16, hash.NewSecret(hash.Seed{1}))
			if err != nil {
				t.Fatal(err)
			}
			if got := float64(l.Bytes()) / float64(n); got > most {
				t.Errorf("%v, %d keys: %.2f bytes a key, want %v at most", mode, n, got, most)
			}
		}
	}
}

// Using the spare capacity does not fill the table beyond what it can take.
func TestLayoutLeavesRoom(t *testing.T) {
	for n := 1; n < 1<<28; n *= 2 {
		l, err := PlanLayout(Census{Keys: map[key.Shape]int{{SrcBits: 32, DstBits: 32}: n}}, Exact, 0, hash.NewSecret(hash.Seed{1}))
		if err != nil {
			t.Fatal(err)
		}
		if l.Capacity < n+min(n*2/100, mostRoom) || l.Capacity < n+1000 {
			t.Errorf("%d keys: room for %d", n, l.Capacity)
		}
		if fill := float64(l.Capacity) / float64(l.Buckets*BucketSlots); fill > TableFill {
			t.Errorf("%d keys: filled to %.3f at the capacity", n, fill)
		}
	}
}

// The structures of a layout are all of its memory.
func TestStructures(t *testing.T) {
	c := Census{Keys: make(map[key.Shape]int), MarkedSrc24: 1000, MarkedDst24: 1000, NearCache: 1 << 20}
	for _, s := range shapes {
		c.Keys[s] = 400_000
	}
	for _, mode := range []Mode{Exact, Approximate} {
		l, err := PlanLayout(c, mode, 16, hash.NewSecret(hash.Seed{1}))
		if err != nil {
			t.Fatal(err)
		}
		l.PlanHot(1000)
		l = l.WithDirectory(12)
		sum := 0
		for _, s := range l.Structures() {
			t.Logf("%v: %d bytes: %s", mode, s.Bytes, s.Name)
			sum += s.Bytes
		}
		if sum != l.Bytes() {
			t.Errorf("%v: structures of %d bytes, the layout has %d", mode, sum, l.Bytes())
		}
	}
}

// A layout depends only on its inputs; the shapes come from a map, in any
// order.
func TestLayoutIsDetermined(t *testing.T) {
	c := Census{Keys: make(map[key.Shape]int), MarkedSrc24: 1000, MarkedDst24: 1000}
	for _, s := range shapes {
		c.Keys[s] = 10
		c.Keys[key.Shape{Fields: s.Fields | key.FieldProto, SrcBits: s.DstBits, DstBits: s.SrcBits}] = 10
	}
	first, err := PlanLayout(c, Exact, 0, hash.NewSecret(hash.Seed{1}))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if l, _ := PlanLayout(c, Exact, 0, hash.NewSecret(hash.Seed{1})); !reflect.DeepEqual(l, first) {
			t.Fatalf("%+v and %+v of one census", l, first)
		}
	}
}

func TestLayoutRejects(t *testing.T) {
	c := Census{Keys: make(map[key.Shape]int)}
	for bits := range MaxShapes + 1 {
		c.Keys[key.Shape{Fields: key.FieldV6, SrcBits: uint8(bits + 1)}] = 1
		_, err := PlanLayout(c, Exact, 0, hash.NewSecret(hash.Seed{1}))
		if len(c.Keys) <= MaxShapes && err != nil {
			t.Fatalf("%d shapes: %v", len(c.Keys), err)
		}
		if len(c.Keys) > MaxShapes && (err == nil || !strings.Contains(err.Error(), "33 combinations")) {
			t.Fatalf("%d shapes: %v", len(c.Keys), err)
		}
	}
	// 2^32 lines exceed 32-bit line numbers.
	if _, err := PlanLayout(Census{Keys: map[key.Shape]int{{}: math.MaxInt32}}, Approximate, 4096, hash.NewSecret(hash.Seed{1})); err == nil {
		t.Error("an unbounded layout was accepted")
	}
}

// A marker is planned if it speeds up clean traffic, and shapes have a gate
// only if there is a marker.
func TestLayoutMarkers(t *testing.T) {
	src, dst := key.Shape{SrcBits: 32, Fields: key.FieldProto}, key.Shape{DstBits: 32, Fields: key.FieldProto}
	wide := key.Shape{Fields: key.FieldDstPort}
	src6, src6b := key.Shape{Fields: key.FieldV6, SrcBits: 64}, key.Shape{Fields: key.FieldV6, SrcBits: 128}
	short6 := key.Shape{Fields: key.FieldV6, SrcBits: 32}
	for name, c := range map[string]struct {
		shapes             []key.Shape
		src24, dst24       int
		mark4src, mark4dst bool
		mark6              bool
	}{
		"unknown":          {[]key.Shape{src, dst}, 0, 0, false, false, false},
		"few networks":     {[]key.Shape{src, dst}, 1000, 1000, true, true, false},
		"sources only":     {[]key.Shape{src}, 1000, 0, true, false, false},
		"destinations":     {[]key.Shape{dst}, 0, 1000, false, true, false},
		"nearly all":       {[]key.Shape{src}, 1 << 23, 0, false, false, false},
		"nothing to gate":  {[]key.Shape{wide}, 1000, 1000, false, false, false},
		"one IPv6 shape":   {[]key.Shape{src6}, 0, 0, false, false, false},
		"two IPv6 shapes":  {[]key.Shape{src6, src6b}, 0, 0, false, false, true},
		"one of them wide": {[]key.Shape{src6, short6}, 0, 0, false, false, false},
	} {
		census := Census{Keys: make(map[key.Shape]int), MarkedSrc24: c.src24, MarkedDst24: c.dst24}
		for _, s := range c.shapes {
			census.Keys[s] = 1000
		}
		l, err := PlanLayout(census, Exact, 0, hash.NewSecret(hash.Seed{1}))
		if err != nil {
			t.Fatal(err)
		}
		if l.Mark4Src != c.mark4src || l.Mark4Dst != c.mark4dst || (l.Mark6Lines > 0) != c.mark6 {
			t.Errorf("%s: markers %t, %t, %d lines", name, l.Mark4Src, l.Mark4Dst, l.Mark6Lines)
		}
		for _, v6 := range []bool{false, true} {
			gates := l.Gates(v6)
			if !v6 && (gates&GateSrc != 0 && !l.Mark4Src || gates&GateDst != 0 && !l.Mark4Dst) ||
				v6 && gates&^GateAlways != 0 && l.Mark6Lines == 0 {
				t.Errorf("%s: shapes have gates %b without a marker", name, gates)
			}
		}
	}
}
