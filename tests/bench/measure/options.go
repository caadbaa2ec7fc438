package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"weir/control/engine"
	"weir/control/list"
	part "weir/control/stage"
	digests "weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/police"
	"weir/control/stage/tracker"
	"weir/filter/blocked"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sfb"
	"weir/tests/bench/probe"
)

// What weir is configured to beyond a block list, for options and cores.
const (
	weirAllow    = "weir-allow"
	weirTracker  = "weir-tracker"
	weirScans    = "weir-scans"
	weirScansNew = "weir-scans-new" // every packet is a new pair
	weirDigest   = "weir-digest"
	weirGeneral  = "weir-general"
	weirPolice   = "weir-police"
	weirFirst    = "weir-first"
	weirFirstNew = "weir-first-new" // every packet is of a new flow
	weirTrackers = "weir-trackers"  // of sources and of destinations
	weirLists60  = "weir-60-lists"
	weirLists200 = "weir-200-lists"
	weirLengths  = "weir-lengths" // prefixes of 17 lengths
	weirFlow     = "weir-flow"    // a flow among the entries
	weirVLAN     = "weir-vlan"    // packets with a VLAN tag
	weirPattern  = "weir-pattern" // that no packet has the addresses of
	weirFields   = "weir-fields"  // a pattern of the packets' protocol, so that all are read
)

// optional lists the contenders of options. The first is the base.
func optional() ([]kind, error) {
	var recorded digests.Part
	var err error
	if recorded.Filter, err = blocked.For(sliceLen, 0.01); err != nil {
		return nil, err
	}
	scans := tracker.DefaultScan("src")
	guard := configuration{
		config: engine.Config{Parts: []engine.Part{&tracker.Part{In: []tracker.Counting{scans.Spec().Counting()}}}, Seed: hash.Seed{1}},
		units:  int(scans.Threshold),
	}
	pairs := guard
	pairs.forget = true
	limits := &police.Limits{}
	if limits.Limits, err = sfb.Plan(sfb.Fair, sfb.MaxPacketRate, true, 20*time.Millisecond, time.Minute); err != nil {
		return nil, err
	}
	limits.V4, limits.V6 = tracker.DefaultSpec("flow").Key.Shapes()
	policed := configuration{config: engine.Config{Parts: []engine.Part{&police.Part{Interfaces: []part.At[*police.Limits]{{Is: limits}}}}}}
	// What is not forgotten fills the default memory, and is known.
	flows := first.Spec{Key: "flow"}
	flows.SetDefaults()
	known, err := flows.Part()
	if err != nil {
		return nil, err
	}
	newFlows := configuration{config: engine.Config{Parts: []engine.Part{known}}}
	forged := newFlows
	forged.forget = true
	return []kind{
		{name: xdpDrop, make: newDrop, blind: true},
		{name: bare, make: newBare, blind: true, silent: true},
		{name: weirExact, make: newWeir(exact)},
		{name: weirAllow, make: newWeir(configuration{config: engine.Config{Policy: failsafe}, allow: true})},
		{name: weirTracker, make: newWeir(configuration{config: engine.Config{Parts: []engine.Part{sources}, Seed: hash.Seed{1}}})},
		{name: weirUsual, make: newWeir(usual)},
		{name: weirScans, make: newWeir(guard)},
		{name: weirScansNew, make: newWeir(pairs)},
		{name: weirDigest, make: newWeir(configuration{config: engine.Config{Parts: []engine.Part{&recorded}}})},
		{name: weirGeneral, make: newWeir(configuration{config: engine.Config{NoLean: true}})},
		{name: weirPolice, make: newWeir(policed)},
		{name: weirFirst, make: newWeir(newFlows)},
		{name: weirFirstNew, make: newWeir(forged)},
		{name: weirTrackers, make: newWeir(configuration{config: engine.Config{Parts: []engine.Part{twoTrackers}, Seed: hash.Seed{1}}})},
		{name: weirLists60, make: newWeir(configuration{n: 60})},
		{name: weirLists200, make: newWeir(configuration{n: 200})},
		{name: weirLengths, make: newWeir(configuration{beside: lengths()})},
		{name: weirFlow, make: newWeir(configuration{beside: list.Entries{Flows: []key.Key{aFlow}}})},
		{name: weirPattern, make: newWeir(configuration{config: engine.Config{Parts: []engine.Part{patterns("udp length 9000 dst 192.0.2.1", "tcp length 9000 dst 192.0.2.1")}}})},
		{name: weirFields, make: newWeir(configuration{config: engine.Config{Parts: []engine.Part{patterns("udp length 9000", "tcp length 9000")}}})},
		{name: weirVLAN, make: func(p place) contender {
			p.wire.tag()
			return newWeir(exact)(p)
		}},
		{name: weirApprox, make: newWeir(approximate)},
	}, nil
}

// twoTrackers are of sources and of destinations.
var twoTrackers = &tracker.Part{In: []tracker.Counting{sources.In[0], tracker.DefaultSpec("dst").Counting()}}

// patterns returns patterns that drop no packet.
func patterns(texts ...string) engine.Part {
	var all []police.Pattern
	for _, text := range texts {
		u, err := flood.ParseRule(text)
		if err != nil {
			panic(err) // it is a constant
		}
		all = append(all, police.Pattern{Rule: u})
	}
	return police.NewPatterns(all)
}

// aFlow is a flow that no packet has.
var aFlow = key.Tuple{
	Src: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Dst: netip.AddrFrom4([4]byte{198, 51, 100, 1}),
	Proto: 17, HasPorts: true, SrcPort: 53, DstPort: 5353,
}.Key()

// lengths returns prefixes of 16 lengths, /16 to /31, of which few packets have an address.
func lengths() (e list.Entries) {
	for bits := 16; bits < 32; bits++ {
		e.V4 = append(e.V4, list.V4(uint32(bits)<<19, bits))
	}
	return e
}

// enterAll adds contenders of some kinds, or of all that are named, each on its own
// wire and catching its packets.
func (s *session) enterAll(b *blocklist, kinds []kind) (_ *contenders, err error) {
	c := newContenders()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for _, k := range kinds {
		err := s.join(c, k, place{ctx: s.ctx, keys: s.keys}, b, true)
		if err == nil {
			err = c.by[k.name].catch()
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return c, nil
}

// options measures what the options of an operator cost a packet: each is weir in
// exact mode with one of them, or with some.
func (s *session) options() (err error) {
	b, err := s.lists.make(setRandom, s.usual)
	if err != nil {
		return err
	}
	kinds, err := optional()
	if err != nil {
		return err
	}
	c, err := s.enterAll(b, kinds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return s.cleanAndListed("options", c, b, func(all series, added []Result) {
		ns := all.times()
		for i := range added {
			x := &added[i]
			if _, ok := c.by[x.Contender].(*weir); ok {
				net := ns.beyond(x.Contender, weirExact)
				x.NetNS, x.NetWidth = median(net), width(net)
			}
		}
	})
}

// nothing is the least program.
type nothing struct{ place }

func newBare(p place) contender { return &nothing{p} }

func (n *nothing) prepare(*blocklist) error { return nil }
func (n *nothing) enforce() error           { return n.catch() }

func (n *nothing) catch() error {
	p, err := n.program()
	if err != nil {
		return err
	}
	defer p.Close() // the link keeps it
	return n.wire.attach(p)
}

func (n *nothing) program() (*ebpf.Program, error)           { return probe.NewDropping() }
func (n *nothing) received() (all, listed uint64, err error) { return 0, 0, nil }
func (n *nothing) Close() error                              { return nil }
