package multicast

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/journal"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/loader"
	"weir/loader/netif"
)

// listOf is the name under which the journal keeps the groups of an interface.
// It has a space, which no list's name has.
func listOf(iface string) string { return "multicast " + iface }

// keyOf is the key of all packets to a group.
func keyOf(group netip.Addr) key.Key {
	return key.Destination(netip.PrefixFrom(group, group.BitLen()))
}

// Groups are the groups that interfaces want, and what is forwarded to them, for the life of a
// daemon. Its methods are not safe for concurrent use.
type Groups struct {
	Journal *journal.Journal // of manual groups
	log     *slog.Logger

	present map[netif.Target]bool
	problem string                  // as last logged
	seen    []Copies                // the generation's counters as last read
	copies  map[netif.Target]Copies // since the daemon began; the zero target has those of all
}

// NewGroups returns groups without a journal.
func NewGroups(log *slog.Logger) *Groups {
	return &Groups{log: log, copies: make(map[netif.Target]Copies)}
}

// Connect connects the interfaces that exist now to a generation's ports.
func (s *Groups) Connect(g *engine.Generation) {
	before, problem := s.present, s.problem
	s.present, s.problem = make(map[netif.Target]bool), ""
	p := Of(g)
	if p == nil {
		return
	}
	there, err := p.Connect(g.Kernel())
	if err != nil {
		if s.problem = err.Error(); s.problem != problem {
			s.log.Error(s.problem)
		}
	}
	for i, p := range p.Ports {
		s.present[p.Target] = there[i]
		if was, known := before[p.Target]; known && was == there[i] {
			continue
		}
		log := s.log.With("interface", p.String())
		if there[i] {
			log.Info("multicast is forwarded to the interface")
		} else {
			log.Warn("multicast cannot be forwarded to the interface, which does not exist or does not fit: waiting")
		}
	}
}

// count adds what a generation has forwarded since it was last read.
func (s *Groups) count(p *Part, g *engine.Generation) {
	now := p.Copies(g.Kernel())
	s.seen = append(s.seen, make([]Copies, len(now)-len(s.seen))...)
	for i, c := range now {
		of := netif.Target{}
		if i > 0 {
			of = p.Ports[i-1].Target
		}
		n, seen := s.copies[of], s.seen[i]
		n.Listed.Packets += c.Listed.Packets - seen.Listed.Packets
		n.Listed.Bytes += c.Listed.Bytes - seen.Listed.Bytes
		n.Unlisted.Packets += c.Unlisted.Packets - seen.Unlisted.Packets
		n.Unlisted.Bytes += c.Unlisted.Bytes - seen.Unlisted.Bytes
		s.copies[of] = n
	}
	s.seen = now
}

// Retire adds what a generation that was replaced has forwarded.
func (s *Groups) Retire(g *engine.Generation) {
	if p := Of(g); p != nil {
		loader.Grace() // its programs may still be counting
		s.count(p, g)
	}
	s.seen = nil
}

// state returns what a generation forwards, and manual groups that wait for an interface.
func (s *Groups) state(g *engine.Generation) (m api.Multicast, err error) {
	p := Of(g)
	idle := s.idle(p)
	if p == nil && len(idle) == 0 {
		return m, errOff
	}
	if p != nil {
		s.count(p, g)
		n := s.copies[netif.Target{}]
		m = api.Multicast{
			Groups: p.Table.Len(), MaxGroups: p.Table.MaxGroups, Planned: p.Table.Rate(),
			Copied: n.Listed.Packets, CopiedBytes: n.Listed.Bytes, Left: n.Unlisted.Packets, LeftBytes: n.Unlisted.Bytes,
		}
		for i, to := range p.Ports {
			n := s.copies[to.Target]
			iface := api.MulticastInterface{
				Name: to.Iface, Configured: true, Present: s.present[to.Target], FalsePositiveRate: p.Table.FalsePositiveRate(i + 1),
				Sent: n.Listed.Packets, SentBytes: n.Listed.Bytes, Dropped: n.Unlisted.Packets, DroppedBytes: n.Unlisted.Bytes,
			}
			for _, group := range p.Table.Groups(i + 1) {
				iface.Groups = append(iface.Groups, s.describe(to.Iface, group, slices.Contains(to.Groups, group)))
			}
			m.Interfaces = append(m.Interfaces, iface)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(idle)) {
		iface := api.MulticastInterface{Name: name}
		for _, group := range ordered.Of(slices.Values(idle[name]), netip.Addr.Compare) {
			iface.Groups = append(iface.Groups, s.describe(name, group, false))
		}
		m.Interfaces = append(m.Interfaces, iface)
	}
	return m, nil
}

// idle returns the groups that were added manually to interfaces that the
// configuration no longer names. They are active when it does again.
func (s *Groups) idle(p *Part) map[string][]netip.Addr {
	idle := make(map[string][]netip.Addr)
	for e := range s.Journal.Entries() {
		if name, ok := strings.CutPrefix(e.List, listOf("")); ok && p.port(name) == 0 {
			idle[name] = append(idle[name], e.Key.Dst)
		}
	}
	return idle
}

// port returns the number of an interface, 0 for none.
func (p *Part) port(name string) int {
	if p == nil {
		return 0
	}
	return slices.IndexFunc(p.Ports, func(to Port) bool { return to.Iface == name }) + 1
}

// forgetIdle removes idle groups of an interface from the journal.
func (s *Groups) forgetIdle(idle, asked []netip.Addr, c api.MulticastChange, changed *api.MulticastChanged) error {
	var batch []journal.Change
	for _, group := range asked {
		if at := slices.Index(idle, group); at >= 0 {
			idle = slices.Delete(idle, at, at+1)
			batch = append(batch, journal.Change{Remove: true, Entry: journal.Entry{List: listOf(c.Interface), Key: keyOf(group)}})
		}
	}
	if err := s.Journal.Apply(batch); err != nil {
		return err
	}
	changed.Removed, changed.Unchanged = len(batch), len(c.Groups)-len(batch)
	return nil
}

// describe describes a group that an interface wants.
func (s *Groups) describe(iface string, group netip.Addr, configured bool) api.MulticastGroup {
	g := api.MulticastGroup{Group: group.String(), Configured: configured}
	if e, ok := s.Journal.Get(listOf(iface), keyOf(group)); ok {
		g.Added = &e.Added
		if e.UID != api.NoUID {
			g.UID = &e.UID
		}
	}
	return g
}

// change changes which groups an interface wants, of a generation. When it fails, nothing
// has changed.
func (s *Groups) change(g *engine.Generation, c api.MulticastChange, changed *api.MulticastChanged) error {
	asked := make([]netip.Addr, len(c.Groups))
	for i, text := range c.Groups {
		if err := (*Group)(&asked[i]).UnmarshalText([]byte(text)); err != nil {
			return &api.BadRequest{Entry: &i, Err: err}
		}
	}
	p := Of(g)
	if c.Remove {
		if idle := s.idle(p)[c.Interface]; len(idle) > 0 {
			return s.forgetIdle(idle, asked, c, changed)
		}
	}
	if p == nil {
		return errOff
	}
	port := p.port(c.Interface)
	if port == 0 {
		var names []string
		for _, to := range p.Ports {
			names = append(names, to.Iface)
		}
		return &api.BadRequest{Err: fmt.Errorf("interface %q: multicast is forwarded only to %s",
			c.Interface, strings.Join(names, ", "))}
	}
	batch, err := p.batch(port, asked, c)
	if err != nil {
		return err
	}
	changed.Unchanged = len(c.Groups) - len(batch)
	if err := s.Journal.Apply(batch); err != nil { // durable first, then active
		return err
	}
	for _, c := range batch {
		if c.Remove {
			p.Table.Remove(port, c.Key.Dst)
			changed.Removed++
			continue
		}
		if _, err := p.Table.Add(port, c.Key.Dst); err != nil {
			return err // cannot be: there is room for the batch
		}
		changed.Added++
	}
	return nil
}

// batch returns the changes of the journal that a request asks for, without
// those that change nothing.
func (p *Part) batch(port int, asked []netip.Addr, c api.MulticastChange) ([]journal.Change, error) {
	var batch []journal.Change
	room := p.Table.MaxGroups - p.Table.Len()
	seen := make(map[netip.Addr]bool)
	for i, group := range asked {
		switch {
		case c.Remove && slices.Contains(p.Ports[port-1].Groups, group):
			return nil, &api.BadRequest{Entry: &i, Text: c.Groups[i], Err: fmt.Errorf("%s has it in the configuration: "+
				"take it out there, then `weir reload`", c.Interface)}
		case seen[group] || p.Table.Wants(port, group) != c.Remove:
			continue
		}
		seen[group] = true
		if !c.Remove && !p.Table.Wanted(group) {
			room--
		}
		batch = append(batch, journal.Change{Remove: c.Remove, Entry: journal.Entry{
			List: listOf(c.Interface), Key: keyOf(group), Added: time.Now(), UID: c.UID,
		}})
	}
	if room < 0 {
		return nil, &api.BadRequest{Err: fmt.Errorf("%d groups more than the %d that the filters were planned for: raise max_groups "+
			"under multicast in the configuration, then `weir reload`", -room, p.Table.MaxGroups)}
	}
	return batch, nil
}
