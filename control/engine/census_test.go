package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/list"
	"weir/filter/key"
)

// Flows of shapes that cannot be merged are spared, the rarest first.
func TestSpare(t *testing.T) {
	var far, common []key.Key
	from := netip.MustParseAddr("10.1.2.3")
	for f := range key.Fields(16) {
		for _, src := range []uint8{0, 16, 32} {
			for _, dst := range []uint8{0, 16, 32} {
				s := key.Shape{Fields: f &^ key.FieldV6, SrcBits: src, DstBits: dst}
				if !s.Tuple() {
					continue
				}
				k, _ := s.Of(key.Tuple{Src: from, Dst: from, HasPorts: true, Proto: 6})
				far = append(far, k)
			}
		}
	}
	for port := range uint16(50) {
		k, _ := key.Shape{Fields: key.FieldDstPort, SrcBits: 24, DstBits: 24}.Of(key.Tuple{Src: from, Dst: from, HasPorts: true, DstPort: port})
		common = append(common, k)
	}
	lists := []List{ofKeys(List{Name: "few"}, common...), ofKeys(List{Name: "many"}, slices.Concat(far, common)...)}
	if spare := NewCensus(lists).Spare(1); len(spare) != len(common) {
		t.Errorf("beside a list that does not fit, %d flows are spared", len(spare))
	}
	if Fits(lists) == nil {
		t.Fatal("the lists fit")
	}
	spare := NewCensus(lists).Spare(2)
	if len(spare) == 0 || len(spare) > len(far)/2 {
		t.Errorf("%d of %d flows are spared", len(spare), len(far))
	}
	for _, k := range spare {
		if slices.Contains(common, k) {
			t.Errorf("%v is spared, which is not rare", k)
		}
	}
	lists[1].Contents, _ = lists[1].Contents.Apply(list.Delta{Remove: list.SetOf(spare...)})
	if err := Fits(lists); err != nil {
		t.Errorf("without those that are spared: %v", err)
	}
	if n := NewCensus(lists).Spare(2); n != nil {
		t.Errorf("of those that fit, %d are spared", len(n))
	}
}

// One list of many shapes costs the others nothing.
func TestSpareOfMany(t *testing.T) {
	lists := []List{ofKeys(List{Name: "shapes"}, manyShapes()...)}
	for i := range 180 {
		lists = append(lists, ofKeys(List{Name: fmt.Sprint(i)}, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32))))
	}
	for round := range 2 {
		began := time.Now()
		c := NewCensus(lists)
		for n := range lists {
			if spare := c.Spare(uint16(n + 1)); len(spare) > 0 != (n == 0) {
				t.Errorf("of list %d, %d flows are spared", n+1, len(spare))
			}
		}
		_ = c.Fits()
		t.Logf("round %d: %v", round, time.Since(began))
	}
}

// manyShapes returns flows of 648 shapes, in both families.
func manyShapes() (all []key.Key) {
	for n, from := range map[int]string{16: "10.1.2.3", 112: "2001:db8::1:2:3"} {
		a := netip.MustParseAddr(from)
		for src := range 18 {
			for dst := range 18 {
				s := key.Shape{Fields: key.FieldProto | key.FieldDstPort, SrcBits: uint8(n - 1 + src), DstBits: uint8(n - 1 + dst)}
				if a.Is6() {
					s.Fields |= key.FieldV6
				}
				s.SrcBits, s.DstBits = min(s.SrcBits, uint8(a.BitLen())), min(s.DstBits, uint8(a.BitLen()))
				k, _ := s.Of(key.Tuple{Src: a, Dst: a, HasPorts: true, Proto: 6, DstPort: 80})
				all = append(all, k)
			}
		}
	}
	return all
}

// The census decides as a build does.
func TestCensus(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fits := 0
	for range 40 {
		var lists []List
		for i := range 1 + rng.IntN(4) {
			l := List{Name: fmt.Sprint(i), Allow: rng.IntN(2) == 0, Direction: Direction(rng.IntN(4))}
			var keys []key.Key
			for s := range randomShapes(rng, rng.IntN(300), 5, 33) {
				k, _ := s.Of(key.Tuple{Src: netip.MustParseAddr("10.1.2.3"), Dst: netip.MustParseAddr("10.3.2.1"), HasPorts: true, Proto: 6})
				keys = append(keys, k)
			}
			for range rng.IntN(40) {
				keys = append(keys, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(rng.IntN(256)), 0, 0}), 8+rng.IntN(25)).Masked()))
			}
			l.Contents = list.SetOf(keys...)
			lists = append(lists, l)
		}
		_, want := Reference(lists, Config{Outgoing: true})
		c := NewCensus(make([]List, len(lists)))
		for i, l := range lists {
			c.lists[i] = l
			c.lists[i].Contents = nil
			c.Set(uint16(i+1), l.Contents)
		}
		if got := c.Fits(); (got == nil) != (want == nil) || got != nil && !strings.HasSuffix(want.Error(), got.Error()) {
			t.Errorf("%v, want %v", got, want)
		}
		if want == nil {
			fits++
		}
	}
	if fits == 0 || fits == 40 {
		t.Errorf("%d fit: the test tests little", fits)
	}
}
