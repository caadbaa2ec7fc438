package police

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Pattern is a limit of the packets that a rule matches, over all interfaces.
type Pattern struct {
	Rule  flood.Rule
	Rate  quantity.Rate // 0: they are dropped
	Until time.Time     // zero: a command ends it
	Trial bool          // they are only counted
}

// same reports whether programs have the same of two patterns, but for a trial.
func (p *Pattern) same(o *Pattern) bool {
	return p.Rate == o.Rate && p.Until.Equal(o.Until) && p.Rule.String() == o.Rule.String()
}

// Keys returns keys that all packets of the pattern have, one of each family: it matches no others, but
// not all of theirs.
func (p *Pattern) Keys() (all []key.Key) {
	for _, v6 := range []bool{false, true} {
		whole := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if v6 {
			whole = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		sides := [2]netip.Prefix{whole, whole}
		for i, f := range []flood.Field{flood.SourcePrefix, flood.DestinationPrefix} {
			if of, ok := p.Rule.Side(f); ok {
				sides[i] = of
			}
		}
		if sides[0].Addr().Is6() != v6 || sides[1].Addr().Is6() != v6 {
			continue
		}
		s := key.Shape{SrcBits: uint8(sides[0].Bits()), DstBits: uint8(sides[1].Bits())}
		if v6 {
			s.Fields |= key.FieldV6
		}
		t := key.Tuple{Src: sides[0].Addr(), Dst: sides[1].Addr()}
		exact := func(f flood.Field) (uint32, bool) {
			lo, hi := p.Rule.Bounds(f)
			return lo, lo == hi
		}
		if n, ok := exact(flood.Protocol); ok {
			t.Proto = uint8(n)
			s.Fields |= key.FieldProto
		}
		if t.HasPorts = key.HasPorts(t.Proto); t.HasPorts {
			if n, ok := exact(flood.SourcePort); ok {
				t.SrcPort = uint16(n)
				s.Fields |= key.FieldSrcPort
			}
			if n, ok := exact(flood.DestinationPort); ok {
				t.DstPort = uint16(n)
				s.Fields |= key.FieldDstPort
			}
		}
		if k, ok := s.Of(t); ok {
			all = append(all, k)
		}
	}
	return all
}

// limit returns the pattern as programs have it.
func (p *Pattern) limit() flood.Pattern {
	all := flood.Pattern{Rule: p.Rule, Trial: p.Trial, Limit: Source{Rate: p.Rate, Until: p.Until}.limit()}
	if p.Rate.Value == 0 {
		all.Rate, all.Burst = 0, 0
	}
	return all
}

// Patterns is the share of programs for incoming packets that drops, or limits, what patterns match.
type Patterns struct {
	engine.BasePart
	patterns []Pattern
	placed   atomic.Pointer[[]*placed] // in the generations that it has filled, the last one last
}

// placed are the patterns in the memory of a generation, which others share, as one in monitor mode.
type placed struct {
	table *bpf.WeirPatternTable
	cpus  []bpf.WeirPatternCpu
	in    [flood.MaxPatterns]*Pattern // by row; nil: it is free
	names Names
}

// NewPatterns returns the share for patterns, flood.MaxPatterns at most; nil for none.
func NewPatterns(patterns []Pattern) *Patterns {
	if len(patterns) == 0 {
		return nil
	}
	return &Patterns{patterns: patterns}
}

// Constants says that there are patterns.
func (p *Patterns) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if !t.Out {
		all[bpf.WeirVarPatterning] = loader.Flag(true)
		all[bpf.WeirVarSharingRates] = loader.Flag(p.sharing())
	}
	return all
}

// Twin makes the twin of programs have the patterns.
func (p *Patterns) Twin(v *verdict.Program) {
	if v.Out {
		return
	}
	v.Patterns = &flood.Patterns{Now: loader.Monotonic}
	for i := range p.patterns {
		v.Patterns.Add(p.patterns[i].limit())
	}
}

// Maps returns the maps of patterns and of their counters.
func (p *Patterns) Maps(out bool) (map[string]int, error) {
	if out {
		return nil, nil
	}
	all := map[string]int{bpf.WeirMapPatterns: 1, bpf.WeirMapPatternCpus: loader.CPUs()}
	if p.sharing() {
		all[bpf.WeirMapPatternBuckets] = maxBuckets
	}
	return all, nil
}

// maxBuckets is of how many sources, destinations or flows rates are kept, of all patterns: 7 MB.
const maxBuckets = 1 << 16

// sharing reports whether there is a pattern whose rate not all packets share.
func (p *Patterns) sharing() bool { return slices.ContainsFunc(p.patterns, Pattern.shares) }

func (p Pattern) shares() bool { return p.Rule.Per != flood.Per{} }

// Fill sets the patterns in a generation.
func (p *Patterns) Fill(g *loader.Generation, _ *hash.Secret) error {
	if !g.Has(bpf.WeirMapPatterns) {
		return nil // it is of outgoing packets
	}
	at := &placed{table: &loader.EntriesOf[bpf.WeirPatternTable](g, bpf.WeirMapPatterns)[0], cpus: loader.EntriesOf[bpf.WeirPatternCpu](g, bpf.WeirMapPatternCpus)}
	at.follow(p.patterns)
	var all []*placed
	if before := p.placed.Load(); before != nil {
		all = slices.Clone((*before)[max(0, len(*before)-maxPlaced):])
	}
	all = append(all, at)
	p.placed.Store(&all)
	return nil
}

// maxPlaced bounds the generations that a share knows: one is active, and others have failed since.
const maxPlaced = 64

func (p *Patterns) at(g *loader.Generation) *placed {
	if p == nil {
		return nil
	}
	words, all := g.Words(bpf.WeirMapPatterns), p.placed.Load()
	if len(words) == 0 || all == nil {
		return nil
	}
	for _, at := range slices.Backward(*all) { // memory of one that was closed may be another's
		if unsafe.Pointer(at.table) == unsafe.Pointer(&words[0]) {
			return at
		}
	}
	return nil
}

// Follow makes a generation, which the share has filled, have other patterns. One that stays goes on,
// as does one whose trial ends; new ones are there before others leave, where there is room. No packet
// meets half a pattern. It is false where the share has not filled the generation, or that has no buckets
// for rates which not all packets of a pattern share.
func (p *Patterns) Follow(g *loader.Generation, patterns []Pattern) bool {
	at := p.at(g)
	if at == nil || slices.ContainsFunc(patterns, Pattern.shares) && !g.Has(bpf.WeirMapPatternBuckets) {
		return false
	}
	p.patterns = patterns
	at.follow(patterns)
	return true
}

func (p *placed) follow(patterns []Pattern) {
	var added []*Pattern
	stays := [flood.MaxPatterns]bool{}
	for i := range patterns {
		of := &patterns[i]
		at := p.find(of)
		if at < 0 {
			added = append(added, of)
			continue
		}
		stays[at], p.in[at] = true, of
		atomic.StoreUint32(&p.table.Rows[at].State, stateIn(of))
	}
	for len(added) > 0 && slices.Contains(p.in[:], nil) {
		stays[p.place(added[0])] = true
		added = added[1:]
	}
	ended := false
	for at := range p.in {
		if p.in[at] != nil && !stays[at] {
			atomic.StoreUint32(&p.table.Rows[at].State, patternOff)
			p.in[at], ended = nil, true
		}
	}
	if ended {
		loader.Grace() // before a row is another's
	}
	for _, of := range added {
		p.place(of)
	}
}

// name makes a pattern's name known for a row. Events of the former one may still be read.
func (p *placed) name(at int, of *Pattern) {
	var names [flood.MaxPatterns]string
	if all := p.names.all.Load(); all != nil {
		names = *all
	}
	names[at] = of.Rule.String()
	p.names.all.Store(&names)
}

// find returns the row of a pattern, -1 where there is none.
func (p *placed) find(of *Pattern) int {
	return slices.IndexFunc(p.in[:], func(o *Pattern) bool { return o != nil && o.same(of) })
}

// The states of patterns: see bpf/pattern.h.
const (
	patternOff = iota
	patternTrial
	patternEnforced
)

func stateIn(p *Pattern) uint32 {
	if p.Trial {
		return patternTrial
	}
	return patternEnforced
}

// place puts a pattern in the first row that is free, and returns its index.
func (p *placed) place(of *Pattern) int {
	at := slices.Index(p.in[:], nil)
	p.in[at] = of
	p.name(at, of)
	p.write(at, of)
	return at
}

// write makes a row, which is off, a pattern's, with counters of zero.
func (p *placed) write(at int, of *Pattern) {
	row := bpf.WeirPattern{}
	for _, side := range []struct {
		field      flood.Field
		addr, mask *[4]uint32
	}{{flood.SourcePrefix, &row.Src, &row.SrcMask}, {flood.DestinationPrefix, &row.Dst, &row.DstMask}} {
		if prefix, ok := of.Rule.Side(side.field); ok {
			*side.addr, *side.mask = engine.Words(prefix.Addr()), engine.Mask(uint8(prefix.Bits()))
			if row.Family = 6; prefix.Addr().Is4() {
				row.Family = 4
			}
		}
	}
	for f := range flood.Field(len(row.Asked) + 1) {
		lo, hi := of.Rule.Bounds(f)
		row.Fields[f].Low, row.Fields[f].Width = lo, hi-lo
		if f != flood.Protocol && hi-lo < math.MaxUint32 {
			row.Asked[row.Asks] = uint8(f)
			row.Asks++
		}
	}
	row.Fields[len(row.Fields)-1].Low = of.Rule.ComparedFlags() // PATTERN_COMPARED_FLAGS
	row.Serial = p.table.Rows[at].Serial + 1
	if row.Sharing = uint8(of.Rule.Per.Sharing); of.Rule.Per.Sharing == flood.SharedBySource {
		bits := uint8(of.Rule.Per.Bits)
		v6 := engine.Mask(2 * bits)
		row.SourceMask = [3]uint32{engine.Mask(bits)[0], v6[0], v6[1]}
	}
	l := of.limit()
	cost, burst := l.Words()
	row.Rate = bpf.WeirPenalty{Until: uint64(l.Until), Cost: cost, Burst: burst}
	if l.Bytes {
		row.ByBytes = 1
	}
	p.table.Rows[at] = row
	for cpu := range p.cpus {
		p.cpus[cpu].Of[at] = bpf.WeirPatternCounters{}
	}
	if used := &p.table.Used; atomic.LoadUint32(used) <= uint32(at) {
		atomic.StoreUint32(used, uint32(at+1))
	}
	atomic.StoreUint32(&p.table.Rows[at].State, stateIn(of))
}

// PatternCounts are the packets that a pattern has matched.
type PatternCounts struct {
	Matched, Dropped loader.Counter
	Conversing       uint64 // packets of Matched that belong to conversations of this host
	Unknown          uint64 // of which that is not known
}

// Counts returns what a generation's programs have counted of a pattern, and false where they do not
// have it.
func (p *Patterns) Counts(g *loader.Generation, of Pattern) (n PatternCounts, ok bool) {
	in := p.at(g)
	if in == nil {
		return n, false
	}
	at := in.find(&of)
	if at < 0 {
		return n, false
	}
	for cpu := range in.cpus {
		c := &in.cpus[cpu].Of[at]
		n.Matched.Packets += atomic.LoadUint64(&c.Matched.Packets)
		n.Matched.Bytes += atomic.LoadUint64(&c.Matched.Bytes)
		n.Dropped.Packets += atomic.LoadUint64(&c.Dropped.Packets)
		n.Dropped.Bytes += atomic.LoadUint64(&c.Dropped.Bytes)
		n.Conversing += atomic.LoadUint64(&c.Conversing)
		n.Unknown += atomic.LoadUint64(&c.Unknown)
	}
	return n, true
}

// Names are the patterns of a generation by their numbers in events, the last that each had. They are
// safe for concurrent use.
type Names struct {
	all atomic.Pointer[[flood.MaxPatterns]string]
}

// Name returns the pattern of a number, "" where there is none.
func (n *Names) Name(number int) string {
	if all := n.all.Load(); all != nil && number > 0 && number <= len(all) {
		return all[number-1]
	}
	return ""
}

// Names returns the names of the patterns of a generation.
func (p *Patterns) Names(g *loader.Generation) *Names {
	if in := p.at(g); in != nil {
		return &in.names
	}
	return new(Names)
}

// Matching returns the patterns that have not ended and may match packets.
func (p *Patterns) Matching(may func(*Pattern) bool) (all []Pattern) {
	if p == nil {
		return nil
	}
	now := time.Now()
	for i := range p.patterns {
		of := &p.patterns[i]
		if (of.Until.IsZero() || now.Before(of.Until)) && may(of) {
			all = append(all, *of)
		}
	}
	return all
}

// Check returns why a pattern cannot be limited to its rate.
func (p *Pattern) Check() error {
	r := p.Rate
	if p.shares() && r.Value == 0 {
		return fmt.Errorf("per %v: a pattern that drops all has no rate to share: leave it out", p.Rule.Per)
	}
	if r.Value == 0 && r.Unit != quantity.AnyUnit {
		return nil
	}
	return ofSources.check(r)
}
