// Package connections remembers connections: those of this host, whose replies pass the block lists (replies), and
// those with addresses that lists match (collateral).
package connections

import (
	"fmt"
	"path"
	"time"

	"github.com/dustin/go-humanize"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/conntrack"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// RepliesSpec says what becomes of replies to connections that this host opens.
type RepliesSpec struct {
	// pass: they pass all block lists, and egress is true for all interfaces, since
	// connections are remembered as they leave. drop: they are matched like other packets.
	Action verdict.Action `yaml:"action,required,short"`

	// The number of connections of all interfaces that are remembered, in 128 bytes
	// each, and a quarter as many of UDP sockets without a remote address. Beyond that, those
	// that were used least recently are forgotten.
	Connections quantity.Count `yaml:"connections" min:"1024" max:"16777216"`

	// How long a TCP connection lasts after the last packet that this host has sent: from 1s
	// to 30d. One that is not established, or is closed, lasts 2 minutes at most.
	TCPTimeout quantity.Duration `yaml:"tcp_timeout"`

	// The same of UDP, for which what a socket that is not connected sends is a connection
	// each time.
	UDPTimeout quantity.Duration `yaml:"udp_timeout"`

	// Interfaces behind which containers or hosts are, as in docker0, with *, ? and [ ]: what
	// this host forwards for them opens connections, too. Of UDP each is like one of a socket
	// that is not connected.
	Inside []string `yaml:"inside,omitempty"`
}

// opening is how long a TCP connection lasts that is not established, or is closed.
const opening = 2 * time.Minute

// SetDefaults sets the defaults. Those of TCP are above the two hours after which Linux
// probes connections that are idle.
func (s *RepliesSpec) SetDefaults() {
	s.Connections = 1 << 16
	s.TCPTimeout, s.UDPTimeout = quantity.Duration(3*time.Hour), quantity.Duration(time.Minute)
}

// On reports whether replies pass.
func (s *RepliesSpec) On() bool { return s.Connections > 0 && s.Action == verdict.Pass }

// Check returns what is wrong with the section.
func (s *RepliesSpec) Check() (errs quantity.FieldErrors) {
	if s.Connections == 0 {
		return nil
	}
	for i, name := range s.Inside {
		if _, err := path.Match(name, ""); name == "" || err != nil {
			errs.Failf(fmt.Sprintf("inside[%d]", i), "%q is neither a name nor a pattern of interfaces", name)
		}
	}
	quantity.Between(&errs, "tcp_timeout", s.TCPTimeout, quantity.Duration(time.Second), quantity.Duration(30*24*time.Hour))
	quantity.Between(&errs, "udp_timeout", s.UDPTimeout, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	return errs
}

// Outgoing reports that connections are remembered as they leave.
func (s *RepliesSpec) Outgoing() bool { return s.On() }

// Shared returns the maps of the connections.
func (s *RepliesSpec) Shared() map[string]int { return Maps(int(s.Connections)) }

// Part returns the share of programs.
func (s *RepliesSpec) Part() (engine.Part, error) {
	return &RepliesPart{
		Replies: &conntrack.Replies{
			Drop:    !s.On(),
			Opening: min(opening, time.Duration(s.TCPTimeout)), Established: time.Duration(s.TCPTimeout), UDP: time.Duration(s.UDPTimeout),
			Ephemeral: engine.EphemeralPort(), Now: loader.Monotonic,
		},
		Inside: s.Inside,
	}, nil
}

// Memory is the stage where another one may ask for what it remembers, too.
type Memory struct {
	RepliesSpec
	asked bool
}

// NewMemory returns the stage. asked: connections are remembered even if replies do not pass.
func NewMemory(s RepliesSpec, asked bool) *Memory {
	if asked && s.Connections == 0 {
		s.SetDefaults()
		s.Action = verdict.Drop
	}
	return &Memory{s, asked}
}

// On reports whether connections are remembered.
func (m *Memory) On() bool { return m.asked || m.RepliesSpec.On() }

// Open opens the connections that a generation's programs remember. They must be closed.
func (m *Memory) Open(g *loader.Generation) *Opened {
	o := &Opened{spec: m.RepliesSpec}
	if m.On() {
		if shared := g.Shared(m.Shared()); shared != nil {
			o.connections = &Known{shared}
		}
	}
	return o
}

// unconnectedShare is how many connections there are for one of sockets without a remote
// address.
const unconnectedShare = 4

// Maps returns the maps of a number of connections. Those of UDP sockets without a remote
// address have one of their own, and evict none of the others.
func Maps(connections int) map[string]int {
	return map[string]int{
		bpf.WeirMapConnections: connections,
		bpf.WeirMapUnconnected: max(1, connections/unconnectedShare),
	}
}

// RepliesPart is the share of programs.
type RepliesPart struct {
	engine.BasePart
	*conntrack.Replies
	Inside []string // interfaces behind which hosts are whose connections count as this host's
}

// Constants returns those of the program of an interface. It knows the connections of its
// network namespace only, and the ports that are connected from there.
func (p *RepliesPart) Constants(t netif.Target, _ loader.Seed) map[string]any {
	c := bpf.WeirReplyConfig{
		On: 1, Pass: loader.Flag(!p.Drop), Scope: stage.Scope(t.Netns), Ephemeral: uint32(p.Ephemeral),
		Opening: uint64(p.Opening), Established: uint64(p.Established), Udp: uint64(p.UDP),
	}
	if t.Netns != "" {
		if port, err := t.EphemeralPort(); err == nil && port != 0 {
			c.Ephemeral = uint32(port)
		}
	}
	return map[string]any{bpf.WeirVarReplies: &c}
}

// Devices returns the interfaces inside, for the programs of outgoing packets.
func (p *RepliesPart) Devices(t netif.Target) map[string]loader.Devices {
	var inside loader.Devices
	if t.Out {
		inside.Names = p.Inside
	}
	return map[string]loader.Devices{bpf.WeirMapReplyInsides: inside}
}

// Twin makes the twin of programs let replies pass.
func (p *RepliesPart) Twin(v *verdict.Program) { v.Replies = p.Replies }

// RepliesAbout describes the connections of this host whose replies pass the block lists.
type RepliesAbout struct {
	Connections int `json:"connections"` // of all interfaces, that are remembered at most
}

// About returns what is said of the programs, nil where no replies pass.
func (s *RepliesSpec) About() *RepliesAbout {
	if !s.On() {
		return nil
	}
	return &RepliesAbout{int(s.Connections)}
}

// Rows describes what becomes of packets of a direction.
func (a *RepliesAbout) Rows(out bool) []stage.Row {
	if a == nil || out {
		return nil
	}
	return []stage.Row{{Name: "replies", Text: fmt.Sprintf(
		"pass, to connections that this host opens: to the last %s that left by interfaces with (out)", humanize.Comma(int64(a.Connections)))}}
}
