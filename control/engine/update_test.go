package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/control/list"
	"weir/filter/key"
)

// randomEntries draws from a small world, so that lists overlap.
func randomEntries(r *rand.Rand, n int) list.Entries {
	var e list.Entries
	for range n {
		e.V4 = append(e.V4, list.V4(uint32(192<<24|2<<8|r.IntN(64)<<2)&^3, 30), list.V4(uint32(10<<24|r.IntN(256)), 32))
		a := netip.MustParseAddr("2001:db8::").As16()
		a[15] = byte(r.IntN(100))
		e.V6 = append(e.V6, netip.PrefixFrom(netip.AddrFrom16(a), 128))
		k, _ := key.Shape{Fields: key.FieldDstPort | key.FieldProto, SrcBits: 32}.Of(key.Tuple{
			Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(64))}), Dst: netip.IPv4Unspecified(), Proto: 6, HasPorts: true, DstPort: uint16(r.IntN(3)),
		})
		e.Flows = append(e.Flows, k)
	}
	return e
}

// holds gives what a list of the store holds, by key.
func holds(s *Store, n uint16) map[key.Key]bool {
	all := make(map[key.Key]bool)
	changes, _ := s.Difference(n, list.Entries{}, 1<<30)
	for _, c := range changes {
		all[c.Key] = true
	}
	return all
}

// Whether by changes or as a whole, the list then holds what it was given, the
// others what they had, and the verdicts are those of a store that never held
// anything else.
func TestUpdate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, most := range []int{1 << 20, 20, 0} {
		s := NewStore()
		lists := []List{{Name: "a", Direction: Both}, {Name: "b"}, {Name: "c", Allow: true}}
		now := make([]list.Entries, len(lists))
		for i, l := range lists {
			now[i] = randomEntries(r, 50)
			if _, err := s.AddList(l, now[i]); err != nil {
				t.Fatal(err)
			}
		}
		g, err := Reference(s, Config{})
		if err != nil {
			t.Fatal(err)
		}
		inPlace, whole := 0, 0
		for range 30 {
			i := r.IntN(len(lists))
			n := uint16(i + 1)
			next := randomEntries(r, 5)
			next.V4 = append(next.V4, now[i].V4[r.IntN(len(now[i].V4)):]...)
			now[i] = next
			changes, ok := s.Difference(n, next, most)
			if ok && len(changes) > most {
				t.Fatalf("%d changes, where the most are %d", len(changes), most)
			}
			if ok {
				if _, err = g.Apply(changes); err == nil {
					inPlace++
				}
			}
			if !ok || err != nil {
				if !ok {
					s.Replace(n, next)
				}
				whole++
				if g, err = Reference(s, Config{}); err != nil {
					t.Fatal(err)
				}
			}
			fresh := NewStore()
			for j, l := range lists {
				if _, err := fresh.AddList(l, now[j]); err != nil {
					t.Fatal(err)
				}
			}
			want, err := Reference(fresh, Config{})
			if err != nil {
				t.Fatal(err)
			}
			for j := range lists {
				if a, b := holds(s, uint16(j+1)), holds(fresh, uint16(j+1)); len(a) != len(b) {
					t.Fatalf("list %d holds %d keys, want %d", j+1, len(a), len(b))
				}
			}
			for range 200 {
				p := key.Tuple{
					Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(256))}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(256))}),
					Proto: 6, HasPorts: true, DstPort: uint16(r.IntN(4)),
				}
				gotList, gotBlock := g.Block.Match(p)
				wantList, wantBlock := want.Block.Match(p)
				_, gotAllow := g.Allow.Match(p)
				_, wantAllow := want.Allow.Match(p)
				if gotBlock != wantBlock || gotAllow != wantAllow || gotList != wantList {
					t.Fatalf("%+v: list %d %t, allowed %t; want %d %t, %t", p, gotList, gotBlock, gotAllow, wantList, wantBlock, wantAllow)
				}
			}
		}
		t.Logf("at most %d changes: %d updates in place, %d as a whole", most, inPlace, whole)
		if most == 0 && inPlace > 5 || most > 1000 && inPlace == 0 {
			t.Error("the limit is not kept")
		}
	}
}
