package loader

import (
	"slices"
	"testing"

	"weir/bpf"
	"weir/loader/netif"
	"weir/tests/lab"
)

// policed is a part with memory: a policer on any interface.
type policed struct{ limit uint32 }

func (p policed) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarPolicer: &bpf.WeirPolicerConfig{Cost: 1, Limit: uint64(1 + p.limit), Tuple: 1}}
}

func (policed) Devices(netif.Target) map[string]Devices { return nil }
func (policed) General(netif.Target) string             { return "it is policed" }
func (policed) Keeps(netif.Target) map[string]int {
	return map[string]int{bpf.WeirMapPolicerNow: 1, bpf.WeirMapPolicerCpus: CPUs()}
}

func (policed) Head(k Kept) (*Seed, *uint64) {
	now := &Entries[bpf.WeirPolicerState](k, bpf.WeirMapPolicerNow)[0]
	return &now.Seed, &now.Identity
}

func (p policed) Identity(netif.Target, Seed) uint64 { return 7 + uint64(p.limit) }

func (policed) Begin(k Kept) {
	Entries[bpf.WeirPolicerCpu](k, bpf.WeirMapPolicerCpus)[0].Random = 3
}

// The memory of a part goes on with the next program, unless another is wanted. The seed
// stays in any case.
func TestPartKeeps(t *testing.T) {
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var seed Seed
	for n, step := range []struct {
		part  policed
		fresh bool
	}{{policed{}, true}, {policed{}, false}, {policed{1}, true}, {policed{1}, false}} {
		p := loadAndTake(t, newTestGeneration(t, Config{Parts: []Part{step.part}}), s)
		p.Close()
		s.Read(func(k Kept) {
			at, identity := step.part.Head(k)
			first := &Entries[bpf.WeirPolicerCpu](k, bpf.WeirMapPolicerCpus)[0]
			if (first.Random == 3) != step.fresh || *identity != step.part.Identity(netif.Target{}, *at) {
				t.Errorf("step %d: new memory: %t, identity %d", n, first.Random == 3, *identity)
			}
			if *at == (Seed{}) || n > 0 && *at != seed {
				t.Errorf("step %d: the seed is %v, after %v", n, *at, seed)
			}
			seed, first.Random = *at, 4
		})
	}
}

// firstSeen is a part with new flows.
type firstSeen bpf.WeirFirstConfig

func (f firstSeen) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarFirstSeen: (*bpf.WeirFirstConfig)(&f)}
}

func (firstSeen) Devices(netif.Target) map[string]Devices { return nil }
func (firstSeen) General(netif.Target) string             { return "" }
func (f firstSeen) Keeps(netif.Target) map[string]int {
	return map[string]int{bpf.WeirMapFirstNow: 1, bpf.WeirMapFirstCpus: CPUs(), bpf.WeirMapFirstLines: banks * int(f.Lines)}
}

func (firstSeen) Head(k Kept) (*Seed, *uint64) {
	now := &Entries[bpf.WeirFirstState](k, bpf.WeirMapFirstNow)[0]
	return &now.Seed, &now.Identity
}

func (f firstSeen) Identity(netif.Target, Seed) uint64 { return 7 + uint64(f.Sinks) }

func (firstSeen) Begin(Kept) {}

// recording is a part that records the packets that pass.
type recording bpf.WeirDigests

func (r recording) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarDigestConfig: (*bpf.WeirDigests)(&r)}
}

func (recording) Devices(netif.Target) map[string]Devices { return nil }
func (recording) General(netif.Target) string             { return "" }
func (r recording) Keeps(netif.Target) map[string]int {
	return map[string]int{
		bpf.WeirMapDigestNow: 1, bpf.WeirMapDigestBanks: CPUs() * banks,
		bpf.WeirMapDigestLines: CPUs() * banks * int(r.Lines), bpf.WeirMapDigestSightings: CPUs() * 1024,
	}
}

func (recording) Head(k Kept) (*Seed, *uint64) {
	now := &Entries[bpf.WeirDigestState](k, bpf.WeirMapDigestNow)[0]
	return &now.Seed, &now.Identity
}

func (r recording) Identity(netif.Target, Seed) uint64 { return 7 + uint64(r.Lines) }

func (recording) Begin(Kept) {}

// A part's bank is exchanged, and none of the trackers' banks with it.
func TestExchangeBank(t *testing.T) {
	g := newTestGeneration(t, Config{Trackers: []Tracker{{Lines: 2, Buckets: 1}}, Parts: []Part{recording{Lines: 1, Bits: 1}}})
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer loadAndTake(t, g, s).Close()
	tr, err := g.OpenTrackers(s)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const bank = MaxTrackers // DIGEST_BANK
	s.Read(func(k Kept) {
		active := func(part, tracker int) {
			t.Helper()
			if p, of := Bank(k, bank), tr.Active(0); p != part || of != tracker {
				t.Errorf("the part uses bank %d and the tracker bank %d, want %d and %d", p, of, part, tracker)
			}
		}
		active(0, 0)
		ExchangeBank(k, bank)
		active(1, 0)
		tr.Exchange(0)
		active(1, 1)
		ExchangeBank(k, bank)
		active(0, 1)
	})
}

// loopNode is a part that looks for loops, and drops packets in one.
type loopNode bpf.WeirLoopConfig

func (n loopNode) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarLoopNode: (*bpf.WeirLoopConfig)(&n), bpf.WeirVarDropLooped: Flag(true)}
}

func (loopNode) Devices(netif.Target) map[string]Devices { return nil }
func (loopNode) General(netif.Target) string             { return "loops are detected" }

// forwarding is a part that copies packets to the ports that want their groups.
type forwarding bpf.WeirMulticastFilters

func (f forwarding) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarMulticast: (*bpf.WeirMulticastFilters)(&f)}
}

func (forwarding) Devices(netif.Target) map[string]Devices { return nil }
func (forwarding) General(netif.Target) string             { return "multicast is forwarded" }
func (f forwarding) maps() map[string]int {
	filters := int(f.Ports + 1)
	return map[string]int{
		bpf.WeirMapMulticastLines: filters * int(f.Lines), bpf.WeirMapMulticastStats: filters * CPUs(),
		bpf.WeirMapMulticastDevices: int(f.Ports), bpf.WeirMapMulticastMtu: 1,
	}
}

// A part has maps in a generation, whose words are zero at first and go with it. Without them, a
// device map has no room for programs, which kernels before 5.15 refuse in generic mode.
func TestPartMaps(t *testing.T) {
	lab.Root(t)
	f := forwarding{Ports: 2, Lines: 5, First: 5, Rest: 6}
	g, err := NewGeneration(Config{Parts: []Part{f}, Maps: f.maps()})
	if err != nil {
		t.Fatal(err)
	}
	words := g.Words(bpf.WeirMapMulticastLines)
	if len(words) != 3*5*8 || slices.Max(words) != 0 || g.Words(bpf.WeirMapBlockLines) != nil {
		t.Errorf("%d words, %d of a map that is no part's", len(words), len(g.Words(bpf.WeirMapBlockLines)))
	}
	if index, err := g.Device(bpf.WeirMapMulticastDevices, 1); index != 0 || err != nil {
		t.Errorf("an entry has interface %d, %v", index, err)
	}
	l := lab.New(t)
	to := target(l.B)
	iface, err := to.Find()
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	if err := g.SetDevice(bpf.WeirMapMulticastDevices, 1, to, iface, nil); err != nil {
		t.Fatal(err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("the program of an entry stays open: before %v, after %v", before, after)
	}
	if index, err := g.Device(bpf.WeirMapMulticastDevices, 1); index != iface.Index || err != nil {
		t.Errorf("an entry has interface %d, %v, want %d", index, err, iface.Index)
	}
	if err := g.ClearDevice(bpf.WeirMapMulticastDevices, 1); err != nil {
		t.Error(err)
	}
	if index, err := g.Device(bpf.WeirMapMulticastDevices, 1); index != 0 || err != nil {
		t.Errorf("a cleared entry has interface %d, %v", index, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if g.Words(bpf.WeirMapMulticastLines) != nil {
		t.Error("a closed generation has words")
	}
	if _, err := NewGeneration(Config{Maps: map[string]int{bpf.WeirMapMulticastLines: maxEntries + 1}}); err == nil {
		t.Error("a map has too many entries")
	}
	for name, want := range map[string]uint32{bpf.WeirMapMulticastDevices: 4, bpf.WeirMapMulticastMtu: 8} {
		if got := newTestGeneration(t, Config{}).spec.Maps[name].ValueSize; got != want {
			t.Errorf("%s: values of %d bytes, want %d", name, got, want)
		}
	}
}

// Every map that a version has pinned beside a program goes on in the next one. What a generation
// has anew, and what all programs share, is none of them.
func TestPinnedMapNames(t *testing.T) {
	names := pinnedMapNames()
	for _, name := range []string{
		"reason_stats", "list_stats", "ethertype_stats", "inner_stats", "tracker_now", "tracker_lines",
		"tracker_flows", "tracker_pairs", "penalties", "thresholds", "windows", "events", "sampling_now",
		"loop_stats", "loop_edges", "reply_insides", "digest_now", "digest_banks", "digest_lines", "digest_sightings",
		"policer_now", "policer_cpus", "first_now", "first_cpus", "first_lines",
	} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not kept", name)
		}
	}
	for _, name := range slices.Concat(filterMaps, sharedMapNames, wordMaps) {
		if slices.Contains(names, name) {
			t.Errorf("%s is kept", name)
		}
	}
	spec, err := objectTC()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range spec.Maps {
		if slices.Contains(m.Tags, kept) && !slices.Contains(names, name) {
			t.Errorf("%s is kept by programs for TC alone", name)
		}
	}
}

// sampling samples incoming packets, and knows who converses.
type sampling struct{}

func (sampling) Constants(netif.Target, Seed) map[string]any {
	return map[string]any{bpf.WeirVarSamplerOn: Flag(true), bpf.WeirVarCollateral: Flag(true)}
}

func (sampling) Devices(netif.Target) map[string]Devices { return nil }
func (sampling) General(netif.Target) string             { return "" }
