package observe

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/fleet/wire"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/control/stages"
	"weir/filter/conntrack"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/loader"
)

// Conversations reports with which listed addresses this host exchanges packets. It is safe for concurrent use.
//
// Programs record the addresses that lists match, without the lists: which list has an address follows from the
// contents when the record is read. The record is in the programs' memory, and so outlives reloads, restarts and
// crashes.
type Conversations struct {
	host Host
	log  *slog.Logger

	reading sync.Mutex                     // held while the record is read
	last    atomic.Pointer[api.Collateral] // as last read; nil: it is not recorded
}

// NewConversations returns the conversations of a host, which are yet to be read.
func NewConversations(host Host, log *slog.Logger) *Conversations {
	return &Conversations{host: host, log: log}
}

// ConversationsInterval is how often the record is read for lists, metrics and trials that end.
const ConversationsInterval = time.Minute

// day is for how long a conversation keeps a trial from its end.
const day = 24 * time.Hour

// Follow reads the record at its interval.
func (m *Conversations) Follow(ctx context.Context) {
	t := time.NewTicker(ConversationsInterval)
	defer t.Stop()
	for last := ""; ; {
		text := ""
		if _, err := m.Read(ctx); err != nil && ctx.Err() == nil {
			text = "the record of conversations cannot be read: " + err.Error()
		}
		if text != "" && text != last {
			m.log.Error(text)
		}
		last = text
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Collateral implements [server.Appraiser].
func (m *Conversations) Collateral(ctx context.Context, name string) (api.Collateral, error) {
	if name != "" {
		if err := m.host.Lend(ctx, func(a ruleset.Active) error {
			_, err := a.ByName.Find(name)
			return err
		}); err != nil {
			return api.Collateral{}, err
		}
	}
	c, err := m.Read(ctx)
	if err != nil {
		return api.Collateral{}, err
	}
	answer := *c
	answer.Lists = nil
	for _, l := range c.Lists {
		if name == "" || l.List == name {
			answer.Lists = append(answer.Lists, l)
		}
	}
	return answer, nil
}

// Read reads the record, and says which lists have its addresses. The loop only
// lends what it needs.
func (m *Conversations) Read(ctx context.Context) (*api.Collateral, error) {
	m.reading.Lock() // one reading at a time
	defer m.reading.Unlock()
	c := &api.Collateral{At: time.Now()}
	var p *ruleset.Ruleset
	read := func() (map[conntrack.Partner]conntrack.Conversation, error) { return nil, nil }
	if err := m.host.Lend(ctx, func(a ruleset.Active) error {
		p = a.Copy()
		record := p.Config.Conversations(a.Engine.Kernel())
		if record == nil {
			m.Forget()
			return nil
		}
		c.Recorded, c.Room = true, int(p.Config.Collateral.Sources)
		read = func() (map[conntrack.Partner]conntrack.Conversation, error) {
			all, err := record.Partners()
			return all, errors.Join(err, record.Close())
		}
		return nil
	}); err != nil {
		return nil, err
	}
	partners, err := read()
	if err != nil || !c.Recorded {
		return c, err
	}
	attribute(p, c, partners)
	return c, m.host.Lend(ctx, func(a ruleset.Active) error {
		if a.Config.Collateral.On() {
			m.last.Store(c)
			m.host.Note()
		}
		return nil
	})
}

// attribute says which lists would drop what the partners send, or what is sent to them.
func attribute(p *ruleset.Ruleset, c *api.Collateral, partners map[conntrack.Partner]conntrack.Conversation) {
	c.Addresses = len(partners)
	all := make([]api.Partner, 0, len(partners))
	clock := loader.Monotonic()
	at := func(t time.Duration) time.Time { return c.At.Add(min(0, t-clock)) }
	for of, s := range partners {
		direction := "in"
		if of.Out {
			direction = "out"
		}
		all = append(all, api.Partner{Addr: of.Addr, Direction: direction, How: howConversed(s.How), First: at(s.First), Last: at(s.Last)})
	}
	ordered.By(all, func(a, b api.Partner) int {
		return cmp.Or(b.Last.Compare(a.Last), a.Addr.Compare(b.Addr), cmp.Compare(a.Direction, b.Direction))
	})
	number := make(map[string]int)
	for _, l := range p.Lists {
		if l.Action != config.Allow {
			number[l.Name] = len(c.Lists)
			c.Lists = append(c.Lists, api.ListCollateral{List: l.Name})
		}
	}
	in, out := engine.NewFinder(p.Rules, false), engine.NewFinder(p.Rules, true)
	for _, of := range all {
		whole := netip.PrefixFrom(of.Addr, of.Addr.BitLen())
		find, sought := in, key.Source(whole)
		if of.Direction == "out" {
			find, sought = out, key.Destination(whole)
		}
		for name := range blocking(p, find.Covering(sought)) {
			l := &c.Lists[number[name]]
			l.Addresses++
			if c.At.Sub(of.Last) <= day {
				l.Day++
			}
			if len(l.Latest) < api.MaxPartners {
				l.Latest = append(l.Latest, of)
			}
		}
	}
}

// blocking returns the names of the lists that would drop a packet, by what was found of its
// address: none where an allow list lets all of its packets pass.
func blocking(p *ruleset.Ruleset, found []engine.Found) map[string]bool {
	names := make(map[string]bool)
	for _, f := range found {
		switch rule := p.Rules[f.List-1]; {
		case !rule.Allow:
			names[api.ListOf(rule.Name)] = true
		case !rule.Rule.On():
			return nil
		}
	}
	return names
}

func howConversed(how conntrack.How) (all []string) {
	for _, of := range []struct {
		bit  conntrack.How
		name string
	}{{conntrack.OpenedTCP, "opened-tcp"}, {conntrack.OpenedUDP, "opened-udp"}, {conntrack.AcceptedTCP, "accepted-tcp"}} {
		if how&of.bit != 0 {
			all = append(all, of.name)
		}
	}
	return all
}

// Forget forgets what was last read, as where nothing is recorded any more.
func (m *Conversations) Forget() { m.last.Store(nil) }

// Last returns what was last read, nil where nothing is recorded.
func (m *Conversations) Last() *api.Collateral { return m.last.Load() }

// ConversedWith returns with which addresses that additions drop this host has conversed in the
// last 24 hours, whether or not a list had them then; nil where that is not recorded. A datagram
// counts where the source of one was heard.
func (m *Conversations) ConversedWith(ctx context.Context, a engine.Additions, heard func(netip.Addr) bool) *wire.Conversed {
	var memory *stages.Conversations
	if err := m.host.Lend(ctx, func(a ruleset.Active) error {
		memory = a.Config.Conversations(a.Engine.Kernel())
		return nil
	}); err != nil || memory == nil {
		return nil
	}
	defer memory.Close()
	if a.Trial {
		return &wire.Conversed{}
	}
	now, last := loader.Monotonic(), make(map[netip.Addr]time.Duration)
	counts := func(how conntrack.How, at time.Duration) bool {
		return now-at <= day && (a.Out || !memory.Spared(how))
	}
	err := memory.Connections(func(c stages.Connection) {
		t, of := c.In, c.In.Src
		if a.Out {
			t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
		}
		answered := c.Answered || c.How == conntrack.OpenedUDP && !a.Out && heard(of)
		if answered && counts(c.How, c.Sent) && a.Drop(t) {
			last[of] = max(last[of], c.Sent)
		}
	})
	if err == nil && !a.Narrow { // the record has no ports
		var partners map[conntrack.Partner]conntrack.Conversation
		partners, err = memory.Partners()
		for of, s := range partners {
			t := key.Tuple{Src: of.Addr, Dst: netip.IPv6Unspecified(), Proto: unix.IPPROTO_TCP}
			if of.Addr.Is4() {
				t.Dst = netip.IPv4Unspecified()
			}
			if a.Out {
				t.Src, t.Dst = t.Dst, t.Src
			}
			if of.Out == a.Out && counts(s.How, s.Last) && a.Drop(t) {
				last[of.Addr] = max(last[of.Addr], s.Last)
			}
		}
	}
	if err != nil {
		m.log.Error("with whom this host has conversed cannot be read: " + err.Error())
		return nil
	}
	c := &wire.Conversed{Addresses: len(last)}
	for _, of := range ordered.Of(maps.Keys(last), func(x, y netip.Addr) int { return cmp.Or(cmp.Compare(last[y], last[x]), x.Compare(y)) }) {
		if len(c.Latest) == api.MaxConversed {
			break
		}
		c.Latest = append(c.Latest, of.String())
	}
	return c
}

// Records reports whether conversations are recorded, by what was last read.
func (m *Conversations) Records() bool { return m.last.Load() != nil }

// Unread reports whether a configuration has conversations recorded that were not read yet.
func (m *Conversations) Unread(c *config.Config) bool {
	return c.Collateral.On() && m.last.Load() == nil
}

// Conversed implements [node.Daemon].
func (m *Conversations) Conversed(name string) *wire.Conversed {
	return m.conversedOf(config.FleetPrefix + name)
}

// conversedOf returns with which addresses of a list this host has conversed in the last 24 hours,
// by what was last read; nil where nothing is recorded.
func (m *Conversations) conversedOf(name string) *wire.Conversed {
	l := m.Last().Of(name)
	if l == nil {
		return nil
	}
	c := &wire.Conversed{Addresses: l.Day}
	for _, of := range l.Latest[:min(l.Day, len(l.Latest), api.MaxConversed)] {
		c.Latest = append(c.Latest, of.Addr.String())
	}
	return c
}

// DropsPartners returns that a list would drop whom this host has conversed with lately.
func (m *Conversations) DropsPartners(name string) error {
	c := m.conversedOf(name)
	if c == nil || c.Addresses == 0 {
		return nil
	}
	return lists.ConversedError("this host has", c.Named(), "weir collateral "+name)
}
