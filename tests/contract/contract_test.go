// Package contract compares the data plane in C with its twins in Go.
package contract

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// random draws tables and packets from a small world, so that they meet.
type random struct{ *rand.Rand }

func newRandom(t testing.TB) random {
	t.Helper()
	return random{seed.Secrets(t)}
}

func (r random) addr4() netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, byte(r.IntN(4)), byte(r.IntN(256))})
}

func (r random) addr6() netip.Addr {
	a := [16]byte{0x20, 1, 0xd, 0xb8, 0, byte(r.IntN(4)), 0, byte(r.IntN(2))}
	a[15] = byte(r.IntN(64))
	return netip.AddrFrom16(a)
}

func (r random) addr(v6 bool) netip.Addr {
	if v6 {
		return r.addr6()
	}
	return r.addr4()
}

func (r random) pick(n ...int) int { return n[r.IntN(len(n))] }

func (r random) tuple() key.Tuple {
	v6 := r.IntN(2) == 0
	t := key.Tuple{Src: r.addr(v6), Dst: r.addr(v6), Proto: uint8(r.pick(6, 17, 132, 1, 58, 47, 33, 136))}
	if key.HasPorts(t.Proto) {
		t.HasPorts = r.IntN(4) > 0
	}
	if t.HasPorts {
		t.SrcPort, t.DstPort = uint16(r.pick(67, 68, 80, 1234)), uint16(r.pick(67, 68, 80, 443))
	}
	return t
}

func (r random) shape(v6 bool) key.Shape {
	s := key.Shape{Fields: key.Fields(r.IntN(8) << 1)}
	lengths := []int{0, 8, 20, 24, 27, 32}
	if v6 {
		s.Fields |= key.FieldV6
		lengths = []int{0, 20, 32, 48, 56, 64, 128}
	}
	s.SrcBits, s.DstBits = uint8(r.pick(lengths...)), uint8(r.pick(lengths...))
	return s
}

// entries returns entries that packets of the small world may match. Wide ones
// are rare.
func (r random) entries(n int) list.Entries {
	var e list.Entries
	shapes := map[bool][]key.Shape{}
	for range 12 {
		for _, v6 := range []bool{false, true} {
			shapes[v6] = append(shapes[v6], r.shape(v6))
		}
	}
	for range n {
		v6 := r.IntN(2) == 0
		switch r.IntN(3) {
		case 0:
			if v6 {
				e.V6 = append(e.V6, netip.PrefixFrom(r.addr6(), r.pick(62, 64, 120, 126, 127, 128, 128, 128)).Masked())
			} else {
				p := netip.PrefixFrom(r.addr4(), r.pick(26, 29, 30, 31, 32, 32, 32)).Masked()
				b := p.Addr().As4()
				e.V4 = append(e.V4, list.V4(uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3]), p.Bits()))
			}
		default:
			t := r.tuple()
			t.HasPorts = true
			s := shapes[t.Src.Is6()][r.IntN(12)]
			if s.SrcBits+s.DstBits < 24 && r.IntN(8) > 0 {
				continue
			}
			if k, ok := s.Of(t); ok {
				e.Flows = append(e.Flows, k)
			}
		}
	}
	return e
}

// config cycles through all modes and policies with i, so that chance misses
// none; the failsafe is random.
func (r random) config(i int) engine.Config {
	c := engine.Config{
		Policy: verdict.Policy{DropMalformed: i/2%2 == 0, DropNotIP: i/3%2 == 0, Inner: i/2%3 == 0, DHCPServer: i/5%2 == 0, Monitor: i/4%4 == 0},
		Mode:   membership.Mode(i % 2),
	}
	for range i % 3 {
		c.FailsafePorts = append(c.FailsafePorts, verdict.FailsafePort{Proto: uint8(r.pick(6, 17)), Port: uint16(r.pick(80, 443, 9))})
		c.FailsafePrefixes = append(c.FailsafePrefixes,
			netip.PrefixFrom(r.addr4(), r.pick(28, 32)).Masked(), netip.PrefixFrom(r.addr6(), r.pick(124, 128)).Masked())
	}
	for kind := packet.OtherICMP + 1; kind < packet.NumICMP; kind++ {
		if r.IntN(3) == 0 {
			c.FailsafeICMP = append(c.FailsafeICMP, verdict.FailsafeICMP{ICMP: kind})
		}
	}
	return c
}

// mutate breaks a valid frame in one of the ways that the parser must see, or
// in a random one.
func (r random) mutate(f []byte) []byte {
	f = append([]byte(nil), f...)
	switch r.IntN(12) {
	case 0:
		return f[:r.IntN(len(f)+1)]
	case 1:
		for range 1 + r.IntN(4) {
			f[r.IntN(len(f))] = byte(r.IntN(256))
		}
	case 2: // VLAN tags, up to one too many
		for range 1 + r.IntN(packet.MaxVLANTags+1) {
			proto := [][]byte{{0x81, 0}, {0x88, 0xa8}}[r.IntN(2)]
			f = append(f[:12:12], append(append(proto, 0, byte(r.IntN(256))), f[12:]...)...)
		}
	case 3: // options, lengths
		f[14+r.IntN(8)] = byte(r.IntN(256))
	case 4: // extension headers
		if f[12] == 0x86 {
			return r.extend(f)
		}
	case 5: // neighbour discovery
		if f[12] == 0x86 {
			f[20], f[21], f[54], f[55] = 58, 255, byte(132+r.IntN(8)), byte(r.pick(0, 0, 0, 1))
			if r.IntN(4) == 0 { // from a link-local address
				f[22], f[23] = 0xfe, 0x80
			}
			if r.IntN(8) == 0 {
				f[19] = byte(r.IntN(48))
			}
		}
	case 6:
		return r.encapsulate(f)
	case 7:
		return r.tunnel(f)
	case 8: // another protocol
		protos := []int{0x22ea, 0x8808, 0x8809, 0x8863, 0x888e, 0x88cc, 0x88f5, 0x88f6, 0x88f7, 0x8902, 0x806, 0x88e7, 0x894f, 1501, 1500, 60}
		proto := r.pick(protos...)
		f[12], f[13] = byte(proto>>8), byte(proto)
		if llc := r.IntN(6); llc < 5 {
			copy(f[14:], [][]byte{{0x42, 0x42, 3}, {0xfe, 0xfe, 3}, {0xaa, 0xaa, 3, 0, 0, 0x0c}, {0xaa, 0xaa, 3, 0, 0, 0}, {0x42, 0x42, 4}}[llc])
		}
	case 9, 10: // ICMP
		if f[12] == 0x86 {
			f[20], f[54] = uint8(r.pick(58, 58, 58, 1)), byte(r.pick(0, 1, 2, 3, 4, 5, 8, 127, 128, 129, 130))
		} else {
			f[23], f[34] = uint8(r.pick(1, 1, 1, 58)), byte(r.pick(0, 1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 128))
		}
	}
	return f
}

// encapsulate puts a packet into PPPoE, MPLS or both. Some stacks have a label too
// many, or no last one.
func (r random) encapsulate(f []byte) []byte {
	proto := uint16(f[12])<<8 | uint16(f[13])
	header := []byte(nil)
	pppoe := r.IntN(2) == 0
	ppp := map[uint16][]byte{0x800: {0, 0x21}, 0x86dd: {0, 0x57}}[proto]
	switch r.IntN(8) {
	case 0:
		ppp = []byte{0xc0, 0x21}
	case 1:
		if ppp != nil {
			ppp = ppp[1:]
		}
	}
	if labels := r.pick(0, 1, 1, 2, 3, packet.MaxMPLSLabels, packet.MaxMPLSLabels+1); labels > 0 || !pppoe {
		for range labels {
			header = append(header, 0, byte(r.IntN(256)), byte(r.IntN(256))&^1, 64)
		}
		if labels > 0 && r.IntN(16) > 0 {
			header[len(header)-2] |= 1
		}
		ppp, proto = []byte{2, byte(r.pick(0x81, 0x83))}, uint16(r.pick(0x8847, 0x8848))
	}
	if pppoe {
		header = slices.Concat([]byte{0x11, 0, 0, 7, 0, byte(r.IntN(256))}, ppp, header)
		proto = 0x8864
	}
	return slices.Concat(f[:12], []byte{byte(proto >> 8), byte(proto)}, header, f[14:])
}

// extend inserts a chain of extension headers into an IPv6 packet. Its lengths
// are mostly right; otherwise a header is longer or shorter than its length
// field, or the packet, or the frame, ends within the chain.
func (r random) extend(f []byte) []byte {
	for range r.pick(1, 1, 2, 3, 6, 16, 17) {
		kind := r.pick(0, 43, 44, 51, 60, 135, 139, 140)
		size := 8 * r.pick(1, 1, 1, 2, 5, 8, 60, 128)
		ext := make([]byte, size)
		switch kind {
		case 44:
			ext = ext[:8]
			ext[1] = byte(r.pick(0, 0, 255)) // reserved
			ext[3] = byte(r.pick(0, 0, 0, 1, 6, 8, 255))
			ext[2] = byte(r.pick(0, 0, 0, 1))
		case 51: // in units of 4 bytes, where 2 units do not count
			ext = ext[:size-4*r.IntN(2)]
			ext[1] = byte(len(ext)/4 - 2)
		default:
			ext[1] = byte(size/8 - 1)
		}
		if r.IntN(16) == 0 {
			ext[1] += byte(r.pick(1, 2, 255))
		}
		ext[0], f[20] = f[20], byte(kind)
		f = slices.Concat(f[:54], ext, f[54:])
	}
	payload := len(f) - 54
	if r.IntN(4) == 0 {
		payload = r.IntN(payload + 1)
	}
	f[18], f[19] = byte(payload>>8), byte(payload)
	if r.IntN(4) == 0 {
		f = f[:54+r.IntN(len(f)-54)]
	}
	return f
}

// round is a part of a test that makes many programs. What it cleans up is cleaned up at its end,
// since a process may open few files.
type round struct {
	testing.TB
	cleanups []func()
}

func newRound(t testing.TB) *round {
	r := &round{TB: t}
	t.Cleanup(r.end)
	return r
}

// Cleanup has the end of the round call a function.
func (r *round) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *round) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	r.cleanups = nil
}

// engines builds one generation in the kernel and returns both engines over it.
func engines(t testing.TB, lists []engine.List, c engine.Config) (*engine.Generation, *replay.Kernel) {
	t.Helper()
	of := t
	if r, ok := t.(*round); ok {
		of = r.TB
	}
	seed.Secrets(of)
	g := built(t, lists, c)
	k, err := replay.NewKernel(g, len(lists))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { k.Close() })
	return g, k
}

// built builds a generation, until the test ends.
func built(t testing.TB, lists []engine.List, c engine.Config) *engine.Generation {
	t.Helper()
	g, err := engine.Build(lists, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// newStats makes counters for some lists, until the test ends.
func newStats(t testing.TB, lists int) *loader.Stats {
	t.Helper()
	s, err := loader.NewStats(lists)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// load loads the program of a generation for test runs, until the test ends.
func load(t testing.TB, g *engine.Generation, s *loader.Stats) *loader.Program {
	t.Helper()
	p, err := g.Load(s)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	if err := s.Take(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// penalties opens the memory of a generation's trackers, with its table of penalties, until the test ends.
func penalties(t testing.TB, g *engine.Generation, s *loader.Stats) (*tracker.Memory, *penalty.Table) {
	t.Helper()
	m, err := tracker.Open(g, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	table, err := penalty.NewTable(m.Penalties)
	if err != nil {
		t.Fatal(err)
	}
	return m, table
}

// agree returns the outcome for a frame, on which both engines must agree.
func agree(g *engine.Generation, k *replay.Kernel, frame []byte) (verdict.Outcome, error) {
	want := g.Decide(frame)
	got, err := k.Decide(frame)
	if err == nil && got != want {
		err = fmt.Errorf("kernel %+v, reference %+v", got, want)
	}
	return got, err
}

func TestRandomTablesAndPackets(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r := newRandom(t)
	seen := map[string]int{}
	// There are no penalties, loops, policers and connections here; see TestPenalties,
	// TestLoopVerdicts, TestPolicer and TestReplies.
	elsewhere := []verdict.Reason{verdict.RateLimited, verdict.Heavy, verdict.Looped, verdict.Policed, verdict.Reply, verdict.Pattern}
	unseen := func() (all []verdict.Reason) {
		for r := range verdict.NumReasons {
			if seen[r.String()+"/pass"]+seen[r.String()+"/drop"] == 0 && !slices.Contains(elsewhere, r) {
				all = append(all, r)
			}
		}
		return all
	}
	// Some reasons are so rare that a few seeds need more tables to have them all.
	tables := long.Or(16, 32)
	for i := 0; i < tables || i < 4*tables && unseen() != nil; i++ {
		var lists []engine.List
		for i := range 3 {
			lists = append(lists, engine.List{
				Name: fmt.Sprint(i), Allow: i == 2, Direction: engine.Direction(r.IntN(3)), Contents: r.entries(r.pick(0, 5, 100, 1000)).Set(),
			})
		}
		c := r.config(i)
		c.NearCache = r.machine(t, i).near
		round := newRound(t)
		g, k := engines(round, lists, c)
		for range 2000 {
			frame := r.mutate(packet.Frame(r.tuple()))
			o, err := agree(g, k, frame)
			if err != nil {
				t.Fatalf("%v: % x", err, frame)
			}
			seen[o.Reason.String()+"/"+o.Action.String()]++
		}
		round.end()
	}
	t.Log(seen)
	for _, r := range unseen() {
		t.Errorf("no packet left as %v: the test is too narrow", r)
	}
}

// Frames in all their variety, where each field of a packet decides between
// lists: whatever C and Go read differently shows.
func TestRandomFrames(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	g, k := engines(t, richLists(), engine.Config{Policy: verdict.Policy{DropMalformed: true}})
	seen := map[verdict.Reason]int{}
	for range 200_000 {
		frame := packet.Frame(r.anyTuple(r.IntN(3) > 0))
		for range r.IntN(3) {
			if len(frame) >= 60 {
				frame = r.mutate(frame)
			}
		}
		o, err := agree(g, k, frame)
		if err != nil {
			t.Fatalf("%v: % x", err, frame)
		}
		seen[o.Reason]++
	}
	t.Log(seen)
	// Without failsafe and monitor mode, of TCP, the others are a rare chance.
	for _, r := range []verdict.Reason{
		verdict.Clean, verdict.NotIP, verdict.Link, verdict.ARP, verdict.ND, verdict.Allowed, verdict.Blocked,
		verdict.Truncated, verdict.Malformed, verdict.Unparsed,
	} {
		if seen[r] == 0 {
			t.Errorf("no packet left as %v: the test is too narrow", r)
		}
	}
}
