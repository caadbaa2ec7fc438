package daemon

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
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/ordered"
)

// derived are the prefixes that a list has because of its addresses. It is not changed, but
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
func (l *managedList) membersOf(from [3]*list.Set) list.Members {
	source, manual, widened := from[0], from[1], from[2]
	m := list.Members{All: []*list.Set{manual}, Widened: []*list.Set{widened}}
	if l.source != 0 {
		m.All = append(m.All, source)
		if l.WidensSources() {
			m.Widened = append(m.Widened, source)
		}
	}
	return m
}

// fromOf returns the sets that a list has among the lists of an engine.
func (p *Prepared) fromOf(l *managedList, rules []engine.List) (from [3]*list.Set) {
	if l.source != 0 {
		from[0] = rules[l.source-1].Contents
	}
	from[1] = rules[l.manual-1].Contents
	from[2] = p.widened(l, from[1])
	return from
}

// widened returns the manual entries of a list around whose IPv6 addresses it lists prefixes. Those
// that have left its sources, and stay for its TTL, are not among them.
func (p *Prepared) widened(l *managedList, manual *list.Set) *list.Set {
	if l.Prefix6 == 0 || l.TTL == 0 || l.WidensSources() {
		return manual
	}
	var left []key.Key
	for k := range (&list.Set{V6: *manual.IPv6()}).All() {
		if e, ok := p.journal.Get(l.Name, k); ok && lingers(e) {
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
func (p *Prepared) deriveAll(last *Prepared) {
	all := make(map[uint16]derived)
	for _, l := range p.lists {
		if l.derived == 0 {
			continue
		}
		d, old := derived{of: derivation(l.List)}, last.list(l.Name)
		if old != nil && last.derived[old.derived].of == d.of && old.WidensSources() == l.WidensSources() {
			d = last.derived[old.derived]
		}
		d = p.derive(l, d, p.rules)
		kept := p.leaveOutDerived(l, &d, p.rules)
		if old != nil && old.derived != 0 { // the same set says that nothing has changed
			if before := last.contents(old.derived); kept.Diff(before).Len() == 0 {
				kept = before
			}
		}
		p.rules[l.derived-1].Contents = kept
		all[l.derived] = d
	}
	p.derived = all
}

// manyMembers is the number of changes from which on a list is counted anew: a pass over
// millions of entries takes less time than to look up as many.
const manyMembers = 1 << 14

// derive returns what a list derives of its present entries, given what it derived before.
func (p *Prepared) derive(l *managedList, before derived, rules []engine.List) derived {
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

// wouldDerive returns the prefixes that a list would have because of some contents.
func (p *Prepared) wouldDerive(l *managedList, contents *list.Set, rules []engine.List) *list.Set {
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
func (p *Prepared) leaveOutDerived(l *managedList, d *derived, rules []engine.List) *list.Set {
	if share := d.of.Share(d.all); p.config.MaxCoverage > 0 && share > float64(p.config.MaxCoverage) {
		d.wide = fmt.Errorf("they would cover %.3g %%, where max_coverage is %.3g %%", 100*share, 100*float64(p.config.MaxCoverage))
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
	for _, f := range p.config.Failsafe.Prefixes {
		note(covered{prefix: f.Masked()})
	}
	for _, peer := range p.peers {
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
func (l *managedList) notWidened(d *derived, allow engine.List, over map[key.Key]covered) {
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

// withDerived adds the changes of derived prefixes that follow from changes, and returns all derived
// prefixes then, and how many change.
func (p *Prepared) withDerived(changes []engine.Change) (all []engine.Change, now map[uint16]derived, n int, err error) {
	if len(p.derived) == 0 {
		return changes, nil, 0, nil
	}
	rules, _, err := engine.With(p.rules, changes)
	if err != nil {
		return nil, nil, 0, err
	}
	now = make(map[uint16]derived, len(p.derived))
	all = slices.Clip(changes)
	for _, l := range p.lists {
		if l.derived == 0 {
			continue
		}
		before := p.derived[l.derived]
		if c := l.counted; c != nil && l.source != 0 && c.from[0] == rules[l.source-1].Contents {
			before = *c
		}
		d := p.derive(l, before, rules)
		kept := p.leaveOutDerived(l, &d, rules)
		now[l.derived] = d
		if delta := kept.Diff(p.contents(l.derived)); delta.Len() > 0 {
			all = append(all, engine.Change{List: l.derived, Delta: delta})
			n += delta.Len()
		}
	}
	return all, now, n, nil
}

// countAhead counts what a list will derive of contents of its sources, which takes long for
// many entries, and which withDerived takes up.
func (p *Prepared) countAhead(l *managedList, contents *list.Set) *derived {
	if l.derived == 0 {
		return nil
	}
	rules := slices.Clone(p.rules)
	rules[l.source-1].Contents = contents
	d := p.derive(l, p.derived[l.derived], rules)
	return &d
}

// settleDerived notes the derived prefixes, and logs which ones are left out.
func (d *Daemon) settleDerived(now map[uint16]derived) {
	if now == nil {
		return
	}
	before := d.active.prepared.derived
	d.active.prepared.derived = now
	for _, l := range d.active.prepared.lists {
		if l.derived != 0 {
			l.logDerived(d.o.Log, before[l.derived], now[l.derived])
		}
	}
}

// logDerived logs which prefixes are left out, if that has changed.
func (l *managedList) logDerived(log *slog.Logger, before, now derived) {
	if before.more == now.more && reflect.DeepEqual(before.left, now.left) && (before.wide == nil) == (now.wide == nil) {
		return
	}
	for _, w := range l.derivedWarnings(now) {
		log.Warn(w)
	}
}

// derivedWarnings returns which prefixes are left out, and why.
func (l *managedList) derivedWarnings(d derived) (all []string) {
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
func (p *Prepared) describeDerived(l *managedList, m *engine.Match) {
	n, first, widened := derivation(l.List).Of(l.membersOf(p.fromOf(l, p.rules)), m.Key, maxMembers, 3)
	m.Derived = &api.Derived{By: api.ByAggregate, Of: n}
	if widened {
		m.Derived.By = api.ByPrefix6
	}
	for _, a := range first {
		m.Derived.First = append(m.Derived.First, a.String())
	}
}

// describeNotDerived says why the prefix of a match is left out, where it is.
func (p *Prepared) describeNotDerived(l *managedList, m *engine.Match) {
	if l.derived == 0 || m.Key.Tuple() {
		return
	}
	d := p.derived[l.derived]
	at, source := list.PrefixOf(m.Key)
	for _, k := range d.of.Around(d.all, at) {
		if _, side := list.PrefixOf(k); side != source || p.contents(l.derived).Has(k) {
			continue
		}
		m.NotDerived = fmt.Sprintf("%v is not listed: %v", k, d.wide)
		if d.wide == nil {
			m.NotDerived = fmt.Sprintf("%v is not listed: it covers %v", k, p.coveredBy(k, d))
		}
	}
}

// coveredBy returns what a prefix that is left out covers.
func (p *Prepared) coveredBy(k key.Key, d derived) any {
	if i := slices.IndexFunc(d.left, func(o notDerived) bool { return o.entry == k }); i >= 0 {
		return d.left[i].over
	}
	return "what must pass" // one of many
}

// leftOutDerived returns the prefixes that are left out as clients see them.
func (p *Prepared) leftOutDerived(l *managedList) (all []api.LeftOut) {
	for _, o := range p.derived[l.derived].left {
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
