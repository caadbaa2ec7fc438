// Package traffic adds up what the programs on all interfaces count.
package traffic

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	"weir/control/stage"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Counters are packets and bytes by reason.
type Counters [verdict.NumReasons]loader.Counter

// Packets returns the number of all packets.
func (c *Counters) Packets() uint64 {
	var n uint64
	for _, r := range c {
		n += r.Packets
	}
	return n
}

// Blocked returns the number of packets that were dropped because they are
// listed.
func (c *Counters) Blocked() uint64 { return c[verdict.Blocked].Packets }

// Allowed returns the number of listed packets that passed because they are on
// an allow list.
func (c *Counters) Allowed() uint64 { return c[verdict.Allowed].Packets }

// Meter adds up the counters of attachments, so that no sum ever goes back: the
// counters of an interface that comes back start anew, and a list's counter is
// another's when that takes its number. What a program counted before it was
// adopted is included. The zero Meter is ready; its methods may be called
// concurrently.
type Meter struct {
	mu       sync.Mutex
	accounts []*account
	reasons  Counters                  // of incoming packets
	out      Counters                  // of outgoing packets
	refuted  uint64                    // of incoming packets
	hits     map[string]loader.Counter // by block list; "" where the list is unknown
}

// Attachment is an attachment to be read.
type Attachment struct {
	*loader.Attachment
	Penalties *int // active ones; nil: no flow may have one
}

// Program describes a program that counts.
type Program struct {
	Policy verdict.Policy
	Lists  []List // by their numbers, from 1 on
	Stages Stages // nil: none of them counts
}

// List is a list of a program.
type List struct {
	Name   string
	Allow  bool
	Before loader.Counter // the number's count when it became the list's
}

// Stages are the stages of a program.
type Stages interface {
	// Counted returns counters, as the memory of programs has them; of a closed memory, zeros.
	Counted(*loader.Stats) []stage.Sample
	// Gauges returns values that no one adds up.
	Gauges(*loader.Stats) []stage.Sample
}

// Describer describes programs.
type Describer interface {
	Describe(*loader.Attachment) (Program, error)
}

func (p *Program) drops(r verdict.Reason) bool { return p.Policy.Action(r) == verdict.Drop }

func (p *Program) counted(s *loader.Stats) []stage.Sample {
	if p.Stages == nil {
		return nil
	}
	return p.Stages.Counted(s)
}

func (p *Program) gauges(s *loader.Stats) []stage.Sample {
	if p.Stages == nil {
		return nil
	}
	return p.Stages.Gauges(s)
}

// Interface has the counts of an interface.
type Interface struct {
	netif.Target
	XDP       string // as a hooks.Hook; "" while the interface is gone or filtered by another program
	Unpinned  bool   // it is filtered only until the daemon ends
	Counts    []Count
	Penalties *int   // active; nil: no flow may have one
	Lost      uint64 // events lost because the buffer was full

	NotIP loader.EtherTypes // frames with the reason not-ip

	Stages []stage.Sample // that programs count for stages
}

// Count is the number of packets with a reason. The verdict of some reasons depends
// on the configuration.
type Count struct {
	Reason string
	Drops  bool
	loader.Counter
}

// account has the counts under the name of one interface.
type account struct {
	netif.Target
	*reader
	xdp       string // "" while it is not filtered
	penalties *int

	lost   uint64 // events
	stages map[counter]float64
	shown  []stage.Sample // which counters stages had when its memory was last read
	total  [verdict.NumReasons]struct{ passed, dropped loader.Counter }
	notIP  loader.EtherTypes
}

// counter identifies a counter of a stage.
type counter struct {
	*stage.Family
	of string
}

func counterOf(s stage.Sample) counter { return counter{s.Family, s.Of} }

// reader reads the counters of an attachment.
type reader struct {
	stats   *loader.Stats // nil while no program is attached
	text    []byte        // of the metadata that describes the program
	program Program

	// The counters as last read.
	seen        Counters
	seenLists   []loader.Counter
	seenRefuted uint64
	seenLost    uint64
	seenStages  map[counter]float64
	seenNotIP   loader.EtherTypes
}

func newReader(s *loader.Stats, p Program) *reader {
	return &reader{stats: s, program: p, seenStages: make(map[counter]float64)}
}

// add adds what was counted under another name.
func (a *account) add(other *account) {
	a.lost += other.lost
	for k, n := range other.stages {
		a.stages[k] += n
	}
	a.addNotIP(other.notIP, new(loader.EtherTypes))
	for i, n := range other.total {
		a.total[i].passed = sum(a.total[i].passed, n.passed)
		a.total[i].dropped = sum(a.total[i].dropped, n.dropped)
	}
}

// Read returns what was counted until now: by interface, and by block list.
func (m *Meter) Read() (all []Interface, hits map[string]loader.Counter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.accounts {
		m.advance(a)
		i := Interface{Target: a.Target, XDP: a.xdp, Penalties: a.penalties, Lost: a.lost, Counts: a.counts()}
		i.NotIP = loader.EtherTypes{ByType: maps.Clone(a.notIP.ByType), Others: a.notIP.Others}
		for _, c := range a.shown {
			c.Value = a.stages[counterOf(c)]
			i.Stages = append(i.Stages, c)
		}
		i.Stages = append(i.Stages, a.program.gauges(a.stats)...)
		all = append(all, i)
	}
	return all, maps.Clone(m.hits)
}

// mostEtherTypes is the number of EtherTypes that an interface is asked for: more than a
// link has, unless a sender invents them.
const mostEtherTypes = 64

// addNotIP adds by how much the counts of EtherTypes have grown since they were last seen.
func (a *account) addNotIP(now loader.EtherTypes, seen *loader.EtherTypes) {
	if a.notIP.ByType == nil {
		a.notIP.ByType = make(map[uint16]loader.Counter)
	}
	if seen.ByType == nil {
		seen.ByType = make(map[uint16]loader.Counter)
	}
	for _, t := range slices.Sorted(maps.Keys(now.ByType)) {
		before := seen.ByType[t]
		n := since(now.ByType[t], &before)
		seen.ByType[t] = before
		if _, known := a.notIP.ByType[t]; known || len(a.notIP.ByType) < mostEtherTypes {
			a.notIP.ByType[t] = sum(a.notIP.ByType[t], n)
		} else {
			a.notIP.Others = sum(a.notIP.Others, n)
		}
	}
	a.notIP.Others = sum(a.notIP.Others, since(now.Others, &seen.Others))
}

// Hits returns the number of packets that each block list has matched.
func (m *Meter) Hits() map[string]loader.Counter {
	_, hits := m.Read()
	return hits
}

// Outgoing returns the counters of outgoing packets of all interfaces together.
func (m *Meter) Outgoing() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.accounts {
		m.advance(a)
	}
	return m.out
}

// Counters returns the counters of incoming packets of all interfaces together, those that
// are gone included, and the number of packets that an exact table has refuted: they
// passed the filter in front of it by mistake.
func (m *Meter) Counters() (reasons Counters, refuted uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.accounts {
		m.advance(a)
	}
	return m.reasons, m.refuted
}

// Follow sets the attachments to read. Interfaces that are named have an account
// in any case; others, of which any number may come and go, while they exist. An
// interface that is renamed counts under its new name from then on, and takes
// along what it counted, unless its former name still has an account.
func (m *Meter) Follow(attached []Attachment, named []netif.Target, d Describer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	former, readers := make(map[*loader.Stats]*account), make(map[*loader.Stats]*reader)
	for _, a := range m.accounts {
		m.advance(a)
		if a.stats != nil {
			former[a.stats], readers[a.stats] = a, a.reader
		}
		a.xdp, a.penalties, a.reader = "", nil, newReader(nil, a.program)
	}
	for _, t := range named {
		m.account(t)
	}
	for _, n := range attached {
		a := m.account(n.Target())
		if a.xdp, a.penalties = n.Hook().String(), n.Penalties; n.Severed() {
			a.xdp = ""
		}
		if a.reader = readers[n.Stats()]; a.reader == nil {
			a.reader = newReader(n.Stats(), Program{})
		}
		if text := n.Metadata(); !bytes.Equal(a.text, text) {
			a.text = text
			if p, err := d.Describe(n.Attachment); err == nil {
				m.renumber(a, p.Lists)
				a.program = p
			}
		}
		m.advance(a)
	}
	gone := func(a *account) bool { return a.stats == nil && !slices.Contains(named, a.Target) }
	for _, n := range attached {
		if a, from := m.account(n.Target()), former[n.Stats()]; from != nil && from != a && gone(from) {
			a.add(from)
		}
	}
	m.accounts = slices.DeleteFunc(m.accounts, gone)
}

// account returns the account of an interface; it opens one if necessary.
func (m *Meter) account(t netif.Target) *account {
	i := slices.IndexFunc(m.accounts, func(a *account) bool { return a.Target == t })
	if i < 0 {
		i, m.accounts = len(m.accounts), append(m.accounts, &account{Target: t, reader: newReader(nil, Program{}), stages: make(map[counter]float64)})
	}
	return m.accounts[i]
}

// renumber switches to other lists: what a number has counted until it becomes
// another's belongs to the former one.
func (m *Meter) renumber(a *account, lists []List) {
	if m.hits == nil {
		m.hits = make(map[string]loader.Counter)
	}
	before := a.program.Lists
	a.seenLists = append(a.seenLists, make([]loader.Counter, max(0, 1+len(lists)-len(a.seenLists)))...)
	for i, list := range lists {
		grown := since(list.Before, &a.seenLists[i+1])
		if i < len(before) {
			m.hit(before[i], grown)
		}
		m.hit(list, loader.Counter{}) // so that it is there, with 0
	}
	m.hit(List{}, loader.Counter{})
}

func (m *Meter) hit(list List, n loader.Counter) {
	if !list.Allow {
		m.hits[list.Name] = sum(m.hits[list.Name], n)
	}
}

// advance adds what an interface has counted since it was last read.
func (m *Meter) advance(a *account) {
	for i, c := range a.stats.Reasons(nil) {
		grown := since(c, &a.seen[i])
		total := &m.reasons
		if a.Out {
			total = &m.out
		}
		total[i] = sum(total[i], grown)
		if t := &a.total[i]; a.program.drops(verdict.Reason(i)) {
			t.dropped = sum(t.dropped, grown)
		} else {
			t.passed = sum(t.passed, grown)
		}
	}
	a.lost += grown(a.stats.EventsLost(), &a.seenLost)
	if !a.Out {
		m.refuted += grown(a.stats.Refuted(), &a.seenRefuted)
	}
	now := a.program.counted(a.stats)
	if a.stats != nil {
		a.shown = now
	}
	for _, c := range now {
		k := counterOf(c)
		seen := a.seenStages[k]
		if c.Value < seen {
			seen = 0 // the memory was replaced
		}
		a.stages[k] += c.Value - seen
		a.seenStages[k] = c.Value
	}
	a.addNotIP(a.stats.EtherTypes(), &a.seenNotIP)
	for i, c := range a.stats.Lists(nil) {
		switch {
		case i >= len(a.seenLists):
			return // there are no such lists
		case i == 0:
			m.hit(List{}, since(c, &a.seenLists[0]))
		case i <= len(a.program.Lists):
			m.hit(a.program.Lists[i-1], since(c, &a.seenLists[i]))
		}
	}
}

// counts returns a count for each reason with the verdict that it has now, and
// with the other one where packets have left with that.
func (a *account) counts() []Count {
	var all []Count
	for i, t := range a.total {
		reason := verdict.Reason(i)
		drops := a.program.drops(reason)
		if drops || t.dropped.Packets > 0 {
			all = append(all, Count{Reason: reason.String(), Drops: true, Counter: t.dropped})
		}
		if !drops || t.passed.Packets > 0 {
			all = append(all, Count{Reason: reason.String(), Counter: t.passed})
		}
	}
	return all
}

// since returns by how much a counter has grown since it was last seen. Its memory is never
// replaced, or by memory that goes on with its count: that may be a little behind, and
// catches up.
func since(now loader.Counter, seen *loader.Counter) loader.Counter {
	return loader.Counter{Packets: grown(now.Packets, &seen.Packets), Bytes: grown(now.Bytes, &seen.Bytes)}
}

func grown(now uint64, seen *uint64) uint64 {
	n := max(now, *seen) - *seen
	*seen += n
	return n
}

func sum(a, b loader.Counter) loader.Counter {
	return loader.Counter{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}
