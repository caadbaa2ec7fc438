package contract

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/control/capture"
	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/data"
	"weir/tests/lab"
)

// richLists returns lists with so many values of every field that a packet's
// outcome depends on everything the parser finds in it: if C and Go read a
// field differently, they probably return different lists.
func richLists() (lists []engine.List) {
	r := rand.New(rand.NewPCG(1, 2)) // fixed, so that a failing frame fails again
	add := func(name string, allow bool, share float64, keys ...key.Key) {
		var e list.Entries
		for _, k := range keys {
			if r.Float64() < share {
				e.Flows = append(e.Flows, k)
			}
		}
		lists = append(lists, engine.List{Name: name, Allow: allow, Contents: e.Set()})
	}
	// address is every prefix of 8 bits, and an address has any other bits.
	address := func(v6 bool, i int) netip.Addr {
		if v6 {
			return netip.AddrFrom16([16]byte{byte(i)})
		}
		return netip.AddrFrom4([4]byte{byte(i)})
	}
	var sources, destinations, ports, protos, pairs, allowed []key.Key
	for _, v6 := range []bool{false, true} {
		family := key.Fields(0)
		if v6 {
			family = key.FieldV6
		}
		for i := range 1 << 8 {
			p := netip.PrefixFrom(address(v6, i), 8)
			sources, destinations = append(sources, key.Source(p)), append(destinations, key.Destination(p))
			protos = append(protos, mustOf(key.Shape{Fields: family | key.FieldProto}, key.Tuple{Src: p.Addr(), Dst: p.Addr(), Proto: uint8(i)}))
			allowed = append(allowed, mustOf(key.Shape{Fields: family | key.FieldProto, DstBits: 8}, key.Tuple{Src: p.Addr(), Dst: p.Addr(), Proto: 6}))
		}
		for i := range 1 << 16 {
			t := key.Tuple{Src: address(v6, 0), Dst: address(v6, 0), HasPorts: true, SrcPort: uint16(i), DstPort: uint16(i)}
			ports = append(ports, mustOf(key.Shape{Fields: family | key.FieldSrcPort}, t))
			pairs = append(pairs, mustOf(key.Shape{Fields: family | key.FieldDstPort}, t))
		}
	}
	add("sources", false, 0.2, sources...)
	add("destinations", false, 0.2, destinations...)
	add("source ports", false, 0.3, ports...)
	add("destination ports", false, 0.3, pairs...)
	add("protocols", false, 0.3, protos...)
	add("allowed", true, 0.2, allowed...)
	return lists
}

// For any frame, the program in the kernel and its reference agree.
func FuzzParse(f *testing.F) {
	lab.Root(f)
	r := random{rand.New(rand.NewPCG(3, 4))}
	for range 500 {
		f.Add(r.mutate(packet.Frame(r.tuple())))
	}
	if dir, err := data.Find(); err == nil {
		addMalformed(f, dir+"/malformed")
	}
	g, kernel := engines(f, richLists(), engine.Config{Policy: verdict.Policy{
		DropMalformed:    true,
		FailsafePorts:    []verdict.FailsafePort{{Proto: 6, Port: 22}, {Proto: 17, Port: 4500}},
		FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
	}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if _, err := agree(g, kernel, frame); err != nil {
			t.Errorf("%v: % x", err, frame)
		}
	})
}

// addMalformed adds damaged packets that others have found worth to keep.
func addMalformed(f *testing.F, dir string) {
	const most = 512 // bytes; what follows the headers does not matter
	err := data.Walk(dir, func(_ string, r *capture.Reader) error {
		for p, err := range r.All() {
			if err != nil {
				return nil // cut short on purpose
			}
			if p.Number > 4 {
				break // more of the same
			}
			f.Add(append([]byte(nil), p.Data[:min(len(p.Data), most)]...))
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
}
