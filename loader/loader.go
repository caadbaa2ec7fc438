// Package loader brings weir's data plane into the kernel: the compiled object is
// specialised to a configuration, loaded, attached to interfaces and pinned; a
// running program is adopted, replaced without a gap, or detached.
//
// A [Generation] has the filter maps that the programs of one configuration share,
// of exactly the sizes that the configuration states and mapped into memory. A
// [Program] is a generation's code for one interface, with its own counters
// ([Stats]). An [Attachment] is an interface with weir's program. It lives in the
// kernel, pinned in a directory ([Pins]), and outlives the process:
//
//	g, err := loader.NewGeneration(cfg)   // then fill g.Block() and g.Allow()
//	next, err := loader.DefaultPins.Prepare(target, hooks.Native)
//	p, err := g.Load(next.Stats())
//	a, err := next.Attach(p, metadata)    // new, or replacing the program there
//	…
//	p, err = other.Load(a.Stats())        // of another generation
//	err = a.Replace(p)                    // each packet meets one or the other
//
// Interfaces and their network namespaces are found by package netif, and programs are kept
// on them by package hooks, which knows nothing of maps and counters.
//
// CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON suffice, with a directory of pins that the
// user may write. Entering another network namespace takes CAP_SYS_ADMIN.
package loader

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"weir/bpf"
)

// KeySet is the geometry and the shapes of a set of listed keys, constants of the
// program. A set without lines, of its own or of the quotient table, is empty.
type KeySet = bpf.WeirKeySet

// Directory is the geometry of the directory of IPv4 prefixes.
type Directory = bpf.WeirDirectory

// Reach is the geometry of the reach of allow lists.
type Reach = bpf.WeirReach

// Quotient is the geometry and the secret of the table of IPv4 prefixes.
type Quotient = bpf.WeirQuotient

// QuotientKeyBits is the number of bits by which the table's scale is shifted.
const QuotientKeyBits = 34

// Secret selects a hash function.
type Secret = bpf.WeirSecret

// Seed is the seed from which secrets derive, zero for none.
type Seed = [32]uint8

// Shape is one of a set's shapes, expanded into masks.
type Shape = bpf.WeirShape

// Failsafe has the ports and prefixes that pass before any list is looked up.
type Failsafe = bpf.WeirFailsafe

// Rules says where the rules of lists are: see bpf/rules.h.
type Rules = bpf.WeirRuleLayout

// RuleWords is the map of the rules of lists.
const RuleWords = bpf.WeirMapRuleWords

// RulesHere is the constant with the rules that match on an interface, a bit for each.
const RulesHere = bpf.WeirVarRulesHere

// Counter is a number of packets and of the bytes in them.
type Counter struct {
	Packets, Bytes uint64
}

// Config configures a generation, whose programs are specialised to it.
type Config struct {
	Secret        Secret // of the key hash, a new one for each generation
	Block         KeySet
	BlockClasses  []byte // extra bits of each class of networks; nil: all have the same
	Allow         KeySet
	Failsafe      Failsafe
	FailsafeICMP  uint8 // 1 << packet.ICMP of each kind that passes, as it comes in
	DropMalformed bool  // drop packets that are truncated or malformed, or cannot be parsed
	DropNotIP     bool  // drop frames that are neither IP nor ARP nor of the link itself
	Inner         bool  // headers in tunnels are matched
	DHCPServer    bool  // the host serves or relays DHCP
	Monitor       bool  // count, and drop nothing
	Out           bool  // the packets leave the host; they are neither changed nor redirected
	TC            bool  // incoming packets may also be filtered by TC
	Kept          bool  // the maps of the block set may be pinned for the next process; see Keep
	Lists         int   // highest list number in the tables; lists are numbered from 1
	NoLean        bool  // all packets take the general path, for comparison
	SampleClean   bool  // packets that match nothing have events, too

	Rules Rules               // of lists; without nodes: no list has one
	Words map[string][]uint64 // what maps begin with that depend on the lists, by name

	Trackers    []Tracker // of heavy hitters, at most MaxTrackers
	TrackerSeed Seed      // the trackers' secrets derive from it; stored with their counts

	EphemeralPort uint16 // for scan detectors: the port from which on hosts connect

	Shared *Shared        // maps of all generations; nil: none
	Maps   map[string]int // entries of maps that parts have in the generation, by name; they are zero at first
	Parts  []Part         // the shares of stages

	Wakes *Wakes // through which programs wake this process; nil: they do not
}

// As in the object, whose BTF does not have macros.
const (
	gateSrc   = 2       // GATE_SRC
	gateDst   = 4       // GATE_DST
	markWords = 1 << 18 // MARK4_WORDS: a bit for each IPv4 network /24
	maxBits   = 6       // LINE_BITS_MAX
	maxRest   = 18      // in REST_LINES

	maxReachShift = 26        // at least a word of networks
	classes       = 1<<11 + 1 // of CLASS_BITS, and none

	maxClassedBits = 4 // of the first line, below CLASS_SHIFT

	minHotBuckets = 32 // for a bucket and a slot to be the whole hash
)

// Actions that the program returns.
const (
	ActionDrop     = 1 // XDP_DROP
	ActionPass     = 2 // XDP_PASS
	ActionRedirect = 4 // XDP_REDIRECT
)

const (
	maxLists   = 1<<16 - 1 // a slot of the table has 16 bits for the list
	maxEntries = 1 << 30   // of a map: 64 GiB of lines
)

// maxLeanLengths bounds the prefix lengths of the lean path without a directory, sources and
// destinations together: the verifier of Linux 5.10 walks 640 thousand instructions for 32.
const maxLeanLengths = 16

// maxLeanTrackers is the number of trackers that the lean path has.
const maxLeanTrackers = 2

// general returns why all packets take the general path, or nothing. The lean path
// (bpf/pipeline.h) has what most configurations use, and answers as the general one does.
func (c *Config) general() (why []string) {
	for _, use := range []struct {
		what string
		is   bool
	}{
		{"the lean path is switched off", c.NoLean},
		{fmt.Sprintf("more than %d kinds of IPv4 flows, or prefix lengths in approximate mode, are blocked", maxLeanHashed), c.Block.N_v4+c.Block.N_v4Flow > maxLeanHashed},
		{fmt.Sprintf("more than %d prefix lengths of IPv4 are blocked, without a directory", maxLeanLengths), c.Block.Directory.Shift == 0 && c.Block.N_prefixes > maxLeanLengths},
		{fmt.Sprintf("packets are counted by more than %d trackers", maxLeanTrackers), len(c.counting()) > maxLeanTrackers},
		{"scan detectors", slices.ContainsFunc(c.Trackers, func(t Tracker) bool { return t.Pairs != 0 })},
		{"packets that match nothing have events, for a rehearsal", c.SampleClean},
		{"headers in tunnels are matched", c.Inner},
	} {
		if use.is {
			why = append(why, use.what)
		}
	}
	return why
}

// maxLeanHashed bounds the shapes of a family that the lean path looks up in the cascade, of
// addresses and flows together, likewise.
const maxLeanHashed = 4

// As in the object, whose BTF does not have macros.
const (
	leanV4 = 1 // LEAN_V4
	leanV6 = 2 // LEAN_V6
)

// lean returns which packets take the lean path.
func (c *Config) lean() uint8 {
	switch b := &c.Block; {
	case len(c.general()) > 0:
		return 0
	case b.Lines != 0 && b.N_v6+b.N_v6Flow > maxLeanHashed:
		return leanV4
	}
	return leanV4 | leanV6
}

// validate rejects what the kernel would accept but would let listed packets
// through or make a lookup fail.
func (c *Config) validate() error {
	if c.Lists < 0 || c.Lists > maxLists {
		return fmt.Errorf("%d lists: not in 0 … %d", c.Lists, maxLists)
	}
	f := &c.Failsafe
	if int(f.N_ports) > len(f.Ports) || int(f.N_v4) > len(f.V4) || int(f.N_v6) > len(f.V6) {
		return errors.New("more failsafe ports or prefixes than the program has room for")
	}
	if err := c.validateTrackers(); err != nil {
		return err
	}
	for name, n := range c.Maps {
		if n < 1 || n > maxEntries {
			return fmt.Errorf("%s: %d entries: not in 1 … %d", name, n, maxEntries)
		}
	}
	if err := validateSet(&c.Block); err != nil {
		return fmt.Errorf("block set: %w", err)
	}
	if err := validateSet(&c.Allow); err != nil {
		return fmt.Errorf("allow set: %w", err)
	}
	if c.Allow.Quotient.Front > 0 || c.Allow.Directory.Shift > 0 {
		return errors.New("allow set: it has neither front nor directory")
	}
	return validateReach(&c.Allow)
}

// validateReach checks that each word of networks is one, and that all that is allowed has bits.
func validateReach(s *KeySet) error {
	r := &s.Reach
	if *r == (Reach{}) {
		return nil
	}
	if r.Shift < 1 || r.Shift > maxReachShift {
		return fmt.Errorf("allow set: a reach of addresses shifted by %d", r.Shift)
	}
	if s.N_prefixes+s.N_v4+s.N_v4Flow > 0 && r.GatesV4 == 0 || s.N_v6+s.N_v6Flow > 0 && r.GatesV6 == 0 {
		return fmt.Errorf("allow set: a reach of sides %#x and %#x, without those of a family", r.GatesV4, r.GatesV6)
	}
	return nil
}

func validateSet(s *KeySet) error {
	if err := validatePrefixes(s); err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	if s.Lines == 0 {
		return nil // empty, whatever else is set
	}
	if s.HotBuckets != 0 && (s.HotBuckets < minHotBuckets || bits.OnesCount32(s.HotBuckets) != 1) {
		return fmt.Errorf("%d buckets of hot keys: not a power of two from %d on", s.HotBuckets, minHotBuckets)
	}
	if max(s.Lines, s.Buckets, s.Marks6Lines, s.HotBuckets) > maxEntries {
		return errors.New("more lines or buckets than a map can have")
	}
	if s.Classes != 0 && (s.First > maxClassedBits || s.Buckets != 0) {
		return fmt.Errorf("classes of networks with %d bits in the first line, or with a table", s.First)
	}
	if s.First < 1 || s.First > maxBits || s.Rest > maxRest {
		return fmt.Errorf("%d bits in the first line and %d in others: not in 1 … %d and 0 … %d",
			s.First, s.Rest, maxBits, maxRest)
	}
	if s.GatesV6&(gateSrc|gateDst) != 0 && s.Marks6Lines == 0 {
		return errors.New("no lines for the IPv6 marks that shapes wait for")
	}
	if err := validateShapes(s.GatesV4, s.V4[:], s.N_v4, s.V4Flow[:], s.N_v4Flow); err != nil {
		return fmt.Errorf("IPv4: %w", err)
	}
	if err := validateShapes(s.GatesV6, s.V6[:], s.N_v6, s.V6Flow[:], s.N_v6Flow); err != nil {
		return fmt.Errorf("IPv6: %w", err)
	}
	return nil
}

func validatePrefixes(s *KeySet) error {
	q := &s.Quotient
	if int(s.N_prefixes) > len(s.Prefixes) {
		return fmt.Errorf("%d lengths: more than %d", s.N_prefixes, len(s.Prefixes))
	}
	if q.Lines == 0 {
		if s.N_prefixes > 0 {
			return errors.New("no lines for them")
		}
		return nil
	}
	if s.N_v4 > 0 {
		return errors.New("IPv4 addresses are in both tables")
	}
	if max(q.Lines, q.Buckets, q.Front) > maxEntries || q.Buckets < 2 {
		return fmt.Errorf("%d lines and %d buckets: not what a map can have", q.Lines, q.Buckets)
	}
	if !slices.Contains([]uint32{63, 31, 21, 15, 12}, q.LaneBits) || q.ListBit < 1 || q.ListBit >= q.LaneBits || q.RemMask != 1<<(q.ListBit-1)-1 {
		return fmt.Errorf("lanes of %d bits with a list number from bit %d on (mask %#x of a remainder)", q.LaneBits, q.ListBit, q.RemMask)
	}
	if last := q.KeyMask * q.Scale >> QuotientKeyBits; q.KeyMask >= 1<<QuotientKeyBits || last != 8*uint64(q.Lines)-1 {
		return fmt.Errorf("keys up to %#x, scaled by %#x, are in words up to %d, of %d lines", q.KeyMask, q.Scale, last, q.Lines)
	}
	if q.Front > 0 && q.KeyMask*q.FrontScale>>QuotientKeyBits != uint64(q.Front)-1 {
		return fmt.Errorf("a front of %d words, scaled by %#x", q.Front, q.FrontScale)
	}
	return validateDirectory(s)
}

// validateDirectory checks that each address has a word, and each length a bit.
func validateDirectory(s *KeySet) error {
	d := &s.Directory
	if *d == (Directory{}) {
		return nil
	}
	if d.Shift < 1 || d.Shift > 31 || d.Parts+s.N_prefixes != 64 || d.Src+d.Dst == 0 {
		return fmt.Errorf("a directory of %d and %d words, shift %d, %d parts and %d lengths", d.Src, d.Dst, d.Shift, d.Parts, s.N_prefixes)
	}
	for _, words := range []uint32{d.Src, d.Dst} {
		if words != 0 && words != 1<<(32-d.Shift) {
			return fmt.Errorf("a directory of %d words for addresses shifted by %d", words, d.Shift)
		}
	}
	for _, l := range s.Prefixes[:s.N_prefixes] {
		if l.DstMask != 0 && d.Dst == 0 || l.DstMask == 0 && d.Src == 0 {
			return errors.New("a directory without one side's prefixes")
		}
	}
	return nil
}

// validateShapes checks that every shape in use is probed: it has a gate, and the
// set has that gate.
func validateShapes(gates uint32, hosts []bpf.WeirShape, nHosts uint32, flows []bpf.WeirShape, nFlows uint32) error {
	if int(nHosts) > len(hosts) || int(nFlows) > len(flows) {
		return fmt.Errorf("%d and %d shapes: more than %d", nHosts, nFlows, len(hosts))
	}
	var all uint32
	for _, s := range slices.Concat(hosts[:nHosts], flows[:nFlows]) {
		if s.Gate == 0 {
			return errors.New("a shape without a gate")
		}
		all |= s.Gate
	}
	if gates != all {
		return fmt.Errorf("gates %#x, where the shapes have %#x", gates, all)
	}
	return nil
}
