package daemon

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/metrics"
	"weir/control/observe/traffic"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/loader"
)

// groupsOf is the name under which the journal keeps the groups of an interface.
// It has a space, which no list's name has.
func groupsOf(iface string) string { return "multicast " + iface }

// keyOf is the key of all packets to a group.
func keyOf(group netip.Addr) key.Key {
	return key.Destination(netip.PrefixFrom(group, group.BitLen()))
}

// multicast returns what each interface of a configuration wants: the groups that are
// configured, and those that were added manually.
func (p *Prepared) multicast() engine.Multicast {
	m := engine.Multicast{MaxGroups: int(p.config.Multicast.MaxGroups)}
	at := make(map[string]*engine.Port)
	for _, iface := range p.config.Multicast.Interfaces {
		m.Ports = append(m.Ports, engine.Port{
			Target: loader.Target{Netns: p.config.Interfaces[0].Netns, Iface: iface.Name},
			Edge:   slices.ContainsFunc(p.config.Loop.Edges, func(edge string) bool { ok, _ := path.Match(edge, iface.Name); return ok }),
		})
	}
	known := make(map[netip.Addr]bool)
	for i, iface := range p.config.Multicast.Interfaces {
		at[groupsOf(iface.Name)] = &m.Ports[i]
		for _, g := range iface.Groups {
			known[netip.Addr(g)] = true
			m.Ports[i].Groups = append(m.Ports[i].Groups, netip.Addr(g))
		}
	}
	if len(at) == 0 {
		return engine.Multicast{}
	}
	for e := range p.journal.Entries() {
		if port := at[e.List]; port != nil {
			known[e.Key.Dst] = true
			port.Groups = append(port.Groups, e.Key.Dst)
		}
	}
	// What was wanted before max_groups was lowered stays wanted.
	m.MaxGroups = max(m.MaxGroups, len(known))
	return m
}

// groups are the multicast groups that interfaces want, and what is forwarded to them. Multicast
// and ChangeMulticast are safe for concurrent use; all else is for Run's goroutine.
type groups struct {
	traffic.Forwarding
	loop    *loop
	active  *active
	journal *journal.Journal
	audit   auditor
}

// Multicast implements [server.Multicaster].
func (s *groups) Multicast() (m api.Multicast, err error) {
	bad := s.loop.Do(context.Background(), func() error {
		f, idle := s.Read(s.active.engine), s.idle()
		if f == nil && len(idle) == 0 {
			return api.ErrNoMulticast
		}
		if f == nil {
			f = &metrics.Multicast{}
		}
		m = api.Multicast{
			Groups: f.Groups, MaxGroups: f.MaxGroups, Planned: f.Planned,
			Copied: f.Copied.Packets, CopiedBytes: f.Copied.Bytes, Left: f.Left.Packets, LeftBytes: f.Left.Bytes,
		}
		for i, p := range f.Ports {
			iface := api.MulticastInterface{
				Name: p.Iface, Configured: true, Present: p.There, FalsePositiveRate: p.FalsePositiveRate,
				Sent: p.Sent.Packets, SentBytes: p.Sent.Bytes, Dropped: p.Dropped.Packets, DroppedBytes: p.Dropped.Bytes,
			}
			configured := s.active.prepared.config.Multicast.Interfaces[i].Groups
			for _, group := range s.active.engine.Multicast().Groups(i + 1) {
				iface.Groups = append(iface.Groups, s.describe(p.Iface, group, slices.Contains(configured, config.Group(group))))
			}
			m.Interfaces = append(m.Interfaces, iface)
		}
		for _, name := range slices.Sorted(maps.Keys(idle)) {
			iface := api.MulticastInterface{Name: name}
			for _, group := range ordered.Of(slices.Values(idle[name]), netip.Addr.Compare) {
				iface.Groups = append(iface.Groups, s.describe(name, group, false))
			}
			m.Interfaces = append(m.Interfaces, iface)
		}
		return nil
	})
	return m, bad
}

// idle returns the groups that were added manually to interfaces that the
// configuration no longer names. They are active when it does again.
func (s *groups) idle() map[string][]netip.Addr {
	idle := make(map[string][]netip.Addr)
	for e := range s.journal.Entries() {
		name, ok := strings.CutPrefix(e.List, groupsOf(""))
		if ok && !slices.ContainsFunc(s.active.prepared.config.Multicast.Interfaces, func(i config.MulticastInterface) bool { return i.Name == name }) {
			idle[name] = append(idle[name], e.Key.Dst)
		}
	}
	return idle
}

// forgetIdle removes idle groups of an interface from the journal.
func (s *groups) forgetIdle(idle []netip.Addr, c api.MulticastChange, changed *api.MulticastChanged) error {
	var batch []journal.Change
	for i, text := range c.Groups {
		var g config.Group
		if err := g.UnmarshalText([]byte(text)); err != nil {
			return &api.BadRequest{Entry: &i, Err: err}
		}
		if at := slices.Index(idle, netip.Addr(g)); at >= 0 {
			idle = slices.Delete(idle, at, at+1)
			batch = append(batch, journal.Change{Remove: true, Entry: journal.Entry{List: groupsOf(c.Interface), Key: keyOf(netip.Addr(g))}})
		}
	}
	if err := s.journal.Apply(batch); err != nil {
		return err
	}
	changed.Removed, changed.Unchanged = len(batch), len(c.Groups)-len(batch)
	return nil
}

// describe describes a group that an interface wants.
func (s *groups) describe(iface string, group netip.Addr, configured bool) api.MulticastGroup {
	g := api.MulticastGroup{Group: group.String(), Configured: configured}
	if e, ok := s.journal.Get(groupsOf(iface), keyOf(group)); ok {
		g.Added = &e.Added
		if e.UID != api.NoUID {
			g.UID = &e.UID
		}
	}
	return g
}

// ChangeMulticast implements [server.Multicaster].
func (s *groups) ChangeMulticast(ctx context.Context, c api.MulticastChange) (changed api.MulticastChanged, err error) {
	changed.Interface = c.Interface
	err = s.loop.doAlone(ctx, func() error {
		if c.Remove {
			if idle := s.idle()[c.Interface]; len(idle) > 0 {
				return s.forgetIdle(idle, c, &changed)
			}
		}
		if s.active.engine.Multicast() == nil {
			return api.ErrNoMulticast
		}
		var names []string
		for _, iface := range s.active.prepared.config.Multicast.Interfaces {
			names = append(names, iface.Name)
		}
		port := slices.Index(names, c.Interface) + 1
		if port == 0 {
			return &api.BadRequest{Err: fmt.Errorf("interface %q: multicast is forwarded only to %s",
				c.Interface, strings.Join(names, ", "))}
		}
		batch, err := s.batch(port, c)
		if err != nil {
			return err
		}
		changed.Unchanged = len(c.Groups) - len(batch)
		return s.change(port, batch, &changed)
	})
	s.record(ctx, c, changed, err)
	return changed, err
}

// batch returns the changes of the journal that a request asks for, without
// those that change nothing.
func (s *groups) batch(port int, c api.MulticastChange) ([]journal.Change, error) {
	iface, table := s.active.prepared.config.Multicast.Interfaces[port-1], s.active.engine.Multicast()
	var batch []journal.Change
	room := table.MaxGroups - table.Len()
	seen := make(map[netip.Addr]bool)
	for i, text := range c.Groups {
		var g config.Group
		err := g.UnmarshalText([]byte(text))
		group := netip.Addr(g)
		switch {
		case err != nil:
			return nil, &api.BadRequest{Entry: &i, Err: err}
		case c.Remove && slices.Contains(iface.Groups, g):
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: fmt.Errorf("%s has it in the configuration: "+
				"take it out there, then `weir reload`", iface.Name)}
		case seen[group] || table.Wants(port, group) != c.Remove:
			continue
		}
		seen[group] = true
		if !c.Remove && !table.Wanted(group) {
			room--
		}
		batch = append(batch, journal.Change{Remove: c.Remove, Entry: journal.Entry{
			List: groupsOf(iface.Name), Key: keyOf(group), Added: time.Now(), UID: c.UID,
		}})
	}
	if room < 0 {
		return nil, &api.BadRequest{Err: fmt.Errorf("%d groups more than the %d that the filters were planned for: raise max_groups "+
			"under multicast in the configuration, then `weir reload`", -room, table.MaxGroups)}
	}
	return batch, nil
}

// change makes changes durable, then active. When it fails, nothing has
// changed.
func (s *groups) change(port int, batch []journal.Change, changed *api.MulticastChanged) error {
	if err := s.journal.Apply(batch); err != nil {
		return err
	}
	for _, c := range batch {
		if c.Remove {
			s.active.engine.Multicast().Remove(port, c.Key.Dst)
			changed.Removed++
			continue
		}
		if _, err := s.active.engine.Multicast().Add(port, c.Key.Dst); err != nil {
			return err // cannot be: there is room for the batch
		}
		changed.Added++
	}
	return nil
}

// record records a change of multicast groups.
func (s *groups) record(ctx context.Context, c api.MulticastChange, changed api.MulticastChanged, err error) {
	r := audit.Record{
		Change: audit.MulticastAdd, Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: c.Groups,
	}
	if c.Remove {
		r.Change = audit.MulticastRemove
	}
	audit.By(&r, c.UID, c.Client)
	s.audit.attempt(ctx, r, err)
}
