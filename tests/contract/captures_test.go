package contract

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"weir/control/capture"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/data"
	"weir/tests/lab"
	"weir/tests/long"
)

// frame is a packet of a capture.
type frame struct {
	capture string
	number  int
	data    []byte
}

// read has what frames returns, once it was called.
var read []frame

// frames reads every packet of every capture.
func frames(t testing.TB) []frame {
	t.Helper()
	if read != nil {
		return read
	}
	var all []frame
	captures := 0
	data.Captures(t, func(name string, r *capture.Reader) {
		captures++
		for p, err := range r.All() {
			if err != nil { // cut short, as many are on purpose: the packets before count
				return
			}
			all = append(all, frame{name, p.Number, append([]byte(nil), p.Data...)})
		}
	})
	t.Logf("%d packets of %d captures", len(all), captures)
	if len(all) == 0 {
		t.Fatal("no packets")
	}
	read = all
	return all
}

// sample returns each fourth packet of every capture, or all with WEIR_LONG=1: enough where
// the kernel's state is compared with that of Go.
func sample(t testing.TB) (some []frame) {
	t.Helper()
	all := frames(t)
	for i := 0; i < len(all); i += long.Or(4, 1) {
		some = append(some, all[i])
	}
	return some
}

// flow is a five-tuple.
type flow struct {
	src, dst         netip.Addr
	proto            uint8
	srcPort, dstPort uint16
}

func flowOf(t key.Tuple) flow { return flow{t.Src, t.Dst, t.Proto, t.SrcPort, t.DstPort} }

// lists is the input of the program and the oracle. The oracle uses maps and
// prefixes, without shapes, levels, hashes and filters.
type lists struct {
	addresses map[netip.Addr]bool   // list 1: sources that are blocked
	networks  map[netip.Prefix]bool // list 2: networks, sources and destinations
	flows     map[flow]bool         // list 3: five-tuples
	services  map[flow]bool         // list 3 too: any source to a port of a destination
	allowed   map[netip.Addr]bool   // list 4
	lengths   map[int]bool          // of the networks
}

// drawLists draws lists from the traffic, so that each of them meets some.
func drawLists(r random, traffic []frame) lists {
	l := lists{
		addresses: make(map[netip.Addr]bool), networks: make(map[netip.Prefix]bool),
		flows: make(map[flow]bool), services: make(map[flow]bool),
		allowed: make(map[netip.Addr]bool), lengths: make(map[int]bool),
	}
	sources, flows := make(map[netip.Addr]bool), make(map[flow]bool)
	for _, f := range traffic {
		p, _ := packet.Parse(f.data)
		if !p.HasAddresses {
			continue
		}
		if !sources[p.Src] {
			sources[p.Src] = true
			switch r.IntN(12) {
			case 0, 1, 2, 3:
				l.addresses[p.Src] = true
			case 4:
				lengths := []int{24, 20, 29}
				if p.Src.Is6() {
					lengths = []int{48, 64, 125}
				}
				n, _ := p.Src.Prefix(r.pick(lengths...))
				l.networks[n] = true
				l.lengths[n.Bits()] = true
			}
			if r.IntN(10) == 0 {
				l.allowed[p.Src] = true
			}
		}
		if f := flowOf(p.Tuple); p.HasPorts && !flows[f] {
			flows[f] = true
			switch r.IntN(8) {
			case 0:
				l.flows[f] = true
			case 1:
				l.services[flow{dst: f.dst, proto: f.proto, dstPort: f.dstPort}] = true
			}
		}
	}
	return l
}

// rules returns the lists as they come from files.
func (l lists) rules() (all []engine.List) {
	add := func(g engine.List, e list.Entries) {
		g.Contents = e.Set()
		all = append(all, g)
	}
	add(engine.List{Name: "addresses"}, addressEntries(l.addresses))
	var networks list.Entries
	for p := range l.networks {
		addPrefix(&networks, p)
	}
	add(engine.List{Name: "networks", Direction: engine.Both}, networks)
	var flows list.Entries
	for f := range l.flows {
		flows.Flows = append(flows.Flows, f.key(f.src.BitLen(), key.FieldSrcPort))
	}
	for f := range l.services {
		f.src = f.dst // of the right family; no bit of it counts
		flows.Flows = append(flows.Flows, f.key(0, 0))
	}
	add(engine.List{Name: "flows"}, flows)
	add(engine.List{Name: "allowed", Allow: true}, addressEntries(l.allowed))
	return all
}

func (f flow) key(srcBits int, fields key.Fields) key.Key {
	s := key.Shape{Fields: fields | key.FieldDstPort | key.FieldProto, SrcBits: uint8(srcBits), DstBits: uint8(f.dst.BitLen())}
	if f.dst.Is6() {
		s.Fields |= key.FieldV6
	}
	k, _ := s.Of(key.Tuple{Src: f.src, Dst: f.dst, Proto: f.proto, HasPorts: true, SrcPort: f.srcPort, DstPort: f.dstPort})
	return k
}

func addressEntries(addresses map[netip.Addr]bool) list.Entries {
	var e list.Entries
	for a := range addresses {
		addPrefix(&e, netip.PrefixFrom(a, a.BitLen()))
	}
	return e
}

func addPrefix(e *list.Entries, p netip.Prefix) {
	if p.Addr().Is6() {
		e.V6 = append(e.V6, p)
		return
	}
	b := p.Addr().As4()
	e.V4 = append(e.V4, list.V4(binary.BigEndian.Uint32(b[:]), p.Bits()))
}

func (l lists) holdsNetwork(a netip.Addr) bool {
	for bits := range l.lengths {
		if p, err := a.Prefix(bits); err == nil && l.networks[p] {
			return true
		}
	}
	return false
}

// reasonOf has the reasons of the parser's results.
var reasonOf = map[packet.Result]verdict.Reason{
	packet.OK: verdict.Clean, packet.NotIP: verdict.NotIP, packet.ARP: verdict.ARP, packet.Link: verdict.Link,
	packet.Truncated: verdict.Truncated, packet.Malformed: verdict.Malformed, packet.Unparsed: verdict.Unparsed, packet.Overtagged: verdict.Overtagged,
}

// outcome is the oracle's answer: the reason, and which lists may be named.
func (l lists) outcome(data []byte, dropMalformed bool) (verdict.Outcome, []int) {
	p, result := packet.Parse(data)
	o := verdict.Outcome{Reason: reasonOf[result]}
	ports := func(a, b uint16) bool { return p.HasPorts && p.Plain && p.SrcPort == a && p.DstPort == b }
	var named []int
	switch {
	case !p.HasAddresses:
	case p.ND:
		o.Reason = verdict.ND
	case p.Proto == 17 && p.Src.Is4() && ports(67, 68), p.Proto == 17 && p.Src.Is6() && ports(547, 546) && p.Dst.IsLinkLocalUnicast():
		o.Reason = verdict.DHCP
	default:
		if l.addresses[p.Src] {
			named = append(named, 1)
		}
		if l.holdsNetwork(p.Src) || l.holdsNetwork(p.Dst) {
			named = append(named, 2)
		}
		if f := flowOf(p.Tuple); p.HasPorts && (l.flows[f] || l.services[flow{dst: f.dst, proto: f.proto, dstPort: f.dstPort}]) {
			named = append(named, 3)
		}
		bad := o.Reason != verdict.Clean
		switch {
		case (len(named) > 0 || bad && dropMalformed) && l.allowed[p.Src]:
			o.Reason = verdict.Allowed
		case len(named) > 0:
			o.Reason = verdict.Blocked
			o.List = named[0] // the order in which weir attributes: addresses, networks, flows
			if l.addresses[p.Src] {
				o.List = 1
			}
		}
	}
	switch o.Reason {
	case verdict.Blocked, verdict.Overtagged:
		o.Action = verdict.Drop
	case verdict.Truncated, verdict.Malformed, verdict.Unparsed:
		if dropMalformed {
			o.Action = verdict.Drop
		}
	}
	return o, named
}

// Every packet of every capture: the kernel, the reference and, in exact mode,
// the oracle agree, with WEIR_LONG=1 in each configuration, otherwise in one of them.
func TestCaptures(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	traffic := frames(t)
	l := drawLists(newRandom(t), traffic)
	t.Logf("%d addresses, %d networks, %d flows, %d services, %d allowed",
		len(l.addresses), len(l.networks), len(l.flows), len(l.services), len(l.allowed))
	configurations := 0
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		for _, dropMalformed := range []bool{false, true} {
			first := configurations
			configurations++
			t.Run(fmt.Sprintf("%v/drop malformed %t", mode, dropMalformed), func(t *testing.T) {
				c := engine.Config{Mode: mode, Policy: verdict.Policy{DropMalformed: dropMalformed}}
				g := built(t, l.rules(), c)
				seen := make(map[verdict.Outcome]int)
				var mu sync.Mutex
				var wg sync.WaitGroup
				for part := range split(traffic, runtime.GOMAXPROCS(0)) {
					k, err := replay.NewKernel(g, 4) // each with counters of its own
					if err != nil {
						t.Fatal(err)
					}
					wg.Go(func() {
						defer k.Close()
						n := make(map[verdict.Outcome]int)
						for i := long.Or(first, 0); i < len(part); i += long.Or(4, 1) {
							f := part[i]
							o, err := compare(l, g, k, c, f.data)
							if err != nil {
								t.Errorf("%s, packet %d: %v: % x", f.capture, f.number, err, f.data[:min(len(f.data), 200)])
								return
							}
							n[o]++
						}
						mu.Lock()
						defer mu.Unlock()
						for o, i := range n {
							seen[o] += i
						}
					})
				}
				wg.Wait()
				reasons := make(map[verdict.Reason]int)
				for o, n := range seen {
					reasons[o.Reason] += n
				}
				t.Log(reasons)
				// What else there is depends on the captures.
				for _, r := range []verdict.Reason{verdict.Clean, verdict.Allowed, verdict.Blocked} {
					if reasons[r] == 0 {
						t.Errorf("no packet left as %v: the lists are too narrow", r)
					}
				}
			})
		}
	}
}

// split cuts traffic into parts.
func split(traffic []frame, parts int) func(yield func([]frame) bool) {
	return func(yield func([]frame) bool) {
		for i := range parts {
			if !yield(traffic[len(traffic)*i/parts : len(traffic)*(i+1)/parts]) {
				return
			}
		}
	}
}

// compare returns the common answer of all three.
func compare(l lists, g *engine.Generation, k *replay.Kernel, c engine.Config, data []byte) (verdict.Outcome, error) {
	got, err := agree(g, k, data)
	if err != nil {
		return got, err
	}
	oracle, named := l.outcome(data, c.DropMalformed)
	if c.Mode == membership.Approximate {
		// Listed packets are found; unlisted ones may be, too, but not as
		// allowed.
		if oracle.Reason == verdict.Blocked && got.Reason != verdict.Blocked {
			return got, fmt.Errorf("%+v, but lists %v match", got, named)
		}
		return got, nil
	}
	if got.Reason == verdict.Blocked && oracle.Reason == verdict.Blocked {
		for _, n := range named {
			if n == got.List {
				oracle.List = n
			}
		}
	}
	if got != oracle {
		return got, fmt.Errorf("kernel %+v, oracle %+v, lists %v", got, oracle, named)
	}
	return got, nil
}
