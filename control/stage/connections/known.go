package connections

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/control/engine"
	"weir/filter/key"
	"weir/loader"
)

// Connection and State are the key and the value of the programs' map of connections.
type (
	Connection = bpf.WeirConnection
	State      = bpf.WeirConnectionState
)

// Known are the connections that programs remember.
type Known struct{ *loader.Shared }

// NewKnown returns memory for a number of connections, which is not pinned.
func NewKnown(n int) (Known, error) {
	s, err := loader.NewShared(Maps(n))
	return Known{s}, err
}

// Put remembers a connection, where it is known or else as that of a connected socket.
func (c Known) Put(k Connection, s State) error {
	err := c.Shared.Put(bpf.WeirMapUnconnected, &k, &s, ebpf.UpdateExist)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = c.Shared.Put(bpf.WeirMapConnections, &k, &s, ebpf.UpdateAny)
	}
	return err
}

// Opened calls fn with each connection of TCP, and of UDP sockets with a remote address, expired
// ones included, until it fails.
func (c Known) Opened(fn func(Connection, State) error) error {
	return c.in(bpf.WeirMapConnections, fn)
}

// All calls fn with each connection, expired ones included, until it fails. Those that
// come and go meanwhile may be left out.
func (c Known) All(fn func(Connection, State) error) error {
	for name := range Maps(0) {
		if err := c.in(name, fn); err != nil {
			return err
		}
	}
	return nil
}

// in calls fn with each connection in a map.
func (c Known) in(name string, fn func(Connection, State) error) error {
	var k Connection
	var s State
	return c.Each(name, &k, &s, func() error { return fn(k, s) })
}

// Opened are the connections of this host that a generation's programs remember.
type Opened struct {
	spec        RepliesSpec
	connections *Known // nil: none are remembered
}

// Opened calls fn with each connection of TCP, and of UDP sockets with a remote address, expired
// ones included, until it fails.
func (o *Opened) Opened(fn func(Connection, State) error) error {
	if o.connections == nil {
		return nil
	}
	return o.connections.Opened(fn)
}

// Sent returns when this host sent the last packet of a connection, by the kernel's clock.
func (o *Opened) Sent(c Connection, of State) time.Duration {
	lasts := time.Duration(o.spec.TCPTimeout)
	switch {
	case c.Proto == unix.IPPROTO_UDP:
		lasts = time.Duration(o.spec.UDPTimeout)
	case of.Closing != 0:
		lasts = min(opening, lasts)
	}
	return time.Duration(of.Until) - lasts
}

// Incoming returns the fields of a connection's incoming packets.
func (o *Opened) Incoming(c Connection) key.Tuple {
	family := uint8(4)
	for i := 1; i < len(c.Local); i++ {
		if c.Local[i]|c.Remote[i] != 0 {
			family = 6
		}
	}
	var ports [4]byte
	binary.NativeEndian.PutUint32(ports[:], c.Ports)
	return key.Tuple{
		Src: engine.AddrOf(family, c.Remote), Dst: engine.AddrOf(family, c.Local), Proto: uint8(c.Proto), HasPorts: true,
		SrcPort: binary.BigEndian.Uint16(ports[2:]), DstPort: binary.BigEndian.Uint16(ports[:]),
	}
}

// Close releases the memory. Programs go on.
func (o *Opened) Close() error {
	if o.connections == nil {
		return nil
	}
	return o.connections.Close()
}
