package ruleset

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
	"weir/filter/ordered"
)

// Derived are the prefixes that a list has because of its addresses. It is not changed, but
// replaced.
type derived struct {
	of   list.Derivation
	from [3]*list.Set // the contents of the list's sources, its manual entries, and those that are widened
	all  *list.Set
	left []notDerived // the first of those that are left out
	more int          // the others
	wide error        // why all of them are; nil: they are not
}

// notDerived is a prefix that is left out because it covers what must pass.
type notDerived struct {
	entry key.Key
	over  covered
}

// covered is an address or a prefix that a list must not block because of its neighbours.
type covered struct {
	prefix        netip.Prefix
	peer, allowed string // what it is, and the list that allows it; both "": it is failsafe
}

func (c covered) String() string {
	switch {
	case c.peer != "":
		return c.peer
	case c.allowed != "":
		return fmt.Sprintf("%s, which list %s allows", shortOf(c.prefix), c.allowed)
	}
	return fmt.Sprintf("the failsafe prefix %v", c.prefix)
}

// shortOf returns a prefix, or the address that it is.
func shortOf(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// maxLeftDerived bounds the prefixes that are left out and named.
const maxLeftDerived = 20

// membersOf returns the entries that a list derives prefixes from, given its sets.
func (l *List) membersOf(from [3]*list.Set) list.Members {
	source, manual, widened := from[0], from[1], from[2]
	m := list.Members{All: []*list.Set{manual}, Widened: []*list.Set{widened}}
	if l.SourceNumber != 0 {
		m.All = append(m.All, source)
		if l.WidensSources() {
			m.Widened = append(m.Widened, source)
		}
	}
	return m
}

// fromOf returns the sets that a list has among the lists of an engine.
func (p *Ruleset) fromOf(l *List, rules []engine.List) (from [3]*list.Set) {
	if l.SourceNumber != 0 {
		from[0] = rules[l.SourceNumber-1].Contents
	}
	from[1] = rules[l.ManualNumber-1].Contents
	from[2] = p.widened(l, from[1])
	return from
}

// widened returns the manual entries of a list around whose IPv6 addresses it lists prefixes. Those
// that have left its sources, and stay for its TTL, are not among them.
func (p *Ruleset) widened(l *List, manual *list.Set) *list.Set {
	if l.Prefix6 == 0 || l.TTL == 0 || l.WidensSources() {
		return manual
	}
	var left []key.Key
	for k := range (&list.Set{V6: *manual.IPv6()}).All() {
		if e, ok := p.Journal.Get(l.Name, k); ok && lists.Lingers(e) {
			left = append(left, k)
		}
	}
	if len(left) == 0 {
		return manual
	}
	kept, _ := manual.Apply(list.Delta{Remove: list.SetOf(left...)})
	return kept
}

// deriveAll derives the prefixes of all lists, after those of the last configuration.
func (p *Ruleset) deriveAll(last *Ruleset) {
	all := make(map[uint16]derived)
	for _, l := range p.Lists {
		if l.DerivedNumber == 0 {
			continue
		}
		d, old := derived{of: derivation(l.List)}, last.List(l.Name)
		if old != nil && last.Derived[old.DerivedNumber].of == d.of && old.WidensSources() == l.WidensSources() {
			d = last.Derived[old.DerivedNumber]
		}
		d = p.derive(l, d, p.Rules)
		kept := p.leaveOutDerived(l, &d, p.Rules)
		if old != nil && old.DerivedNumber != 0 { // the same set says that nothing has changed
			if before := last.Contents(old.DerivedNumber); kept.Diff(before).Len() == 0 {
				kept = before
			}
		}
		p.Rules[l.DerivedNumber-1].Contents = kept
		all[l.DerivedNumber] = d
	}
	p.Derived = all
}

// manyMembers is the number of changes from which on a list is counted anew: a pass over
// millions of entries takes less time than to look up as many.
const manyMembers = 1 << 14

// derive returns what a list derives of its present entries, given what it derived before.
func (p *Ruleset) derive(l *List, before derived, rules []engine.List) derived {
	d := derived{of: before.of, from: p.fromOf(l, rules)}
	members := l.membersOf(d.from)
	var changes []*list.Set
	n := 0
	for i, now := range d.from {
		was := before.from[i]
		if i == 2 && now == d.from[1] && was == before.from[1] {
			continue // all manual entries are widened: their changes are known
		}
		if now != was {
			delta := now.Diff(was)
			changes = append(changes, delta.Add, delta.Remove)
			n += delta.Len()
		}
	}
	switch {
	case before.all == nil || n > manyMembers:
		d.all = d.of.Prefixes(members)
	case n == 0:
		d.all = before.all
	default:
		d.all = d.of.Change(before.all, members, changes...)
	}
	return d
}

// WouldDerive returns the prefixes that a list would have because of some contents.
func (p *Ruleset) WouldDerive(l *List, contents *list.Set, rules []engine.List) *list.Set {
	d := derived{of: derivation(l.List)}
	if !d.of.On() {
		return new(list.Set)
	}
	members := list.Members{All: []*list.Set{contents}}
	if l.WidensSources() {
		members.Widened = members.All
	}
	d.all = d.of.Prefixes(members)
	return p.leaveOutDerived(l, &d, rules)
}

// leaveOutDerived returns the prefixes without those that are left out, which it notes.
func (p *Ruleset) leaveOutDerived(l *List, d *derived, rules []engine.List) *list.Set {
	if share := d.of.Share(d.all); p.Config.MaxCoverage > 0 && share > float64(p.Config.MaxCoverage) {
		d.wide = fmt.Errorf("they would cover %.3g %%, where max_coverage is %.3g %%", 100*share, 100*float64(p.Config.MaxCoverage))
		return new(list.Set)
	}
	over := make(map[key.Key]covered)
	note := func(c covered) {
		for _, k := range d.of.Around(d.all, c.prefix) {
			if _, known := over[k]; !known {
				over[k] = c
			}
		}
	}
	for _, f := range p.Config.Failsafe.Prefixes {
		note(covered{prefix: f.Masked()})
	}
	for _, peer := range p.Peers {
		k := peer.Key
		if k.SrcBits > 0 {
			note(covered{prefix: netip.PrefixFrom(k.Src, int(k.SrcBits)), peer: peer.What})
		}
		if k.DstBits > 0 {
			note(covered{prefix: netip.PrefixFrom(k.Dst, int(k.DstBits)), peer: peer.What})
		}
	}
	if d.of.Prefix6 > 0 {
		for _, a := range rules {
			if a.Allow {
				l.notWidened(d, a, over)
			}
		}
	}
	if len(over) == 0 {
		return d.all
	}
	keys := ordered.Of(maps.Keys(over), key.Key.Compare)
	for _, k := range keys[:min(len(keys), maxLeftDerived)] {
		d.left = append(d.left, notDerived{k, over[k]})
	}
	d.more = len(keys) - len(d.left)
	kept, _ := d.all.Apply(list.Delta{Remove: list.SetOf(keys...)})
	return kept
}

// notWidened notes the prefixes of addresses that are widened in which a list allows something.
func (l *List) notWidened(d *derived, allow engine.List, over map[key.Key]covered) {
	note := func(k key.Key, allowed netip.Prefix) {
		if _, known := over[k]; !known {
			over[k] = covered{prefix: allowed, allowed: api.ListOf(allow.Name)}
		}
	}
	all, derived := allow.Contents.IPv6(), d.all.IPv6()
	if all.Len() > derived.Len() { // a lookup for each of the fewer ones
		for k := range (&list.Set{V6: *derived}).All() {
			p, _ := list.PrefixOf(k)
			if p.Bits() != d.of.Prefix6 {
				continue
			}
			for inside := range allow.Contents.Inside(p).All() {
				q, _ := list.PrefixOf(inside)
				note(k, q)
				break
			}
		}
		return
	}
	for _, some := range []list.Sorted[list.V6Prefix]{all.Plain, all.Src, all.Dst} {
		for q := range some.All() {
			for _, k := range d.of.Around(d.all, q.Prefix()) {
				if p, _ := list.PrefixOf(k); p.Bits() == d.of.Prefix6 {
					note(k, q.Prefix())
				}
			}
		}
	}
}

// WithDerived adds the changes of derived prefixes that follow from changes, and returns all derived
// prefixes then, and how many change.
func (p *Ruleset) WithDerived(changes []engine.Change) (all []engine.Change, now map[uint16]derived, n int, err error) {
	if len(p.Derived) == 0 {
		return changes, nil, 0, nil
	}
	rules, _, err := engine.With(p.Rules, changes)
	if err != nil {
		return nil, nil, 0, err
	}
	now = make(map[uint16]derived, len(p.Derived))
	all = slices.Clip(changes)
	for _, l := range p.Lists {
		if l.DerivedNumber == 0 {
			continue
		}
		before := p.Derived[l.DerivedNumber]
		if c := l.counted; c != nil && l.SourceNumber != 0 && c.from[0] == rules[l.SourceNumber-1].Contents {
			before = *c
		}
		d := p.derive(l, before, rules)
		kept := p.leaveOutDerived(l, &d, rules)
		now[l.DerivedNumber] = d
		if delta := kept.Diff(p.Contents(l.DerivedNumber)); delta.Len() > 0 {
			all = append(all, engine.Change{List: l.DerivedNumber, Delta: delta})
			n += delta.Len()
		}
	}
	return all, now, n, nil
}

// countAhead counts what a list will derive of contents of its sources, which takes long for
// many entries, and which withDerived takes up.
func (p *Ruleset) countAhead(l *List, contents *list.Set) *derived {
	if l.DerivedNumber == 0 {
		return nil
	}
	rules := slices.Clone(p.Rules)
	rules[l.SourceNumber-1].Contents = contents
	d := p.derive(l, p.Derived[l.DerivedNumber], rules)
	return &d
}

// SettleDerived notes the derived prefixes, and logs which ones are left out.
func (p *Ruleset) SettleDerived(now map[uint16]derived, log *slog.Logger) {
	if now == nil {
		return
	}
	before := p.Derived
	p.Derived = now
	for _, l := range p.Lists {
		if l.DerivedNumber != 0 {
			l.logDerived(log, before[l.DerivedNumber], now[l.DerivedNumber])
		}
	}
}

// logDerived logs which prefixes are left out, if that has changed.
func (l *List) logDerived(log *slog.Logger, before, now derived) {
	if before.more == now.more && reflect.DeepEqual(before.left, now.left) && (before.wide == nil) == (now.wide == nil) {
		return
	}
	for _, w := range l.derivedWarnings(now) {
		log.Warn(w)
	}
}

// derivedWarnings returns which prefixes are left out, and why.
func (l *List) derivedWarnings(d derived) (all []string) {
	if d.wide != nil {
		return []string{fmt.Sprintf("list %s: no prefix is listed for its addresses: %v", l.Name, d.wide)}
	}
	for n, o := range d.left {
		if n == maxBadLines {
			all = append(all, fmt.Sprintf("list %s: left out: %d more prefixes around its addresses", l.Name, len(d.left)+d.more-n))
			break
		}
		all = append(all, fmt.Sprintf("list %s: left out: %v, around its addresses, covers %v", l.Name, o.entry, o.over))
	}
	return all
}

// maxMembers bounds how far the addresses of a prefix are counted for an answer.
const maxMembers = 1 << 16

// describeDerived says for which addresses a match stands that is derived.
func (p *Ruleset) describeDerived(l *List, m *explain.Match) {
	n, first, widened := derivation(l.List).Of(l.membersOf(p.fromOf(l, p.Rules)), m.Key, maxMembers, 3)
	m.Derived = &api.Derived{By: api.ByAggregate, Of: n}
	if widened {
		m.Derived.By = api.ByPrefix6
	}
	for _, a := range first {
		m.Derived.First = append(m.Derived.First, a.String())
	}
}

// describeNotDerived says why the prefix of a match is left out, where it is.
func (p *Ruleset) describeNotDerived(l *List, m *explain.Match) {
	if l.DerivedNumber == 0 || m.Key.Tuple() {
		return
	}
	d := p.Derived[l.DerivedNumber]
	at, source := list.PrefixOf(m.Key)
	for _, k := range d.of.Around(d.all, at) {
		if _, side := list.PrefixOf(k); side != source || p.Contents(l.DerivedNumber).Has(k) {
			continue
		}
		m.NotDerived = fmt.Sprintf("%v is not listed: %v", k, d.wide)
		if d.wide == nil {
			m.NotDerived = fmt.Sprintf("%v is not listed: it covers %v", k, p.coveredBy(k, d))
		}
	}
}

// coveredBy returns what a prefix that is left out covers.
func (p *Ruleset) coveredBy(k key.Key, d derived) any {
	if i := slices.IndexFunc(d.left, func(o notDerived) bool { return o.entry == k }); i >= 0 {
		return d.left[i].over
	}
	return "what must pass" // one of many
}

// leftOutDerived returns the prefixes that are left out as clients see them.
func (p *Ruleset) leftOutDerived(l *List) (all []api.LeftOut) {
	for _, o := range p.Derived[l.DerivedNumber].left {
		out := api.LeftOut{Entry: o.entry.String(), CutOff: o.over.peer}
		switch {
		case o.over.allowed != "":
			out.Allowed = o.over.String()
		case o.over.peer == "":
			out.Failsafe = o.over.prefix.String()
		}
		all = append(all, out)
	}
	return all
}

// derivation returns which prefixes a list has because of its addresses.
func derivation(l config.List) list.Derivation {
	if l.Action == config.Allow {
		return list.Derivation{}
	}
	src, dst := l.Direction.Sides()
	return list.Derivation{V4: l.Aggregate.IPv4, V6: l.Aggregate.IPv6, At: l.Aggregate.At, Prefix6: l.Prefix6, Src: src, Dst: dst}
}
