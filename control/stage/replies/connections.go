package replies

import (
	"errors"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/loader"
)

// Connection and State are the key and the value of the programs' map of connections.
type (
	Connection = bpf.WeirConnection
	State      = bpf.WeirConnectionState
)

// Connections are the connections that programs remember.
type Connections struct{ *loader.Shared }

// NewConnections returns memory for a number of connections, which is not pinned.
func NewConnections(n int) (Connections, error) {
	s, err := loader.NewShared(Maps(n))
	return Connections{s}, err
}

// Put remembers a connection, where it is known or else as that of a connected socket.
func (c Connections) Put(k Connection, s State) error {
	err := c.Shared.Put(bpf.WeirMapUnconnected, &k, &s, ebpf.UpdateExist)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = c.Shared.Put(bpf.WeirMapConnections, &k, &s, ebpf.UpdateAny)
	}
	return err
}

// Opened calls fn with each connection of TCP, and of UDP sockets with a remote address, expired
// ones included, until it fails.
func (c Connections) Opened(fn func(Connection, State) error) error {
	return c.in(bpf.WeirMapConnections, fn)
}

// All calls fn with each connection, expired ones included, until it fails. Those that
// come and go meanwhile may be left out.
func (c Connections) All(fn func(Connection, State) error) error {
	for name := range Maps(0) {
		if err := c.in(name, fn); err != nil {
			return err
		}
	}
	return nil
}

// in calls fn with each connection in a map.
func (c Connections) in(name string, fn func(Connection, State) error) error {
	var k Connection
	var s State
	return c.Each(name, &k, &s, func() error { return fn(k, s) })
}
