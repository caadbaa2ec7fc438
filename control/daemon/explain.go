package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"weir/control/api"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/verdict"
)

var errQuestion = errors.New(`want an address, "> ADDRESS", or a flow as in "tcp 192.0.2.1:1234 > 198.51.100.7:443"`)

// Explain implements [api.Control].
func (d *Daemon) Explain(ctx context.Context, question string) (e api.Explanation, err error) {
	packets, err := packetsOf(question)
	if err != nil {
		return e, &api.BadRequest{Err: fmt.Errorf("%q: %w", question, err)}
	}
	e = api.Explanation{Question: question, Verdict: verdict.Pass.String()}
	feeds := make(map[*feed.Feed][]sought)
	err = d.Do(ctx, func() error {
		seen := make(map[engine.Found]bool)
		var reason verdict.Reason
		for _, p := range packets {
			reason = max(reason, d.reason(p)) // those of lists are in the order of their gravity
			for _, f := range d.engine.Find(p) {
				if !seen[f] {
					seen[f] = true
					m, from := d.match(f)
					if e.Matches = append(e.Matches, m); from != nil {
						feeds[from] = append(feeds[from], sought{len(e.Matches) - 1, f.Key})
					}
				}
			}
		}
		e.Reason = reason.String()
		if reason == verdict.Blocked {
			e.Verdict = verdict.Drop.String()
		}
		return nil
	})
	// A long feed takes its time, which the filter has not got.
	for f, all := range feeds {
		var keys []key.Key
		for _, s := range all {
			keys = append(keys, s.Key)
		}
		for i, o := range f.Find(keys) {
			m := &e.Matches[all[i].match]
			m.Source, m.Line = o.Source, o.Line
		}
	}
	return e, err
}

// reason returns the reason with which a packet leaves as far as the lists go.
func (d *Daemon) reason(t key.Tuple) verdict.Reason {
	if _, blocked := d.engine.Block.Match(t); !blocked {
		return verdict.Clean
	}
	if _, allowed := d.engine.Allow.Match(t); allowed {
		return verdict.Allowed
	}
	if d.prepared.config.Monitor {
		return verdict.Monitored
	}
	return verdict.Blocked
}

// sought is a match whose place in a feed is looked for.
type sought struct {
	match int
	key.Key
}

// match says what is known of an entry, and which feed has it, nil if none does.
func (d *Daemon) match(f engine.Found) (api.Match, *feed.Feed) {
	hits := d.meter.Hits()
	for _, l := range d.prepared.lists {
		m := api.Match{List: l.Name, Action: string(l.Action), Entry: f.Key.String()}
		switch f.List {
		case l.source:
			m.Packets = d.caught(l, d.hits(hits, f.List))
			return m, l.feed
		case l.manual:
			m.Packets = d.caught(l, d.hits(hits, f.List))
			if e, ok := d.journal.Get(l.Name, f.Key); ok {
				m.Added, m.Reason = &e.Added, e.Reason
				if e.UID != api.NoUID {
					m.UID = &e.UID
				}
				if !e.Expires.IsZero() {
					m.Expires = &e.Expires
				}
			}
			return m, nil
		}
	}
	return api.Match{Entry: f.Key.String()}, nil
}

// packetsOf are the packets that a question is about: an address alone asks for
// those from it, and those to it.
func packetsOf(question string) ([]key.Tuple, error) {
	e, err := list.ParseEntry(question)
	if err != nil {
		return nil, fmt.Errorf("%w; %w", err, errQuestion)
	}
	other := func(a netip.Addr) netip.Addr {
		if a.Is4() {
			return netip.IPv4Unspecified()
		}
		return netip.IPv6Unspecified()
	}
	var p netip.Prefix
	switch {
	case e.Len() != 1:
		return nil, errQuestion
	case len(e.V4) == 1:
		p = e.V4[0].Prefix()
	case len(e.V6) == 1:
		p = e.V6[0]
	default:
		k := e.Flows[0]
		return []key.Tuple{{
			Src: k.Src, Dst: k.Dst, Proto: k.Proto, SrcPort: k.SrcPort, DstPort: k.DstPort, HasPorts: k.Ports(),
		}}, nil
	}
	if !p.IsSingleIP() {
		return nil, fmt.Errorf("a prefix, where packets have addresses; %w", errQuestion)
	}
	a := p.Addr()
	const none = 255 // a protocol that no list names
	return []key.Tuple{{Src: a, Dst: other(a), Proto: none}, {Src: other(a), Dst: a, Proto: none}}, nil
}
