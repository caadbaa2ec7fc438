package engine

import (
	"net/netip"
	"slices"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// Found is an entry that a packet matches.
type Found struct {
	List uint16
	Key  key.Key
}

// Finder finds entries of lists that match packets of one direction.
type Finder struct{ index *index }

// NewFinder returns a finder of lists' present entries, for outgoing packets or for
// incoming ones. It copies nothing.
func NewFinder(lists []List, out bool) Finder { return Finder{newIndex(lists, out)} }

// Covering returns the entries that all packets of a key match: those of block lists
// first.
func (f Finder) Covering(k key.Key) []Found {
	return append(f.index.block.covering(k), f.index.allow.covering(k)...)
}

// Deciding is Covering for a packet, without the entries of lists that are not for it, or on trial.
func (f Finder) Deciding(t key.Tuple, w verdict.Where) []Found {
	return slices.DeleteFunc(f.Covering(t.Key()), func(found Found) bool {
		r := f.index.lists[found.List-1].Rule
		return r != nil && (r.Trial || !r.Matches(t, w))
	})
}

// Covering returns the entries of allow lists, or of block lists, that all packets of a key
// match: the most specific of each side first.
func (g *Generation) Covering(k key.Key, allow bool) []Found {
	return g.index.action(allow).covering(k)
}

// covering returns the entries that all packets of a key match.
func (e *entries) covering(k key.Key) (found []Found) {
	src, dst := netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))
	if k.V6() {
		found = e.dst6.covering(list.V6Of(dst), e.src6.covering(list.V6Of(src), nil))
	} else {
		found = e.dst4.covering(list.V4Of(dst), e.src4.covering(list.V4Of(src), nil))
	}
	for _, c := range e.flows.relation {
		for shape, run := range list.ByShape(c.keys) {
			if !shape.Within(k.Shape) {
				continue
			}
			one, _ := shape.Of(key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort})
			if run.Has(one) {
				found = append(found, Found{c.list, one})
			}
		}
	}
	return found
}

// covering appends the entries that cover p, the longest first.
func (s *side[P]) covering(p P, found []Found) []Found {
	for bits := p.Bits(); bits >= 0; bits-- {
		if !s.lengths.Has(bits) {
			continue
		}
		q := p.Cut(bits)
		for _, n := range s.lists(q) {
			found = append(found, Found{n, q.Key(s.source)})
		}
	}
	return found
}

// Find returns the entries of all lists that a packet matches: those of block
// lists first, the most specific of each side first.
func (g *Generation) Find(t key.Tuple) []Found {
	return Finder{g.index}.Covering(t.Key())
}

// Blocking returns the entries of block lists that match packets from src to dst,
// whatever their ports: the most specific of the source first, then those of the
// destination, then those of both.
func (g *Generation) Blocking(src, dst netip.Addr) (found []Found) {
	e := &g.index.block
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return nil
	}
	shapes := g.Block.V6Flow
	if src.Is4() {
		found = e.src4.covering(list.V4Of(netip.PrefixFrom(src, 32)), nil)
		found = e.dst4.covering(list.V4Of(netip.PrefixFrom(dst, 32)), found)
		shapes = g.Block.V4Flow
	} else {
		found = e.src6.covering(list.V6Of(netip.PrefixFrom(src, 128)), nil)
		found = e.dst6.covering(list.V6Of(netip.PrefixFrom(dst, 128)), found)
	}
	for _, s := range shapes {
		if s.Ports() || s.Fields&key.FieldProto != 0 {
			continue
		}
		for _, s := range e.flows.levels.Of[s.Shape] {
			k, _ := s.Of(key.Tuple{Src: src, Dst: dst})
			for _, n := range e.flows.lists(k) {
				found = append(found, Found{n, k})
			}
		}
	}
	return found
}

// Blocks reports whether a packet matches an entry of the block lists. Unlike an
// approximate set, it makes no mistakes.
func (g *Generation) Blocks(t key.Tuple) bool {
	shapes := slices.Concat(g.Block.V4, g.Block.V4Flow)
	if t.Src.Is6() {
		shapes = slices.Concat(g.Block.V6, g.Block.V6Flow)
	}
	return slices.ContainsFunc(shapes, func(s membership.GatedShape) bool {
		k, ok := s.Of(t)
		return ok && g.index.block.listed(k)
	})
}
