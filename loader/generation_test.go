package loader

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/fold"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/tests/lab"
	"weir/tests/long"
)

var (
	addrA = netip.MustParseAddr("192.0.2.1")
	addrB = netip.MustParseAddr("198.51.100.7")
)

// largest is a set with all that a program can have.
func largest() KeySet {
	s := KeySet{
		Lines: 1000, First: 5, Rest: 6, Buckets: 999, Marks6Lines: 77,
		GatesV4: 1 | gateSrc | gateDst, GatesV6: 1 | gateSrc | gateDst,
		N_v4: 32, N_v4Flow: 32, N_v6: 32, N_v6Flow: 32,
	}
	for kind, shapes := range [][]bpf.WeirShape{s.V4[:], s.V4Flow[:], s.V6[:], s.V6Flow[:]} {
		for i := range shapes {
			shapes[i] = bpf.WeirShape{
				Head:    uint32(i<<8 | kind),
				Gate:    1 << (i % 3),
				SrcMask: [4]uint32{^uint32(0), ^uint32(0), ^uint32(0), uint32(i)},
				DstMask: [4]uint32{uint32(i), 1, 2, 3},
			}
			if kind%2 == 1 {
				shapes[i].PortsMask, shapes[i].ProtoMask = ^uint32(0), 0xff<<24
			}
		}
	}
	return s
}

// withClasses returns a configuration with classes of networks, by sources and by destinations.
func withClasses(c Config) Config {
	c.Block.First, c.Block.Classes = maxClassedBits, 1
	c.BlockClasses = bytes.Repeat([]byte{0, 7, 19}, classes/3)
	for _, shapes := range [][]bpf.WeirShape{c.Block.V4[:], c.Block.V4Flow[:], c.Block.V6[:], c.Block.V6Flow[:]} {
		for i := range shapes {
			shapes[i].Head |= 128 << 16
		}
	}
	return c
}

// maxVerified bounds the instructions that the verifier walks for a program. Its limit is a
// million; the rest is left to other kernels, whose verifiers prune other paths.
const maxVerified = 420_000

func TestLoad(t *testing.T) {
	full := Config{Block: largest(), Allow: largest(), DropMalformed: true, Lists: 65535}
	full.Allow.Reach = Reach{Shift: 16, GatesV4: gateSrc | gateDst, GatesV6: gateSrc | gateDst}
	full.Failsafe = Failsafe{N_ports: 8, N_v4: 8, N_v6: 8}
	for i := range full.Failsafe.V4 {
		// Masks of 0 would match every packet, and the verifier would know.
		full.Failsafe.V4[i].Mask[0], full.Failsafe.V4[i].Addr[0] = ^uint32(0), uint32(i)
		full.Failsafe.V6[i].Mask[3], full.Failsafe.V6[i].Addr[3] = ^uint32(0), uint32(i)
		full.Failsafe.Ports[i].Port = uint16(i)
	}
	weighed := full
	weighed.Block.HotBuckets = 1 << 15
	for i := range MaxTrackers {
		weighed.Trackers = append(weighed.Trackers, Tracker{
			Lines: 4096, Buckets: 1024, ByBytes: uint8(i % 2), Tuple: uint8(i / 2), Punishes: 1,
		})
	}
	guarded := full
	for i := range MaxTrackers {
		g := Tracker{Lines: 4096, Buckets: 1024, Pairs: 4096, Tuple: 1, Punishes: 1, Unexempt: 1}
		if i%2 == 0 { // guards of sources
			g.V4.SrcMask[0] = ^uint32(0)
		}
		guarded.Trackers = append(guarded.Trackers, g)
	}
	looking := weighed
	node := loopNode{Words: 4, Confirm: 2}
	looking.Parts = []Part{node}
	edges := looking
	node.Edges = 1
	edges.Parts = []Part{node}
	approximate := full
	approximate.Block.Buckets = 0
	approximateWeighed := approximate
	approximateWeighed.Block.HotBuckets, approximateWeighed.Trackers = weighed.Block.HotBuckets, weighed.Trackers
	// All that there is at once.
	all := weighed
	node.Mask[0] = 1
	all.Inner = true
	packets := recording{Lines: 1000, Bits: 4}
	flows := firstSeen{Lines: 1000, Tuple: 1, Gap: 1, BySize: 1, ByList: 1, N_ports: 8}
	all.Parts, all.Words = []Part{node, flows, packets}, map[string][]uint64{bpf.WeirMapFirstLevels: make([]uint64, 9)}
	if lab.KernelAtLeast(t, 5, 14) {
		copies := forwarding{Ports: 3, Lines: 71, First: 5, Rest: 6}
		all.Parts, all.Maps = append(all.Parts, copies), copies.maps()
	}
	approximateAll := all
	approximateAll.Block = approximateWeighed.Block

	// Its flows remembered by cells.
	cells := flows
	cells.Sinks, cells.Values = 2, [8]uint8{1: 4, 2: 4, 3: 4, 4: 7, 5: 7, 6: 7, 7: 7}

	// The most that is matched inline.
	few, approximateFew := all, approximateAll
	for _, s := range []*KeySet{&few.Block, &approximateFew.Block} {
		s.N_v4, s.N_v4Flow, s.N_v6, s.N_v6Flow = 7, 7, 7, 7
	}
	fewOfAddresses := few
	fewOfAddresses.Block.N_v4 = 0 // but prefixes

	// The most that the lean path has.
	lean := full
	lean.Block = KeySet{N_prefixes: maxLeanLengths, PrefixShift: 2, Quotient: Quotient{
		KeyMask: 1<<QuotientKeyBits - 1, Scale: 8000, RemMask: 1<<10 - 1, ListBit: 11, LaneBits: 12, Lines: 1000, Buckets: 99,
	}}
	for i := range maxLeanLengths {
		lean.Block.Prefixes[i] = bpf.WeirPrefixLength{SrcMask: ^uint32(0) << i, Tail: uint64(i)}
	}
	lean.Trackers = append(slices.Clone(weighed.Trackers[1:1+maxLeanTrackers]), Tracker{Lines: 4096, Buckets: 1024, Dropped: 1})
	mostBits := recording{Lines: 1000, Bits: 6}
	lean.Parts, lean.Words = []Part{flows, mostBits}, all.Words
	fewOfAddresses.Block.N_prefixes, fewOfAddresses.Block.PrefixShift, fewOfAddresses.Block.Quotient = 7, 2, lean.Block.Quotient
	fewOfAddresses.Block.Prefixes = lean.Block.Prefixes
	manyPrefixes := fewOfAddresses
	manyPrefixes.Block.N_prefixes, manyPrefixes.Block.N_v4Flow, manyPrefixes.Block.N_v6, manyPrefixes.Block.N_v6Flow = 22, 3, 3, 0
	directed := lean // both sides
	directed.Block.Directory = Directory{Shift: 16, Parts: 64 - maxLeanLengths, Src: 1 << 16, Dst: 1 << 16}
	directed.Block.N_prefixes, directed.Block.Directory.Parts = 32, 64-32
	for i := range directed.Block.Prefixes {
		directed.Block.Prefixes[i] = bpf.WeirPrefixLength{SrcMask: ^uint32(0) << i, Tail: uint64(i)}
	}
	directedGeneral := directed
	directedGeneral.NoLean = true
	leanApproximate := lean
	leanApproximate.Block = approximateWeighed.Block
	leanApproximate.Block.N_v4, leanApproximate.Block.N_v4Flow = maxLeanHashed, 0
	leanApproximate.Block.N_v6, leanApproximate.Block.N_v6Flow = maxLeanHashed, 0
	leanFlows, approximateFlows := lean, leanApproximate
	leanFlows.Block = weighed.Block
	leanFlows.Block.N_prefixes, leanFlows.Block.PrefixShift = maxLeanLengths, lean.Block.PrefixShift
	leanFlows.Block.Quotient, leanFlows.Block.Prefixes = lean.Block.Quotient, lean.Block.Prefixes
	leanFlows.Block.N_v4, leanFlows.Block.N_v4Flow = 0, maxLeanHashed
	leanFlows.Block.N_v6, leanFlows.Block.N_v6Flow = 1, maxLeanHashed-1
	flowsOf := &approximateFlows.Block
	flowsOf.N_v4, flowsOf.N_v4Flow, flowsOf.N_v6, flowsOf.N_v6Flow = 1, maxLeanHashed-1, 0, maxLeanHashed
	fewAllowed := lean
	fewAllowed.Allow = lean.Block
	fewAllowed.Allow.N_prefixes, fewAllowed.Allow.Quotient.Front = 4, 0 // as many as are looked up inline
	fewAllowed.Allow.Reach = full.Allow.Reach
	atOnce := leanFlows // dropped
	atOnce.Trackers, atOnce.Parts, atOnce.Words = lean.Trackers[:maxLeanTrackers], []Part{mostBits}, nil
	leanCells, fewCells := lean, approximateFew
	leanCells.Parts, fewCells.Parts = []Part{cells, mostBits}, append([]Part{node, cells}, all.Parts[2:]...)
	classed, fewClassed, leanClassed := withClasses(approximateAll), withClasses(approximateFew), withClasses(leanApproximate)
	general := lean
	general.NoLean, general.Inner = true, true
	fullInner := full
	fullInner.Inner = true

	type namedConfig struct {
		name string
		cfg  Config
	}
	tests := []namedConfig{
		{"empty", Config{}},
		{"full", full},
		{"full, with headers in tunnels", fullInner},
		{"weighed", weighed},
		{"approximate", approximate},
		{"approximate, weighed", approximateWeighed},
		{"all", all},
		{"approximate, all", approximateAll},
		{"few shapes, all", few},
		{"few shapes, approximate, all", approximateFew},
		{"few shapes, prefixes, all", fewOfAddresses},
		{"few shapes, most of them prefixes, all", manyPrefixes},
		{"lean", lean},
		{"lean, approximate", leanApproximate},
		{"lean, flows", leanFlows},
		{"lean, approximate, flows", approximateFlows},
		{"lean, few allowed", fewAllowed},
		{"lean, flows, dropped at once", atOnce},
		{"lean, cells", leanCells},
		{"lean, with a directory", directed},
		{"lean, on the general path, with a directory", directedGeneral},
		{"few shapes, approximate, all, cells", fewCells},
		{"approximate, all, with classes", classed},
		{"few shapes, approximate, all, with classes", fewClassed},
		{"lean, approximate, with classes", leanClassed},
		{"lean, on the general path", general},
		{"guarded", guarded},
		{"looking for loops", looking},
		{"with edges", edges},
		{"at an edge", edges},
		{"policed", Config{}},
		{"policed, all", all},
		{"policed, few shapes, approximate, all", approximateFew},
	}
	// The most of one kind, and more, which are matched by a function.
	approximateFewUnweighed := approximateFew
	approximateFewUnweighed.Block.HotBuckets = 0
	for i, kind := range []string{"IPv4", "IPv4 flows", "IPv6", "IPv6 flows"} {
		for _, most := range []uint32{12, 28} {
			for _, test := range []namedConfig{{"exact", few}, {"approximate", approximateFewUnweighed}} {
				s, n := &test.cfg.Block, [4]uint32{}
				n[i] = most
				s.N_v4, s.N_v4Flow, s.N_v6, s.N_v6Flow = n[0], n[1], n[2], n[3]
				if i < 2 {
					s.GatesV6, s.Marks6Lines = 0, 0
				} else {
					s.GatesV4 = 0
				}
				test.name = fmt.Sprintf("%d shapes of %s, %s", most, kind, test.name)
				tests = append(tests, test)
			}
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(test.name, "policed") {
				test.cfg.Parts = append(slices.Clip(test.cfg.Parts), policed{})
			}
			if test.name != "empty" {
				test.cfg.Parts = append(slices.Clip(test.cfg.Parts), sampling{})
			}
			g := newTestGeneration(t, test.cfg)
			s, err := NewStats(0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.own.Store(&ownDevices{bpf.WeirVarLoopEdge: test.name == "at an edge"})
			p, err := g.Load(s)
			if err != nil {
				t.Fatalf("%+v", err)
			}
			defer p.Close()
			info, err := p.prog.Info()
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != "weir" {
				t.Errorf("name %q", info.Name)
			}
			if _, ok := info.BTFID(); !ok {
				t.Error("no BTF")
			}
			n, err := p.VerifiedInstructions()
			if err != nil {
				t.Fatal(err)
			}
			t.Attr("instructions", strconv.Itoa(n)) // for docs/kernels.md
			if n > maxVerified {
				t.Errorf("the verifier walks %d instructions, want %d at most", n, maxVerified)
			}
			if n, err := info.JitedSize(); err == nil {
				t.Logf("machine code: %d bytes", n)
			}
		})
	}
}

// The lean path is taken where it has all that is configured.
func TestGeneral(t *testing.T) {
	plain := Config{
		Allow: largest(), Monitor: true, Lists: 3,
		Trackers: []Tracker{{Lines: 2, Buckets: 1}, {Lines: 2, Buckets: 1}, {Lines: 2, Buckets: 1, Dropped: 1}},
	}
	plain.Block = largest()
	plain.Block.N_v4, plain.Block.N_v4Flow = maxLeanHashed, 0
	if why := plain.general(); len(why) != 0 {
		t.Errorf("a plain configuration takes the general path: %q", why)
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.NoLean = true },
		func(c *Config) { c.SampleClean = true },
		func(c *Config) { c.Block.N_v4Flow = 1 },
		func(c *Config) { c.Block.N_v4 = maxLeanHashed + 1 },
		func(c *Config) { c.Trackers = slices.Repeat(c.Trackers[:1], maxLeanTrackers+1) },
	} {
		c := plain
		change(&c)
		if why := c.general(); len(why) != 1 {
			t.Errorf("change %d: %q, want one reason", i, why)
		}
	}
}

// What the verifier has to say reaches the caller.
func TestVerifierMessage(t *testing.T) {
	g := newTestGeneration(t, Config{})
	insns := g.spec.Programs[bpf.WeirProgWeir].Instructions
	insns[0] = asm.StoreImm(asm.R5, 0, 1, asm.Word).WithMetadata(insns[0].Metadata) // to no address
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = g.Load(s)
	var verifier *ebpf.VerifierError
	if !errors.As(err, &verifier) || len(verifier.Log) == 0 {
		t.Fatalf("no verifier's log in %v", err)
	}
	if errors.Is(err, kernelerr.ErrPermission) {
		t.Errorf("a question of privilege: %v", err)
	}
}

// What is too much for the verifier is no bug of the program's, and there is
// something that the operator can do about it.
func TestTooLarge(t *testing.T) {
	long.Seconds(t)
	g := newTestGeneration(t, Config{})
	p := g.spec.Programs[bpf.WeirProgWeir]
	call := asm.FnKtimeGetNs.Call()                        // which is never left out
	begin := call.WithMetadata(p.Instructions[0].Metadata) // the function's name and type
	p.Instructions = append(asm.Instructions{begin}, slices.Repeat(asm.Instructions{call}, 1_000_000)...)
	p.Instructions = append(p.Instructions, asm.Mov.Imm(asm.R0, 0), asm.Return())
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = g.Load(s)
	if !errors.Is(err, kernelerr.ErrUnsupported) || !strings.Contains(err.Error(), "fewer prefix lengths") {
		t.Errorf("error: %v", err)
	}
}

// What the verifier does not accept with its constants in place is loaded as it was compiled.
func TestUnfolded(t *testing.T) {
	defer func(f func(*fold.Cache, *ebpf.CollectionSpec) error) { foldConstants = f }(foldConstants)
	for name, broken := range map[string]asm.Instructions{
		"refused":   {asm.StoreImm(asm.R5, 0, 1, asm.Word)},
		"too large": slices.Repeat(asm.Instructions{asm.StoreImm(asm.RFP, -8, 0, asm.Word)}, 1_000_000),
	} {
		t.Run(name, func(t *testing.T) {
			tried := false
			foldConstants = func(_ *fold.Cache, spec *ebpf.CollectionSpec) error {
				p := spec.Programs[bpf.WeirProgWeir]
				code := slices.Concat(broken, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()})
				code[0] = code[0].WithMetadata(p.Instructions[0].Metadata)
				p.Instructions, tried = code, true
				return nil
			}
			p := newTestProgram(t, newTestGeneration(t, Config{DropMalformed: true}))
			if !tried {
				t.Error("the broken program was not tried")
			}
			if action, err := p.Test(make([]byte, 60)); err != nil || action != ActionPass {
				t.Errorf("action %d, %v", action, err)
			}
		})
	}
}

func TestTest(t *testing.T) {
	p := newTestProgram(t, newTestGeneration(t, Config{DropMalformed: true}))
	frags, err := hooks.HasFrags()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		frame  []byte
		action uint32
		reason bpf.WeirReason
	}{
		{"not IP", make([]byte, 14), ActionPass, bpf.WeirReasonREASON_NOT_IP},
		{"large", make([]byte, 3000), ActionPass, bpf.WeirReasonREASON_NOT_IP},
		{"several buffers", make([]byte, 60_000), ActionPass, bpf.WeirReasonREASON_NOT_IP},
		{"clean", udp(unplugged, addrA, addrB, 0), ActionPass, bpf.WeirReasonREASON_CLEAN},
		{"truncated", udp(unplugged, addrA, addrB, 0)[:30], ActionDrop, bpf.WeirReasonREASON_TRUNCATED},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := p.stats.Reasons(nil)[test.reason]
			action, err := p.Test(test.frame)
			if len(test.frame) > os.Getpagesize() && !frags {
				wantError(t, err, unix.EMSGSIZE)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if action != test.action {
				t.Errorf("action %d, want %d", action, test.action)
			}
			before.Packets++
			before.Bytes += uint64(len(test.frame))
			if got := p.stats.Reasons(nil)[test.reason]; got != before {
				t.Errorf("reason %d counts %v, want %v", test.reason, got, before)
			}
		})
	}
	_, err = p.Test(make([]byte, 13))
	wantError(t, err, ErrShortFrame, "13 bytes")
}

func TestMonitor(t *testing.T) {
	g := newTestGeneration(t, Config{Block: coarse(), Monitor: true})
	fill(g.Block().Lines)
	p := newTestProgram(t, g)
	action, err := p.Test(udp(unplugged, addrA, addrB, 0))
	if err != nil || action != ActionPass {
		t.Errorf("action %d, %v", action, err)
	}
	if n := p.stats.Reasons(nil)[bpf.WeirReasonREASON_WOULD_BLOCK].Packets; n != 1 {
		t.Errorf("%d packets counted", n)
	}
}

// The program sees what is written into the memory, and nothing else.
func TestMemory(t *testing.T) {
	gated := func(gate uint32) KeySet {
		s := coarse()
		s.GatesV4, s.V4[0].Gate = gate, gate
		return s
	}
	mark := func(words []uint64, a netip.Addr, base int) {
		b := a.As4()
		net := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
		words[base+net/64] |= 1 << (net % 64)
	}
	reaching := func(gates uint32) KeySet {
		s := coarse()
		s.Reach = Reach{Shift: 16, GatesV4: gates}
		return s
	}
	markReach := func(words []uint64, a netip.Addr, base int) {
		b := a.As4()
		net := base + int(b[0])<<8 + int(b[1])
		words[net/64] |= 1 << (net % 64)
	}
	const (
		pass = ActionPass
		drop = ActionDrop
	)
	for _, test := range []struct {
		name  string
		cfg   Config
		write func(g *Generation)
		want  uint32
	}{
		{"zero", Config{Block: coarse()}, func(*Generation) {}, pass},
		{"lines", Config{Block: coarse()}, func(g *Generation) { fill(g.Block().Lines) }, drop},
		{"allowed", Config{Block: coarse(), Allow: coarse()}, func(g *Generation) {
			fill(g.Block().Lines)
			fill(g.Allow().Lines)
		}, pass},
		{"allowed within reach", Config{Block: coarse(), Allow: reaching(gateSrc)}, func(g *Generation) {
			fill(g.Block().Lines)
			fill(g.Allow().Lines)
			markReach(g.Allow().Reach, addrA, 0)
		}, pass},
		{"allowed destination within reach", Config{Block: coarse(), Allow: reaching(gateDst)}, func(g *Generation) {
			fill(g.Block().Lines)
			fill(g.Allow().Lines)
			markReach(g.Allow().Reach, addrB, 1<<16)
		}, pass},
		{"allowed beyond reach", Config{Block: coarse(), Allow: reaching(gateSrc | gateDst)}, func(g *Generation) {
			fill(g.Block().Lines)
			fill(g.Allow().Lines)
			markReach(g.Allow().Reach, addrB, 0)
			markReach(g.Allow().Reach, addrA, 1<<16)
		}, drop},
		{"allowed, whatever is reached", Config{Block: coarse(), Allow: reaching(gateSrc | 1)}, func(g *Generation) {
			fill(g.Block().Lines)
			fill(g.Allow().Lines)
		}, pass},
		{"only allowed", Config{Block: coarse(), Allow: coarse()}, func(g *Generation) {
			fill(g.Allow().Lines)
		}, pass},
		{"no mark", Config{Block: gated(gateSrc)}, func(g *Generation) { fill(g.Block().Lines) }, pass},
		{"source marked", Config{Block: gated(gateSrc)}, func(g *Generation) {
			fill(g.Block().Lines)
			mark(g.Block().Marks4, addrA, 0)
		}, drop},
		{"destination marked", Config{Block: gated(gateDst)}, func(g *Generation) {
			fill(g.Block().Lines)
			mark(g.Block().Marks4, addrB, markWords)
		}, drop},
		{"wrong side marked", Config{Block: gated(gateDst)}, func(g *Generation) {
			fill(g.Block().Lines)
			mark(g.Block().Marks4, addrB, 0)
		}, pass},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newTestGeneration(t, test.cfg)
			p := newTestProgram(t, g)
			frame := udp(unplugged, addrA, addrB, 0)
			if action, err := p.Test(frame); err != nil || action != pass {
				t.Fatalf("new memory: action %d, %v", action, err)
			}
			test.write(g)
			if action, err := p.Test(frame); err != nil || action != test.want {
				t.Errorf("action %d, %v, want %d", action, err, test.want)
			}
		})
	}
}

func TestMemorySizes(t *testing.T) {
	all := largest()
	sources := largest()
	sources.GatesV4 = gateSrc
	for _, shapes := range [][]bpf.WeirShape{sources.V4[:], sources.V4Flow[:]} {
		for i := range shapes {
			shapes[i].Gate = gateSrc
		}
	}
	sources.Buckets = 0
	unused := largest()
	unused.Lines = 0 // empty, whatever else it says

	g := newTestGeneration(t, Config{Block: all, Allow: sources})
	check := func(m Memory, lines, buckets, marks4, marks6 int) {
		t.Helper()
		if len(m.Lines) != lines || len(m.Buckets) != buckets || len(m.Marks4) != marks4 || len(m.Marks6) != marks6 {
			t.Errorf("%d, %d, %d, %d words, want %d, %d, %d, %d",
				len(m.Lines), len(m.Buckets), len(m.Marks4), len(m.Marks6), lines, buckets, marks4, marks6)
		}
		for _, words := range [][]uint64{m.Lines, m.Buckets, m.Marks4, m.Marks6} {
			for i, w := range words {
				if w != 0 {
					t.Fatalf("word %d of new memory is %#x", i, w)
				}
			}
		}
	}
	check(g.Block(), 1000*8, 999*8, 2<<18, 77*8)
	check(g.Allow(), 1000*8, 0, 1<<18, 77*8)
	if n := g.MapBytes(); n < (2*1000+999+2*77)*64+3<<21 || n > (2*1000+999+2*77)*64+3<<21+6*4096 {
		t.Errorf("%d bytes of kernel memory", n)
	}
	check(newTestGeneration(t, Config{Block: unused}).Block(), 0, 0, 0, 0)
}

// prefixes is a quotient table for keys of 32 bits.
func prefixes() Quotient {
	return Quotient{
		Mul: [3]uint64{1, 1, 1}, KeyMask: 1<<32 - 1, Scale: 64 * 8 << 2, RemMask: 1<<23 - 1, Rems: 1<<24 - 1 | (1<<24-1)<<31,
		Seconds: 1<<23 | 1<<23<<31, ListBit: 24, LaneBits: 31, Lines: 64, Buckets: 2,
	}
}

// directed makes a configuration one with sources of one length and a directory of them.
func directed(c *Config) {
	c.Block = KeySet{Quotient: prefixes(), N_prefixes: 1, Directory: Directory{Shift: 20, Parts: 63, Src: 1 << 12}}
	c.Block.Prefixes[0].SrcMask = ^uint32(0)
}

// A directory has the words that it states.
func TestDirectoryMemory(t *testing.T) {
	var c Config
	directed(&c)
	if got := len(newTestGeneration(t, c).Block().Directory); got != 1<<12 {
		t.Errorf("%d words, want %d", got, 1<<12)
	}
}

func TestInvalidConfig(t *testing.T) {
	for _, test := range []struct {
		says   string
		change func(c *Config)
	}{
		{"lists", func(c *Config) { c.Lists = -1 }},
		{"lists", func(c *Config) { c.Lists = 1 << 16 }},
		{"failsafe", func(c *Config) { c.Failsafe.N_v6 = 9 }},
		{"block set: 0 bits in the first line and 0 in others", func(c *Config) { c.Block.First = 0 }},
		{"allow set: 7 bits in the first line and 0 in others", func(c *Config) { c.Allow.First = 7 }},
		{"1 bits in the first line and 19 in others", func(c *Config) { c.Block.Rest = 19 }},
		{"classes of networks with 5 bits in the first line", func(c *Config) { c.Block.First, c.Block.Buckets, c.Block.Classes = 5, 0, 1 }},
		{"classes of networks with 1 bits in the first line, or with a table", func(c *Config) { c.Block.Classes, c.Block.Buckets = 1, 9 }},
		{"map", func(c *Config) { c.Block.Buckets = 1 << 31 }},
		{"33 and 0 shapes", func(c *Config) { c.Block.N_v4 = 33 }},
		{"without a gate", func(c *Config) { c.Block.V4[0].Gate = 0 }},
		{"IPv4: gates 0x1", func(c *Config) { c.Block.V4[0].Gate = gateSrc }},
		{"IPv6: gates 0x0", func(c *Config) { c.Block.N_v6, c.Block.V6[0].Gate = 1, 1 }},
		{"IPv6 marks", func(c *Config) {
			c.Block.N_v6, c.Block.V6[0].Gate, c.Block.GatesV6 = 1, gateSrc, gateSrc
		}},
		{"prefixes: 33 lengths", func(c *Config) { c.Block.N_prefixes = 33 }},
		{"prefixes: no lines", func(c *Config) { c.Allow.N_prefixes = 1 }},
		{"prefixes: IPv4 addresses are in both", func(c *Config) { c.Block.Quotient = prefixes() }},
		{"1 buckets", func(c *Config) { c.Block.N_v4, c.Block.Quotient = 0, prefixes(); c.Block.Quotient.Buckets = 1 }},
		{"lanes of 30 bits", func(c *Config) { c.Block.N_v4, c.Block.Quotient = 0, prefixes(); c.Block.Quotient.LaneBits = 30 }},
		{"a list number from bit 31 on", func(c *Config) { c.Block.N_v4, c.Block.Quotient = 0, prefixes(); c.Block.Quotient.ListBit = 31 }},
		{"of 65", func(c *Config) { c.Block.N_v4, c.Block.Quotient = 0, prefixes(); c.Block.Quotient.Lines = 65 }},
		{"front of 5", func(c *Config) { c.Block.N_v4, c.Block.Quotient = 0, prefixes(); c.Block.Quotient.Front = 5 }},
		{"a directory of 4096 and 0 words, shift 20, 63 parts and 2 lengths", func(c *Config) {
			directed(c)
			c.Block.N_prefixes, c.Block.Prefixes[1] = 2, c.Block.Prefixes[0]
		}},
		{"a directory of 2048 words", func(c *Config) { directed(c); c.Block.Directory.Src = 2048 }},
		{"a directory of 0 and 0 words", func(c *Config) { directed(c); c.Block.Directory.Src = 0 }},
		{"shift 0", func(c *Config) { directed(c); c.Block.Directory.Shift = 0 }},
		{"without one side's prefixes", func(c *Config) {
			directed(c)
			c.Block.Prefixes[0].SrcMask, c.Block.Prefixes[0].DstMask = 0, 1
		}},
		{"neither front nor directory", func(c *Config) { directed(c); c.Allow = c.Block }},
		{"shifted by 27", func(c *Config) { c.Allow.Reach = Reach{Shift: 27, GatesV4: gateSrc} }},
		{"sides 0x0 and 0x2, without those of a family", func(c *Config) { c.Allow.Reach = Reach{Shift: 16, GatesV6: gateSrc} }},
		{"0 lines and 1 buckets", func(c *Config) { c.Trackers = []Tracker{{Buckets: 1}} }},
		{"tracker 1: 3 lines: not an even number", func(c *Config) { c.Trackers = []Tracker{{Lines: 3, Buckets: 1}} }},
	} {
		cfg := Config{Block: coarse(), Allow: coarse()}
		test.change(&cfg)
		g, err := NewGeneration(cfg)
		if err == nil {
			g.Close()
			t.Errorf("accepted, where %q is wrong", test.says)
		} else if !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %q does not say %q", err, test.says)
		}
	}
}

func TestClosed(t *testing.T) {
	g := newTestGeneration(t, Config{Block: coarse()})
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Load(s); err == nil {
		t.Error("loaded with closed counters")
	}
	if n := len(s.Reasons(nil)) + len(s.Lists(nil)); n != 0 {
		t.Errorf("%d closed counters", n)
	}
	if s, err = NewStats(0); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(g.Close(), g.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Load(s); err == nil {
		t.Error("loaded from a closed generation")
	}
}

// The memory of trackers stays until it is closed, whatever becomes of the stats,
// and is released then.
func TestOpenTrackers(t *testing.T) {
	before := openFiles(t)
	g, err := NewGeneration(Config{Trackers: []Tracker{{Lines: 2, Buckets: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.OpenTrackers(s)
	wantError(t, err, ErrNotRecorded)
	p := loadAndTake(t, g, s)
	tr, err := g.OpenTrackers(s)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewGeneration(Config{Trackers: []Tracker{{Lines: 4, Buckets: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.OpenTrackers(s)
	wantError(t, err, ErrNotRecorded)
	if err := errors.Join(p.Close(), s.Close(), g.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	lines, _ := tr.Bank(0, 0, tr.Active(0))
	lines[0]++
	tr.Exchange(0)
	if tr.Active(0) != 1 {
		t.Error("not exchanged")
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = g.OpenTrackers(s)
	wantError(t, err, ErrNotRecorded)
	if after := openFiles(t); after != before {
		t.Errorf("open before: %s; after: %s", before, after)
	}
}

// The programs of TC use no arrays as one value that those of XDP do not.
func TestAddressed(t *testing.T) {
	tc, err := objectTC()
	if err != nil {
		t.Fatal(err)
	}
	names := addressedBy(tc)
	for name := range names {
		if !isAddressed()[name] {
			t.Errorf("only programs of TC use %s as one value", name)
		}
	}
	if len(names) == 0 {
		t.Error("no program of TC uses an array as one value")
	}
}
