package police

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// From 1pps, or 8kbit/s, on.
var ofSources = bounds{[2]float64{1, penalty.MaxRate}, [2]float64{1000, penalty.MaxRate}, "1Mbit/s or 100pps"}

// Source is a limit of a source, or of a network of them, over all interfaces.
type Source struct {
	Prefix netip.Prefix // masked
	Rate   quantity.Rate
	Until  time.Time // zero: a command ends it
}

// CheckSource returns why sources cannot be limited to a rate.
func CheckSource(r quantity.Rate) error { return ofSources.check(r) }

// limit returns the limit as programs have it. What is sent in a tenth of a second may arrive at
// once, and at least ten packets, or a long one.
func (s Source) limit() penalty.Limit {
	l := penalty.Limit{Penalty: penalty.Penalty{Until: math.MaxInt64, Rate: s.Rate.PerSecond(), Burst: 10}, Bytes: s.Rate.Unit != quantity.Packets}
	if l.Bytes {
		l.Burst = 16 << 10
	}
	l.Burst = max(l.Burst, l.Rate/10)
	if !s.Until.IsZero() {
		l.Until = loader.Monotonic() + time.Until(s.Until)
	}
	return l
}

// Sources is the share of programs for incoming packets that limits sources. The limits of the
// last generation that it has filled follow those that are set later.
type Sources struct {
	engine.BasePart
	limits []Source
}

// NewSources returns the share for limits, nil for none.
func NewSources(limits []Source) *Sources {
	if len(limits) == 0 {
		return nil
	}
	return &Sources{limits: limits}
}

// Constants says that sources are limited.
func (p *Sources) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if !t.Out {
		all[bpf.WeirVarLimiting] = loader.Flag(true)
	}
	return all
}

// General keeps incoming packets off the lean path.
func (p *Sources) General(t netif.Target) string {
	if t.Out {
		return ""
	}
	return "sources are limited"
}

// Twin makes the twin of programs limit the sources.
func (p *Sources) Twin(v *verdict.Program) {
	if v.Out {
		return
	}
	v.Limits = &penalty.Limits{Now: loader.Monotonic}
	for _, s := range p.limits {
		v.Limits.Set(s.Prefix, s.limit())
	}
}

// Maps returns the map of limits.
func (p *Sources) Maps(out bool) (map[string]int, error) {
	if out {
		return nil, nil
	}
	return map[string]int{bpf.WeirMapLimits: penalty.MaxLimits}, nil
}

// Fill sets the limits in a generation.
func (p *Sources) Fill(g *loader.Generation, _ *hash.Secret) error {
	if !g.Has(bpf.WeirMapLimits) {
		return nil // it is of outgoing packets
	}
	for _, s := range p.limits {
		if err := s.put(g); err != nil {
			return err
		}
	}
	return nil
}

// Follow makes a generation, which the share has filled, have other limits. One that stays goes on.
// Where it fails, those that it has not come to are as they were.
func (p *Sources) Follow(g *loader.Generation, limits []Source) error {
	for _, s := range limits {
		if !slices.Contains(p.limits, s) {
			if err := s.put(g); err != nil {
				return err
			}
		}
	}
	for _, s := range p.limits {
		if !slices.ContainsFunc(limits, func(l Source) bool { return l.Prefix == s.Prefix }) {
			if err := g.Remove(bpf.WeirMapLimits, s.key()); err != nil {
				return fmt.Errorf("end the limit of %v: %w", s.Prefix, err)
			}
		}
	}
	p.limits = limits
	return nil
}

func (s Source) put(g *loader.Generation) error {
	l := s.limit()
	cost, burst := l.Words()
	value := bpf.WeirSourceLimit{Rate: bpf.WeirPenalty{Until: uint64(l.Until), Cost: cost, Burst: burst}}
	if l.Bytes {
		value.ByBytes = 1
	}
	if err := g.Put(bpf.WeirMapLimits, s.key(), &value); err != nil {
		return fmt.Errorf("limit %v: %w", s.Prefix, err)
	}
	return nil
}

// key is the key of the programs' map.
func (s Source) key() *bpf.WeirLimitedSource {
	k := &bpf.WeirLimitedSource{Bits: 32 + uint32(s.Prefix.Bits()), Family: 6, Addr: engine.Words(s.Prefix.Addr())}
	if s.Prefix.Addr().Is4() {
		k.Family = 4
	}
	return k
}

// Held returns the packets of a source that a generation's programs have held back, since the limit was
// set in them.
func (s Source) Held(g *loader.Generation) (n loader.Counter, err error) {
	var value bpf.WeirSourceLimit
	if _, err = g.Get(bpf.WeirMapLimits, s.key(), &value); err == nil {
		n = loader.Counter{Packets: value.Held.Packets, Bytes: value.Held.Bytes}
	}
	return n, err
}

// Meeting returns the limits that packets may meet of which something is known, as penalties.
// Of those that all of the packets are within, it is the narrowest.
func (p *Sources) Meeting(known key.Key) (all []verdict.Penalty) {
	if p == nil {
		return nil
	}
	var narrowest *verdict.Penalty
	for _, s := range p.limits {
		x := verdict.Penalty{Flow: key.Source(s.Prefix), Penalty: s.limit().Penalty}
		switch {
		case !x.Meets(known):
		case !x.Flow.Shape.Within(known.Shape):
			all = append(all, x)
		case narrowest == nil || narrowest.Flow.SrcBits < x.Flow.SrcBits:
			narrowest = &x
		}
	}
	if narrowest != nil {
		all = append(all, *narrowest)
	}
	now := loader.Monotonic()
	return slices.DeleteFunc(all, func(x verdict.Penalty) bool { return x.Until <= now }) // until it is removed, it hides wider ones
}

// Unit is the unit of the limit, packets or bytes.
func (s Source) Unit() string {
	if s.Rate.Unit == quantity.Packets {
		return sketch.Packets.String()
	}
	return sketch.Bytes.String()
}

// Of returns the limit of a prefix, nil for none.
func (p *Sources) Of(k key.Key) *Source {
	if p == nil {
		return nil
	}
	if at := slices.IndexFunc(p.limits, func(s Source) bool { return key.Source(s.Prefix) == k }); at >= 0 {
		return &p.limits[at]
	}
	return nil
}
