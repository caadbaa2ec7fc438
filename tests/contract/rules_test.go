package contract

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/explain"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
)

// rule draws a rule, or none.
func (r random) rule(trial bool) *verdict.Rule {
	of := &verdict.Rule{Trial: trial && r.IntN(2) == 0}
	if r.IntN(3) == 0 {
		return of
	}
	for range r.pick(0, 0, 1, 2) {
		of.Protocols = append(of.Protocols, uint8(r.pick(1, 6, 17, 58, 47, 4)))
	}
	for range r.pick(0, 1, 2) {
		first := uint16(r.pick(0, 67, 80, 81, 255, 256, 443))
		of.Ports = append(of.Ports, verdict.PortRange{Proto: uint8(r.pick(6, 17, 132)), First: first, Last: first + uint16(r.pick(0, 0, 1, 400))})
	}
	if r.IntN(4) == 0 {
		of.Interfaces = []string{[]string{"eth0", "eth*", "eth1", "wan?"}[r.IntN(4)]}
	}
	if r.IntN(4) == 0 {
		of.VLANs = []uint16{uint16(r.pick(0, 7)), uint16(r.pick(8, 9))}
	}
	return of
}

// ruledLists draws lists with rules, which have entries in common, even flows and prefixes of
// several lengths.
func (r random) ruledLists(directions ...engine.Direction) (lists []engine.List) {
	common := r.entries(r.pick(5, 100, 300))
	if r.IntN(2) == 0 { // few enough for the lean path, beside those of ranges
		common.Flows = ofKinds(common.Flows, 2)
	}
	n := r.pick(2, 4, 7)
	for i := range n {
		e := r.entries(r.pick(0, 5, 100))
		if i > 0 || r.IntN(2) == 0 {
			e.Flows = nil // too many kinds of flows otherwise
		}
		for _, p := range common.V4 {
			if r.IntN(2) == 0 {
				e.V4 = append(e.V4, p)
			}
		}
		for _, p := range common.V6 {
			if r.IntN(2) == 0 {
				e.V6 = append(e.V6, p)
			}
		}
		for _, k := range common.Flows {
			if r.IntN(2) == 0 {
				e.Flows = append(e.Flows, k)
			}
		}
		l := engine.List{
			Name: fmt.Sprint(i), Allow: i == n-1 && r.IntN(3) > 0, Priority: r.IntN(3), Direction: directions[r.IntN(len(directions))], Contents: e.Set(),
		}
		l.Rule = r.rule(!l.Allow)
		lists = append(lists, l)
	}
	return lists
}

// portRange is a flow with a range of ports, of any addresses.
type portRange struct {
	list        int // index
	proto       uint8
	source      bool // the port is the source's
	first, last uint16
}

func (p portRange) String() string {
	ports := fmt.Sprintf("%d-%d", p.first, p.last)
	if p.source {
		return fmt.Sprintf("%s *:%s > *:*", key.ProtoName(p.proto), ports)
	}
	return fmt.Sprintf("%s *:* > *:%s", key.ProtoName(p.proto), ports)
}

// matches reports whether the range has a packet's port.
func (p portRange) matches(t key.Tuple) bool {
	port := t.DstPort
	if p.source {
		port = t.SrcPort
	}
	return t.HasPorts && t.Proto == p.proto && p.first <= port && port <= p.last
}

// withRanges returns the lists with ranges of ports, which some of them have.
func (r random) withRanges(lists []engine.List) (with []engine.List, all []portRange, err error) {
	with = slices.Clone(lists)
	for i := range lists {
		for range r.pick(0, 0, 1, 2) {
			first := uint16(r.pick(0, 60, 66, 80, 81, 400, 443, 1200, 65000))
			p := portRange{i, uint8(r.pick(6, 17, 132)), r.IntN(2) == 0, first, first + uint16(r.pick(0, 1, 2, 64, 500))}
			e, err := listfile.ParseEntry(p.String())
			if err != nil {
				return nil, nil, err
			}
			with[i].Contents = list.Union(with[i].Contents, e.Set())
			all = append(all, p)
		}
	}
	return with, all, nil
}

// derivations are by the index of the list that has the derived prefixes.
type derivations map[int]derivation

type derivation struct {
	list.Derivation
	of int // index of the list
}

// derive adds lists of the prefixes that addresses of some block lists derive.
func (r random) derive(lists []engine.List) ([]engine.List, derivations) {
	all := make(derivations)
	for i, l := range lists {
		if l.Allow || r.IntN(2) == 0 {
			continue
		}
		d := list.Derivation{
			V4: r.pick(0, 27, 29), V6: r.pick(0, 61, 110), At: r.pick(2, 3, 5), Prefix6: r.pick(0, 112, 125),
			Src: l.Direction == engine.Source || l.Direction == engine.Both, Dst: l.Direction != engine.Source,
		}
		members := []*list.Set{l.Contents}
		l.Name += " (derived)"
		l.Contents = d.Prefixes(list.Members{All: members, Widened: members})
		all[len(lists)] = derivation{d, i}
		lists = append(lists, l)
	}
	return lists, all
}

// keys returns the prefixes that the keys of a list derive, by counting them for each prefix.
func (d derivation) keys(of []key.Key) (all []key.Key) {
	type derived struct {
		k     key.Key
		least int
	}
	members := make(map[derived]map[netip.Prefix]bool)
	for _, k := range of {
		p, source := list.PrefixOf(k)
		if k.Tuple() || !p.IsSingleIP() {
			continue
		}
		note := func(bits, unit, least int) {
			if bits == 0 {
				return
			}
			outer, _ := p.Addr().Prefix(bits)
			to := derived{key.Source(outer), least}
			if !source {
				to.k = key.Destination(outer)
			}
			if members[to] == nil {
				members[to] = make(map[netip.Prefix]bool)
			}
			member, _ := p.Addr().Prefix(unit)
			members[to][member] = true
		}
		switch {
		case p.Addr().Is4():
			note(d.V4, 32, d.At)
		case d.Prefix6 > 0:
			note(d.Prefix6, 128, 1)
			note(d.V6, d.Prefix6, d.At)
		default:
			note(d.V6, 128, d.At)
		}
	}
	for of, n := range members {
		if len(n) >= of.least {
			all = append(all, of.k)
		}
	}
	return all
}

// tagged puts VLAN tags before a frame, some of which only have a priority.
func (r random) tagged(f []byte) []byte {
	for range r.pick(0, 0, 0, 1, 2) {
		f = slices.Concat(f[:12:12], []byte{0x81, 0, 0x20, byte(r.pick(0, 7, 8))}, f[12:])
	}
	return f
}

// byEntries decides on packets by trying each entry of each list.
type byEntries struct {
	lists []engine.List
	keys  [][]key.Key
	p     *verdict.Policy
	where verdict.Where

	ranges []portRange // in addition to the keys
}

func newByEntries(lists []engine.List, p *verdict.Policy, iface string, derived derivations) byEntries {
	b := byEntries{lists: lists, p: p, where: verdict.Where{Interface: iface}}
	for _, l := range lists {
		var keys []key.Key
		if (l.Direction == engine.Out) == p.Out {
			keys = slices.Collect(l.All())
			if d, ok := derived[len(b.keys)]; ok {
				keys = d.keys(b.keys[d.of])
			}
		}
		b.keys = append(b.keys, keys)
	}
	return b
}

// matching returns the lists that match a packet.
func (b byEntries) matching(t key.Tuple, of func(engine.List) bool) (numbers []int) {
	for i, l := range b.lists {
		if !of(l) || l.Rule.On() && !l.Rule.Matches(t, b.where) {
			continue
		}
		inRange := (l.Direction == engine.Out) == b.p.Out && slices.ContainsFunc(b.ranges, func(p portRange) bool { return p.list == i && p.matches(t) })
		if inRange || slices.ContainsFunc(b.keys[i], func(k key.Key) bool { found, ok := k.Of(t); return ok && found == k }) {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// failsafe reports whether a packet of a frame is of a kind of ICMP that passes before lists.
func (b byEntries) failsafe(frame []byte, p packet.Packet) bool {
	if !p.Plain || p.Payload == 0 || p.Proto != 1 && p.Proto != 58 || (p.Proto == 1) != p.Src.Is4() {
		return false
	}
	types := map[packet.ICMP][]byte{packet.ICMPError: {3, 11, 12}, packet.EchoRequest: {8}, packet.EchoReply: {0}}
	if p.Proto == 58 {
		types = map[packet.ICMP][]byte{packet.ICMPError: {1, 2, 3, 4}, packet.EchoRequest: {128}, packet.EchoReply: {129}}
	}
	if b.p.Out {
		types[packet.EchoRequest], types[packet.EchoReply] = types[packet.EchoReply], types[packet.EchoRequest]
	}
	return slices.ContainsFunc(b.p.FailsafeICMP, func(f verdict.FailsafeICMP) bool {
		return slices.Contains(types[f.ICMP], frame[p.Payload])
	})
}

// decide returns the reason for which a packet leaves, and the lists that may be named. ok is
// false for packets of which other things decide.
func (b byEntries) decide(frame []byte) (reason verdict.Reason, lists []int, ok bool) {
	b.where.VLAN = vlanOf(frame)
	p, result := packet.Parse(frame)
	outer := p
	var onTrial []int
	for depth := 0; ; depth++ {
		dhcp := p.Proto == 17 && p.HasPorts && p.SrcPort+p.DstPort == 67+68
		if result != packet.OK || p.ND || dhcp {
			return 0, nil, false
		}
		if b.failsafe(frame, p) {
			if depth == 0 {
				return verdict.Failsafe, nil, true
			}
			break
		}
		allowed := len(b.matching(p.Tuple, func(l engine.List) bool { return l.Allow })) > 0
		enforced := b.matching(p.Tuple, func(l engine.List) bool { return !l.Allow && (l.Rule == nil || !l.Rule.Trial) })
		switch {
		case len(enforced) > 0 && allowed:
			return verdict.Allowed, nil, true
		case len(enforced) > 0 && b.p.Monitor:
			return verdict.WouldBlock, enforced, true
		case len(enforced) > 0:
			return verdict.Blocked, enforced, true
		}
		if onTrial == nil {
			onTrial = b.matching(p.Tuple, func(l engine.List) bool { return !l.Allow && l.Rule != nil && l.Rule.Trial })
		}
		if allowed || !b.p.Inner || p.Tunnel() == packet.NoTunnel {
			break
		}
		if p, result = p.Inner(frame); result == packet.NotIP {
			break
		} else if depth == packet.MaxInner {
			return 0, nil, false
		}
	}
	switch {
	case len(onTrial) == 0:
		return verdict.Clean, nil, true
	case len(b.matching(outer.Tuple, func(l engine.List) bool { return l.Allow })) > 0:
		return verdict.Allowed, nil, true
	}
	return verdict.WouldBlock, onTrial, true
}

func vlanOf(f []byte) uint16 {
	for len(f) >= 16 && (f[12] == 0x81 && f[13] == 0 || f[12] == 0x88 && f[13] == 0xa8) {
		if id := uint16(f[14]&15)<<8 | uint16(f[15]); id != 0 {
			return id
		}
		f = slices.Concat(f[:12:12], f[16:])
	}
	return 0
}

// besideRange draws the fields of a packet, whose port may be at the edge of a range.
func (r random) besideRange(all []portRange) key.Tuple {
	t := r.tuple()
	if len(all) == 0 || r.IntN(3) > 0 {
		return t
	}
	p := all[r.IntN(len(all))]
	t.Proto, t.HasPorts = p.proto, true
	port := []uint16{p.first - 1, p.first, p.last, p.last + 1}[r.IntN(4)]
	if p.source {
		t.SrcPort, t.DstPort = port, 9
	} else {
		t.SrcPort, t.DstPort = 9, port
	}
	return t
}

// Lists with rules drop what they are for: the kernel, its reference, the answer of explain and a
// search through all entries agree, also on packets in tunnels, of both directions, and on which
// list is named.
func TestRules(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r := newRandom(t)
	seen, checked, lean := map[string]int{}, 0, 0 // programs that look up flows on the lean path
	rare := func() (all []string) {
		for _, reason := range []string{"clean", "blocked", "would-block", "allowed", "derived", "failsafe", "range of ports"} {
			if seen[reason] < 100 {
				all = append(all, reason)
			}
		}
		if lean == 0 {
			all = append(all, "beside flows on the lean path")
		}
		return all
	}
	for i := 0; i < long.Or(16, 40) || i < 96 && len(rare()) > 0; i++ {
		lists, derived := r.derive(r.ruledLists(engine.Source, engine.Destination, engine.Both, engine.Out))
		with, ranges, err := r.withRanges(lists)
		if err != nil {
			t.Fatal(err)
		}
		c := r.config(i)
		c.Mode, c.FailsafePorts, c.FailsafePrefixes = 0, nil, nil
		c.DHCPServer, c.NoLean, c.Inner = false, i%5 == 0, i%2 == 0
		c.TC, c.Outgoing = true, true
		in := built(t, with, c)
		for _, out := range []bool{false, true} {
			at := netif.Target{Iface: []string{"eth0", "wan1", "lo"}[r.IntN(3)], Out: out}
			g := in.For(at)
			g.Interface = at.Iface
			k, err := replay.NewKernelOn(g, len(lists), at)
			if err != nil {
				t.Fatalf("%+v", err)
			}
			defer k.Close()
			if len(g.General()) == 0 && len(g.Block.V4Flow) > 0 {
				lean++
			}
			truth := newByEntries(lists, &g.Policy, at.Iface, derived)
			truth.ranges = ranges
			for range 1000 {
				f := packet.Frame(r.besideRange(ranges))
				switch r.IntN(6) {
				case 0:
					f = r.mutate(f)
				case 1:
					f = r.tunnel(f)
				case 2:
					f = r.packetOnLeanPath()
				}
				if r.IntN(3) == 0 && len(f) > 14 {
					f = r.tagged(f)
				}
				f = f[:min(len(f), tcPage)]
				o, err := agree(g, k, f)
				if err != nil {
					t.Fatalf("generation %d, %v: %v: % x", i, at, err, f)
				}
				name := ""
				if o.List > 0 {
					name = lists[o.List-1].Name
				}
				if a := explain.Answers(g, explain.Question{Frame: f}, nil)[0]; actionOf(a) != o.Action || a.Reason != o.Reason || a.List != name {
					t.Fatalf("generation %d, %v: the answer is %+v, and the packet leaves as %v by list %q: % x", i, at, a, o, name, f)
				}
				want, by, ok := truth.decide(f)
				if !ok {
					continue
				}
				checked++
				seen[o.Reason.String()]++
				if _, ok := derived[o.List-1]; ok {
					seen["derived"]++
				}
				if p, _ := packet.Parse(f); slices.ContainsFunc(ranges, func(of portRange) bool { return of.list == o.List-1 && of.matches(p.Tuple) }) {
					seen["range of ports"]++
				}
				if o.Reason != want || len(by) > 0 && !slices.Contains(by, o.List) {
					t.Fatalf("generation %d, %v: %v by list %d, want %v by one of %v: % x\n%v\n%+v", i, at, o.Reason, o.List, want, by, f, ranges, lists)
				}
			}
			k.Close()
		}
		in.Close()
	}
	t.Log(checked, seen, lean)
	for _, reason := range rare() {
		t.Errorf("%d packets are %s: the test is too narrow", seen[reason], reason)
	}
}

// Changes in place keep what rules say, and what the next generation would do.
func TestRulesAfterChanges(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	made, rebuilt := 0, 0
	for i := range long.Or(6, 24) {
		lists := r.ruledLists(engine.Source, engine.Both)
		round := newRound(t)
		g, k := engines(round, lists, engine.Config{NoLean: i%2 == 0})
		for range 8 {
			var changes []engine.Change
			for n := range lists {
				if r.IntN(2) == 0 {
					changes = append(changes, engine.Change{List: uint16(n + 1), Delta: list.Delta{
						Add: lists[r.IntN(len(lists))].Contents, Remove: lists[r.IntN(len(lists))].Contents,
					}})
				}
			}
			next, _, err := engine.With(lists, changes)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Apply(changes); err != nil {
				rebuilt++ // no room
				continue
			}
			lists, made = next, made+1
			truth := newByEntries(lists, &g.Policy, "", nil)
			for range 300 {
				f := r.tagged(packet.Frame(r.tuple()))
				o, err := agree(g, k, f)
				if err != nil {
					t.Fatal(err)
				}
				if want, by, ok := truth.decide(f); ok && (o.Reason != want || len(by) > 0 && !slices.Contains(by, o.List)) {
					t.Fatalf("%v by list %d, want %v by one of %v: % x", o.Reason, o.List, want, by, f)
				}
			}
		}
		round.end()
	}
	t.Log(made, rebuilt)
	if made == 0 {
		t.Error("no change was made in place")
	}
}
