package measure

import (
	"fmt"
	"net/netip"
	"slices"

	"weir/control/engine"
	digests "weir/control/stage/digest"
	loops "weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/filter/blocked"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/bench/probe"
)

// stage is an optional stage of the pipeline or, as plain, the pipeline without.
type stage struct {
	name   string
	config engine.Config
	frame  func(plain []byte) ([]byte, error)                            // to run on
	run    func(b *probe.Programs, frame []byte, n int) (float64, error) // ns a packet
}

// stages measures what optional stages cost a packet, against the same program
// without them. It uses test runs, as the wire varies by more than a stage costs.
// Nothing is listed.
func (s *session) stages() error {
	for _, family := range []string{"IPv4", "IPv6"} {
		t := key.Tuple{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"),
			Proto: 17, HasPorts: true, SrcPort: 5, DstPort: 6,
		}
		filter := 14 + 20 + 8 // offset of a loop filter in the frame
		if family == "IPv6" {
			t.Src, t.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
			filter = 14 + 40 + 16
		}
		loops, err := loopStages(filter)
		if err != nil {
			return err
		}
		recording, err := digestStages()
		if err != nil {
			return err
		}
		toStation, toGroup := multicastStages()
		for _, stages := range [][]stage{loops, recording, toStation, toGroup} {
			if err := s.beyondPlain(family, packet.Frame(t), stages); err != nil {
				return err
			}
		}
	}
	return nil
}

// loopStages detect loops at a node inside a domain, on a packet's first visit:
// find the filter, OR in the mask, update the checksum.
func loopStages(filter int) ([]stage, error) {
	visit := func(b *probe.Programs, frame []byte, n int) (float64, error) {
		return b.Visit(frame, filter, n)
	}
	var all []stage
	for _, size := range icarus.Sizes {
		node, err := icarus.NewNode(1, 1, icarus.Key{}, icarus.Geometry{Size: size, K: 6, Confirm: 1})
		if err != nil {
			return nil, err
		}
		tagged := func(plain []byte) ([]byte, error) {
			pkt, outcome := node.Insert(plain[14:], 1500)
			if outcome != icarus.Inserted {
				return nil, fmt.Errorf("insert a loop filter: %v", outcome)
			}
			return slices.Concat(plain[:14], pkt, make([]byte, 64)), nil
		}
		one := stage{name: fmt.Sprintf("loop-%d", size), frame: tagged, run: visit}
		one.config.Parts = []engine.Part{&loops.Part{Node: node}}
		all = append(all, one)
	}
	return append([]stage{{name: "plain", frame: all[len(all)-1].frame, run: visit}}, all...), nil
}

// digestStages record different packets, in filters of several sizes with a
// false-positive rate of 1 %. The smallest fits into a core's cache. A turn begins
// with an empty filter and does not fill it.
func digestStages() ([]stage, error) {
	long := func(plain []byte) ([]byte, error) { return append(slices.Clone(plain), make([]byte, 70)...), nil }
	stamped := func(b *probe.Programs, frame []byte, n int) (float64, error) {
		return b.Stamped(frame, min(n, 100_000))
	}
	all := []stage{{name: "plain", frame: long, run: stamped}}
	for _, filter := range []struct {
		name    string
		packets int
	}{{"digest-100k", 1e5}, {"digest-1M", 1e6}, {"digest-10M", 1e7}} {
		g, err := blocked.For(filter.packets, 0.01)
		if err != nil {
			return nil, err
		}
		part := &digests.Part{Filter: g}
		one := stage{name: filter.name, frame: long, run: func(b *probe.Programs, frame []byte, n int) (float64, error) {
			part.Read(b.Stats(), beginSlice)
			return stamped(b, frame, n)
		}}
		one.config.Parts = []engine.Part{part}
		all = append(all, one)
	}
	return all, nil
}

// multicastStages forward multicast: a packet to one station, to a group that some
// port wants, and to one that none wants. A filter has room for 1024 groups.
func multicastStages() (toStation, toGroup []stage) {
	forward := func(b *probe.Programs, frame []byte, n int) (float64, error) {
		return b.Forward(frame, n)
	}
	station := func(plain []byte) ([]byte, error) { return append(slices.Clone(plain), make([]byte, 64)...), nil }
	groups := []netip.Addr{netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff0e::1")}
	group := func(plain []byte) ([]byte, error) {
		frame, err := station(plain)
		frame[0] |= 1
		if plain[14]>>4 == 4 {
			copy(frame[14+16:], groups[0].AsSlice())
		} else {
			copy(frame[14+24:], groups[1].AsSlice())
		}
		return frame, err
	}
	config := func(wanted ...netip.Addr) engine.Config {
		return engine.Config{Parts: []engine.Part{&multicast.Part{MaxGroups: 1024, Ports: []multicast.Port{{Groups: wanted}}}}}
	}
	return []stage{
			{name: "plain", frame: station, run: forward},
			{name: "multicast-none", config: config(), frame: station, run: forward},
		}, []stage{
			{name: "plain", frame: group, run: forward},
			{name: "multicast-unwanted", config: config(), frame: group, run: forward},
			{name: "multicast-wanted", config: config(groups...), frame: group, run: forward},
		}
}

// beyondPlain adds what each stage costs beyond the first.
func (s *session) beyondPlain(family string, plain []byte, stages []stage) (err error) {
	s.logf("stages: %s, %s", stages[1].name, family)
	names := make([]string, len(stages))
	measure := make(map[string]func() (float64, error))
	for i, one := range stages {
		g, err := engine.Build(nil, one.config)
		if err != nil {
			return err
		}
		defer g.Close()
		b, err := probe.Load(g.Kernel(), s.keys)
		if err != nil {
			return err
		}
		defer b.Close()
		frame, err := one.frame(plain)
		if err != nil {
			return err
		}
		names[i] = one.name
		measure[one.name] = func() (float64, error) { return one.run(b, frame, s.runs) }
	}
	release, err := loader.StayOnCPU()
	if err != nil {
		return err
	}
	defer release()
	all, err := s.turns(names[0], names, func(name string) (float64, error) { return measure[name]() })
	if err != nil {
		return err
	}
	for _, name := range names {
		s.add(Result{
			Benchmark: "stages", Contender: name, Set: family, Rounds: len(all[name]),
			Spread: spread(all.ratios(name, "plain")), NS: all.median(name), NetNS: median(all.beyond(name, "plain")),
		})
	}
	return nil
}
