package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader"
)

// Programs record the addresses that lists match and with which this host converses, without
// the lists: which of them has an address follows from their contents when the record is read.
// It lives in the programs' memory, and so outlives reloads, restarts and crashes.

// collateralInterval is how often the record is read for lists, metrics and trials that end.
const collateralInterval = time.Minute

// collateralDay is for how long a conversation keeps a trial from its end.
const collateralDay = 24 * time.Hour

// namedPartners bounds the addresses that a list, or an error, names.
const namedPartners = 3

// followCollateral reads the record at its interval.
func (d *Daemon) followCollateral(ctx context.Context) {
	t := time.NewTicker(collateralInterval)
	defer t.Stop()
	logged := ""
	for {
		text := ""
		if _, err := d.readCollateral(ctx); err != nil && ctx.Err() == nil {
			text = "the record of conversations cannot be read: " + err.Error()
		}
		if text != "" && text != logged {
			d.o.Log.Error(text)
		}
		logged = text
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Collateral implements [server.Daemon].
func (d *Daemon) Collateral(ctx context.Context, name string) (api.Collateral, error) {
	if name != "" {
		if err := d.Do(ctx, func() error {
			if d.prepared.list(name) == nil {
				return d.noList(name)
			}
			return nil
		}); err != nil {
			return api.Collateral{}, err
		}
	}
	c, err := d.readCollateral(ctx)
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

// readCollateral reads the record, and says which lists have its addresses. Run's goroutine only
// lends what it needs.
func (d *Daemon) readCollateral(ctx context.Context) (*api.Collateral, error) {
	d.measuring.Lock() // one reading at a time
	defer d.measuring.Unlock()
	c := &api.Collateral{At: time.Now()}
	var p *Prepared
	read := func() (map[verdict.Partner]verdict.Conversation, error) { return nil, nil }
	if err := d.Do(ctx, func() error {
		p = d.prepared.copied()
		record := p.config.Conversations(d.engine.Kernel())
		if record == nil {
			d.collateral.Store(nil)
			return nil
		}
		c.Recorded, c.Room = true, int(p.config.Collateral.Sources)
		read = func() (map[verdict.Partner]verdict.Conversation, error) {
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
	p.attribute(c, partners)
	return c, d.Do(ctx, func() error {
		if d.prepared.config.Collateral.On() {
			d.collateral.Store(c)
			d.note()
		}
		return nil
	})
}

// attribute says which lists would drop what the partners send, or what is sent to them.
func (p *Prepared) attribute(c *api.Collateral, partners map[verdict.Partner]verdict.Conversation) {
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
	for _, l := range p.lists {
		if l.Action != config.Allow {
			number[l.Name] = len(c.Lists)
			c.Lists = append(c.Lists, api.ListCollateral{List: l.Name})
		}
	}
	in, out := engine.NewFinder(p.rules, false), engine.NewFinder(p.rules, true)
	for _, of := range all {
		whole := netip.PrefixFrom(of.Addr, of.Addr.BitLen())
		find, sought := in, key.Source(whole)
		if of.Direction == "out" {
			find, sought = out, key.Destination(whole)
		}
		for name := range p.blocking(find.Covering(sought)) {
			l := &c.Lists[number[name]]
			l.Addresses++
			if c.At.Sub(of.Last) <= collateralDay {
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
func (p *Prepared) blocking(found []engine.Found) map[string]bool {
	names := make(map[string]bool)
	for _, f := range found {
		switch rule := p.rules[f.List-1]; {
		case !rule.Allow:
			names[api.ListOf(rule.Name)] = true
		case !rule.Rule.On():
			return nil
		}
	}
	return names
}

func howConversed(how verdict.How) (all []string) {
	for _, of := range []struct {
		bit  verdict.How
		name string
	}{{verdict.OpenedTCP, "opened-tcp"}, {verdict.OpenedUDP, "opened-udp"}, {verdict.AcceptedTCP, "accepted-tcp"}} {
		if how&of.bit != 0 {
			all = append(all, of.name)
		}
	}
	return all
}

// collateralOf returns what was last read of a list, nil where nothing is recorded.
func (d *Daemon) collateralOf(name string) *api.ListCollateral {
	if c := d.collateral.Load(); c != nil {
		for i := range c.Lists {
			if c.Lists[i].List == name {
				return &c.Lists[i]
			}
		}
	}
	return nil
}

// dropsPartners returns that a list would drop whom this host has conversed with lately.
func (d *Daemon) dropsPartners(name string) error {
	l := d.collateralOf(name)
	if l == nil || l.Day == 0 {
		return nil
	}
	var some []string
	for _, of := range l.Latest[:min(l.Day, len(l.Latest), namedPartners)] {
		some = append(some, of.Addr.String())
	}
	if more := l.Day - len(some); more > 0 {
		some = append(some, fmt.Sprintf("%d more", more))
	}
	return fmt.Errorf("in the last 24 hours this host has conversed with addresses that it would drop: %s (weir collateral %s)", strings.Join(some, ", "), name)
}
