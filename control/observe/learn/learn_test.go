package learn

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/tests/seed"
)

const (
	v6   = key.FieldV6
	flow = key.FieldSrcPort | key.FieldDstPort | key.FieldProto
)

// newSet returns an approximate set with room for n keys of each shape, and one
// key in each that no test uses.
func newSet(t testing.TB, n int, bitsPerKey float64, hot int, shapes ...key.Shape) *membership.Set {
	t.Helper()
	return filledSet(t, 1, 0, n, bitsPerKey, hot, shapes...)
}

// filledSet is newSet with a seed, and filled: it has that many sources of IPv4 that no test
// uses.
func filledSet(t testing.TB, seed uint64, filled, n int, bitsPerKey float64, hot int, shapes ...key.Shape) *membership.Set {
	t.Helper()
	census := membership.Census{Keys: make(map[key.Shape]int)}
	for _, s := range shapes {
		census.Keys[s] = n
	}
	l, err := membership.PlanLayout(census, membership.Approximate, bitsPerKey, secretOf(seed))
	if err != nil {
		t.Fatal(err)
	}
	l.PlanHot(hot)
	s, err := membership.NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	s.Listed = func(key.Key) bool { return false }
	c := membership.Column{Shape: src32, Lists: make([]uint16, filled)}
	for i := range filled {
		c.Keys, c.Lists[i] = source(1<<31+1+i).Append(c.Keys), 1
	}
	if filled > 0 {
		if err := s.Fill([]membership.Column{c}); err != nil {
			t.Fatal(err)
		}
	}
	for _, shape := range shapes {
		k, _ := shape.Of(key.Tuple{Src: address(shape.V6(), 1<<31), Dst: address(shape.V6(), 1<<31), HasPorts: true})
		if err := s.Add(k, 1); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// address returns the i-th address of a family.
func address(v6 bool, i uint32) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 15: 1})
	}
	return netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
}

func source(i int) key.Key {
	return key.Source(netip.PrefixFrom(address(false, uint32(i)), 32))
}

func fiveTuple(src, dst string, proto uint8, srcPort, dstPort uint16) key.Key {
	t := key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: proto, HasPorts: true, SrcPort: srcPort, DstPort: dstPort}
	s := key.Shape{Fields: flow, SrcBits: 32, DstBits: 32}
	if t.Src.Is6() {
		s = key.Shape{Fields: flow | v6, SrcBits: 128, DstBits: 128}
	}
	k, _ := s.Of(t)
	return k
}

var (
	src32 = key.Shape{SrcBits: 32}
	dst32 = key.Shape{DstBits: 32}
	src24 = key.Shape{SrcBits: 24}
	flow4 = key.Shape{Fields: flow, SrcBits: 32, DstBits: 32}
	flow6 = key.Shape{Fields: flow | v6, SrcBits: 128, DstBits: 128}
)

func rates(w Weights) map[string]float64 {
	r := make(map[string]float64)
	for _, e := range w.Elements {
		r[e.Key.String()] = e.Rate
	}
	return r
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Abs(want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// An observation counts half after a half-life, whatever the number of
// intervals; a constant rate is exact from the first interval on.
func TestHalfLife(t *testing.T) {
	for _, steps := range []int{1, 2, 5, 20} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			l := New(Config{HalfLife: 10 * time.Second, Trackers: []key.Shape{src32}})
			s := newSet(t, 10, 12, 0, src32)
			step := func(span time.Duration, steady, now uint64) map[string]float64 {
				var w Weights
				for range steps {
					n := func(a uint64) uint64 { return a * 1000 * uint64(span/time.Second) / uint64(steps) }
					i := Interval{Length: span / time.Duration(steps), Packets: n(100)}
					for k, rate := range []uint64{steady, now} {
						if rate > 0 {
							i.Flows = append(i.Flows, Flow{source(k), n(rate)})
						}
					}
					w = l.Learn(i, s)
				}
				return rates(w)
			}
			r := step(10*time.Second, 3, 0)
			near(t, "the steady rate at first", r["0.0.0.0"], 3*1000)
			for range 40 { // until the beginning is forgotten
				r = step(10*time.Second, 3, 8)
			}
			near(t, "the rate of the other flow", r["0.0.0.1"], 8*1000)
			r = step(10*time.Second, 3, 0)
			near(t, "the rate after a half-life", r["0.0.0.1"], 4*1000)
			r = step(20*time.Second, 3, 0)
			near(t, "the rate after three", r["0.0.0.1"], 1000)
			near(t, "the steady rate", r["0.0.0.0"], 3*1000)
			near(t, "the rate of all packets", l.packets, 100*1000)
		})
	}
}

// A flow counts for the element of each shape that its key determines.
func TestElementsOfShapes(t *testing.T) {
	all := []key.Shape{src32, src24, dst32, {}, {SrcBits: 24, Fields: key.FieldDstPort}, {DstBits: 32, Fields: key.FieldProto}, flow4,
		{Fields: v6, SrcBits: 128}, {Fields: v6, SrcBits: 48}, {Fields: v6, DstBits: 64}, flow6}
	tcp := fiveTuple("192.0.2.1", "198.51.100.7", 6, 1234, 443)
	icmp := fiveTuple("192.0.2.1", "198.51.100.7", 1, 0, 0)
	tcp6 := fiveTuple("2001:db8::1", "2001:db8:1::2", 6, 1, 2)
	for _, c := range []struct {
		name     string
		trackers []key.Shape
		flows    []Flow
		want     map[string]float64 // packets
	}{
		{"source", []key.Shape{src32}, []Flow{{key.Source(netip.MustParsePrefix("192.0.2.1/32")), 5}, {key.Source(netip.MustParsePrefix("192.0.2.9/32")), 2}},
			map[string]float64{"192.0.2.1": 5, "192.0.2.9": 2, "192.0.2.0/24": 7, "0.0.0.0/0": 7}},
		{"network", []key.Shape{src24}, []Flow{{key.Source(netip.MustParsePrefix("192.0.2.0/24")), 5}},
			map[string]float64{"192.0.2.0/24": 5, "0.0.0.0/0": 5}},
		{"destination", []key.Shape{dst32}, []Flow{{key.Destination(netip.MustParsePrefix("198.51.100.7/32")), 5}},
			map[string]float64{"> 198.51.100.7": 5, "0.0.0.0/0": 5}},
		{"five-tuple", []key.Shape{flow4, flow6}, []Flow{{tcp, 5}},
			map[string]float64{"192.0.2.1": 5, "192.0.2.0/24": 5, "> 198.51.100.7": 5, "0.0.0.0/0": 5, "any 192.0.2.0/24:* > 0.0.0.0/0:443": 5,
				"tcp 0.0.0.0/0:* > 198.51.100.7:*": 5, "tcp 192.0.2.1:1234 > 198.51.100.7:443": 5}},
		{"no ports", []key.Shape{flow4, flow6}, []Flow{{icmp, 5}},
			map[string]float64{"192.0.2.1": 5, "192.0.2.0/24": 5, "> 198.51.100.7": 5, "0.0.0.0/0": 5, "icmp 0.0.0.0/0:* > 198.51.100.7:*": 5}},
		{"IPv6", []key.Shape{flow4, flow6}, []Flow{{tcp6, 5}},
			map[string]float64{"2001:db8::1": 5, "2001:db8::/48": 5, "> 2001:db8:1::/64": 5, "tcp [2001:db8::1]:1 > [2001:db8:1::2]:2": 5}},
		{"no packet counts twice", []key.Shape{flow4, flow6, src32}, []Flow{{tcp, 5}, {key.Source(netip.MustParsePrefix("192.0.2.1/32")), 6}},
			map[string]float64{"192.0.2.1": 6, "192.0.2.0/24": 6, "> 198.51.100.7": 5, "0.0.0.0/0": 6, "any 192.0.2.0/24:* > 0.0.0.0/0:443": 5,
				"tcp 0.0.0.0/0:* > 198.51.100.7:*": 5, "tcp 192.0.2.1:1234 > 198.51.100.7:443": 5}},
		{"another tracker's", []key.Shape{src32}, []Flow{{tcp, 5}}, map[string]float64{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := New(Config{Trackers: c.trackers})
			got := rates(l.Learn(Interval{Length: time.Second, Packets: 100, Flows: c.flows}, newSet(t, 10, 12, 0, all...)))
			if len(got) != len(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			for k, want := range c.want {
				near(t, k, got[k], want)
			}
			// Elements of unused shapes are dropped.
			got = rates(l.Learn(Interval{Length: time.Millisecond, Packets: 1}, newSet(t, 10, 12, 0, src24)))
			for k := range got {
				if k != "192.0.2.0/24" {
					t.Errorf("%s is still there", k)
				}
			}
		})
	}
}

// At any time at most twice as many elements are remembered as have weights,
// and these are the hottest.
func TestBoundedMemory(t *testing.T) {
	const most = 100
	l := New(Config{Elements: most, Trackers: []key.Shape{src32}})
	s := newSet(t, 10, 12, 0, src32, src24)
	for n := range 50 {
		i := Interval{Length: time.Second, Packets: 1e6}
		for f := range 20 * most {
			k := source(1_000_000*(n+1) + f*256) // never seen again, and alone in its network
			if f < 40 {
				k = source(f * 256) // always there
			}
			i.Flows = append(i.Flows, Flow{k, uint64(1000 - f/10)})
		}
		w := l.Learn(i, s)
		if len(w.Elements) > most || len(l.elements) > 2*most || len(l.hottest) != len(l.elements) {
			t.Fatalf("%d weights, %d and %d elements, want %d and %d at most", len(w.Elements), len(l.elements), len(l.hottest), most, 2*most)
		}
		if !slices.IsSortedFunc(w.Elements, func(a, b Weight) int { return int(b.Rate - a.Rate) }) {
			t.Fatal("the elements are not sorted by their rates")
		}
		found := 0
		for _, e := range w.Elements {
			if i := e.Key.Src.As4(); i[0] == 0 && int(i[1])<<8|int(i[2]) < 40 {
				found++
			}
		}
		if found != 80 { // in both shapes
			t.Fatalf("interval %d: %d of the 80 hottest elements have weights", n, found)
		}
	}
}

// An element that is no longer seen is dropped below one packet per half-life.
func TestColdElementsLeave(t *testing.T) {
	l := New(Config{HalfLife: time.Second, Trackers: []key.Shape{src32}})
	s := newSet(t, 10, 12, 0, src32)
	idle := Interval{Length: time.Second, Packets: 1 << 20}
	for range 60 {
		l.Learn(idle, s)
	}
	l.Learn(Interval{Length: time.Second, Packets: 1 << 20, Flows: []Flow{{source(1), 1 << 10}, {source(2), 1}}}, s)
	for halved := 1; halved <= 9; halved++ {
		if w := l.Learn(idle, s); len(w.Elements) != 1 || w.Elements[0].Key != source(1) {
			t.Fatalf("after %d half-lives: %v", halved, w.Elements)
		}
	}
	if w := l.Learn(idle, s); len(w.Elements) != 0 || len(l.elements) != 0 {
		t.Errorf("%v with half a packet in a half-life", w.Elements)
	}
}

// The same intervals result in the same weights, even with ties.
func TestLearnIsDetermined(t *testing.T) {
	random := seed.New(t)
	s := newSet(t, 1000, 14, 0, src32, src24)
	var first []Weight
	for range 5 {
		l := New(Config{Elements: 50, Trackers: []key.Shape{src32}})
		i := Interval{Length: time.Second, Packets: 1e6}
		for _, f := range random.Perm(300) {
			i.Flows = append(i.Flows, Flow{source(f * 100), uint64(1000 * (1 + f%3))})
		}
		w := l.Learn(i, s)
		if first == nil {
			first = w.Elements
		}
		if !slices.Equal(first, w.Elements) {
			t.Fatal("the order of the flows matters")
		}
	}
}

// An interval without length is ignored.
func TestLearnIgnoresNoLength(t *testing.T) {
	l := New(Config{Trackers: []key.Shape{src32}})
	w := l.Learn(Interval{Packets: 10, Flows: []Flow{{source(1), 5}}}, newSet(t, 10, 12, 0, src32))
	if len(w.Elements) != 0 || w.Predicted != 0 {
		t.Errorf("%+v", w)
	}
}

// One interval of a busy host: as many flows as have weights, in two shapes.
func BenchmarkLearn(b *testing.B) {
	l := New(Config{Trackers: []key.Shape{src32}})
	s := newSet(b, 1_000_000, 14, DefaultElements, src32, src24)
	r := rand.New(rand.NewPCG(1, 2))
	z := rand.NewZipf(r, 1.2, 1, 1<<24)
	i := Interval{Length: time.Second, Packets: 1e6}
	seen := make(map[uint64]bool)
	for len(i.Flows) < DefaultElements {
		if n := z.Uint64(); !seen[n] {
			seen[n] = true
			i.Flows = append(i.Flows, Flow{source(int(n * 256)), uint64(1e6 / float64(n+1))})
		}
	}
	for b.Loop() {
		l.Learn(i, s)
	}
}

// secretOf returns the secret of a number.
func secretOf(n uint64) *hash.Secret {
	var seed hash.Seed
	binary.LittleEndian.PutUint64(seed[:], n)
	return hash.NewSecret(seed)
}
