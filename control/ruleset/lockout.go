package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

// Peer is packets that must not be dropped.
type Peer struct {
	What string  // as in "the gateway 192.0.2.1"
	Key  key.Key // what the packets have in common
}

// Objection is an entry of a block list that drops all packets of a peer.
type Objection struct {
	List  uint16 // the list's number
	Entry key.Key
	Peer  Peer
}

// Objections returns the entries of block lists that drop packets of peers, or to them, unless
// failsafe or an allow list lets them pass.
func Objections(lists []engine.List, p *verdict.Policy, peers []Peer) (all []Objection) {
	in, out := engine.NewFinder(lists, false), engine.NewFinder(lists, true)
	objects := make(map[key.Key]bool) // there are objections of peers with a key; false: none
	for _, peer := range peers {
		if objects, known := objects[peer.Key]; known && !objects || failsafe(p, peer.Key) {
			continue
		}
		before := len(all)
		// What the host sends to a peer matters as much as what it receives.
		for _, way := range []struct {
			packets key.Key
			entries []engine.Found
		}{{peer.Key, in.Covering(peer.Key)}, {peer.Key.Reverse(), out.Covering(peer.Key.Reverse())}} {
			var found []Objection
			allowed := false
			for _, f := range way.entries {
				switch l := lists[f.List-1]; {
				case !matches(l, way.packets):
				case l.Allow:
					allowed = true
				default:
					found = append(found, Objection{f.List, f.Key, peer})
				}
			}
			if !allowed {
				all = append(all, found...)
			}
		}
		objects[peer.Key] = len(all) > before
	}
	return all
}

// matches reports whether a list drops all packets of a key that its entries match, or lets
// them pass: not where it is on trial, or for other protocols or ports. Of the interfaces
// and VLANs where it does is not known which ones the packets cross.
func matches(l engine.List, k key.Key) bool {
	if !l.Rule.On() {
		return true
	}
	if l.Allow {
		all, _ := l.Rule.Of(k)
		return all
	}
	return !l.Rule.Trial && l.Rule.Headers(k)
}

// failsafe reports whether all packets of a key pass before any list is asked.
func failsafe(p *verdict.Policy, k key.Key) bool {
	const port = key.FieldProto | key.FieldDstPort
	for _, f := range p.FailsafePorts {
		if k.Fields&port == port && k.Proto == f.Proto && k.DstPort == f.Port {
			return true
		}
	}
	return slices.ContainsFunc(p.FailsafePrefixes, func(f netip.Prefix) bool { return safe(f, k) })
}

// safe reports whether all packets of a key are from a failsafe prefix.
func safe(f netip.Prefix, k key.Key) bool { return int(k.SrcBits) >= f.Bits() && f.Contains(k.Src) }

// NewObjections returns the objections that are not among others.
func NewObjections(now, before []Objection) []Objection {
	return slices.DeleteFunc(slices.Clone(now), func(o Objection) bool { return slices.Contains(before, o) })
}

// maxNamed bounds the objections that an error names.
const maxNamed = 3

// ObjectionsError names objections, of which there is at least one.
func ObjectionsError(all []Objection) error {
	var texts []string
	for _, o := range all[:min(len(all), maxNamed)] {
		texts = append(texts, o.String())
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s", strings.Join(texts, "; "))
}

func (o Objection) String() string { return fmt.Sprintf("%v would cut off %s", o.Entry, o.Peer.What) }

// Without returns a set without the entries of objections to a list.
func Without(contents *list.Set, number uint16, all []Objection) *list.Set {
	var keys []key.Key
	for _, o := range all {
		if o.List == number {
			keys = append(keys, o.Entry)
		}
	}
	return withoutKeys(contents, keys...)
}

// withoutKeys returns a set without the entries of keys, which may be in it without a side.
func withoutKeys(contents *list.Set, keys ...key.Key) *list.Set {
	e := list.Entries{Flows: slices.Clone(keys)}
	for _, k := range keys {
		if k.Tuple() {
			continue
		}
		if p, _ := list.PrefixOf(k); p.Addr().Is4() {
			e.V4 = append(e.V4, list.V4Of(p))
		} else {
			e.V6 = append(e.V6, p)
		}
	}
	if e.Len() == 0 {
		return contents
	}
	rest, _ := contents.Apply(list.Delta{Remove: e.Set()})
	return rest
}
