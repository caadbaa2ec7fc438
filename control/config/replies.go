package config

import (
	"fmt"
	"path"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/loader"
)

// Replies says what becomes of replies to connections that this host opens.
type Replies struct {
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
func (r *Replies) SetDefaults() {
	r.Connections = 1 << 16
	r.TCPTimeout, r.UDPTimeout = quantity.Duration(3*time.Hour), quantity.Duration(time.Minute)
}

// Pass reports whether replies pass.
func (r Replies) Pass() bool { return r.Connections > 0 && r.Action == verdict.Pass }

func (r Replies) check() (errs quantity.FieldErrors) {
	if r.Connections == 0 {
		return nil
	}
	for i, name := range r.Inside {
		if _, err := path.Match(name, ""); name == "" || err != nil {
			errs.Failf(fmt.Sprintf("inside[%d]", i), "%q is neither a name nor a pattern of interfaces", name)
		}
	}
	quantity.Between(&errs, "tcp_timeout", r.TCPTimeout, quantity.Duration(time.Second), quantity.Duration(30*24*time.Hour))
	quantity.Between(&errs, "udp_timeout", r.UDPTimeout, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	return errs
}

// Engine returns what programs do, nil where replies do not pass.
func (r Replies) Engine() *verdict.Replies {
	if !r.Pass() {
		return nil
	}
	return &verdict.Replies{
		Opening: min(opening, time.Duration(r.TCPTimeout)), Established: time.Duration(r.TCPTimeout), UDP: time.Duration(r.UDPTimeout),
		Ephemeral: engine.EphemeralPort(), Now: loader.Monotonic,
	}
}

// Sends reports whether an interface's outgoing packets are filtered, too.
func (c *Config) Sends(i Interface) bool { return i.Egress || c.Replies.Pass() }
