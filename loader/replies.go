package loader

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// Replies has the constants of programs that let replies pass; the loader sets On and
// Scope.
type Replies = bpf.WeirReplyConfig

// Connection and ConnectionState are what programs remember of a connection.
type (
	Connection      = bpf.WeirConnection
	ConnectionState = bpf.WeirConnectionState
)

// Connections are the connections that this host has opened. The programs of all
// generations and interfaces share them.
type Connections struct {
	maps map[string]*array // one for UDP sockets without a remote address, which evict none of the others
}

// MaxConnections bounds their number.
const MaxConnections = 1 << 24

// unconnectedShare is how many connections there are for one of sockets without a remote
// address.
const unconnectedShare = 4

// connectionEntries returns the maps of connections, with how many they have room for.
func connectionEntries(entries int) map[string]int {
	return map[string]int{
		bpf.WeirMapConnections: entries,
		bpf.WeirMapUnconnected: max(1, entries/unconnectedShare),
	}
}

// NewConnections returns memory for a number of connections, which is not pinned, and for a
// quarter as many more of sockets without a remote address.
func NewConnections(entries int) (*Connections, error) {
	return makeConnections(entries, newConnections)
}

// makeConnections makes each of the maps.
func makeConnections(entries int, newMap func(name string, entries int) (*array, error)) (c *Connections, err error) {
	if entries < 1 || entries > MaxConnections {
		return nil, fmt.Errorf("%d connections: not in 1 … %d", entries, MaxConnections)
	}
	c = &Connections{make(map[string]*array)}
	for name, n := range connectionEntries(entries) {
		a, err := newMap(name, n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, explainPermission(err)), c.Close())
		}
		c.maps[name] = a
	}
	return c, nil
}

func newConnections(name string, entries int) (*array, error) {
	spec, err := connectionsSpec(name)
	if err != nil {
		return nil, err
	}
	spec.MaxEntries = uint32(entries)
	return newArray(spec)
}

func connectionsSpec(name string) (*ebpf.MapSpec, error) {
	all, err := object()
	if err != nil {
		return nil, err
	}
	return all.Maps[name].Copy(), nil
}

// OpenConnections opens the connections that are pinned, or makes new ones, which
// KeepConnections has to pin. If there is room for another number of connections, those
// that are known are copied.
func (d Pins) OpenConnections(entries int) (c *Connections, err error) {
	err = d.locked(func() error {
		c, err = makeConnections(entries, d.openConnections)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open connections: %w", explainPermission(err))
	}
	return c, nil
}

func (d Pins) openConnections(name string, entries int) (*array, error) {
	old, err := d.pinnedConnections(name)
	if err != nil {
		return nil, err
	}
	if old != nil && old.entries() == entries {
		return old, nil
	}
	a, err := newConnections(name, entries)
	if err != nil {
		return nil, err
	}
	if old != nil {
		err = errors.Join(copyConnections(old, a), old.Close())
	}
	if err == nil {
		path := d.connections(name + nextConnections)
		err = errors.Join(os.RemoveAll(path), pin(pinnableMap{a.m}, path))
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// nextConnections is the suffix of the pins of connections that no program may use yet.
const nextConnections = "_next"

func (d Pins) connections(name string) string { return filepath.Join(string(d), name) }

// pinnedConnections opens what is pinned under a name, nil where that is nothing, or of
// another version.
func (d Pins) pinnedConnections(name string) (*array, error) {
	spec, err := connectionsSpec(strings.TrimSuffix(name, nextConnections))
	if err != nil {
		return nil, err
	}
	a, err := openPinned(d.connections(name), spec)
	if errors.Is(err, errLayout) {
		return nil, nil
	}
	return a, err
}

// copyConnections copies those that the other memory does not have.
func copyConnections(from, to *array) error {
	return eachConnection(from, func(k Connection, s ConnectionState) error {
		if err := to.m.Update(&k, &s, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return err
		}
		return nil
	})
}

// KeepConnections pins the connections that OpenConnections has made, once all programs use
// them, with what the former programs have remembered meanwhile. Until then the former
// ones stay pinned, since the new programs may fail.
func (d Pins) KeepConnections() error {
	err := d.locked(func() error {
		for name := range connectionEntries(0) {
			if err := d.keepConnections(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep connections: %w", explainPermission(err))
	}
	return nil
}

func (d Pins) keepConnections(name string) error {
	next, err := d.pinnedConnections(name + nextConnections)
	if err != nil || next == nil {
		return err
	}
	defer next.Close()
	old, err := d.pinnedConnections(name)
	if err != nil {
		return err
	}
	if old != nil {
		if err := errors.Join(copyConnections(old, next), old.Close()); err != nil {
			return err
		}
	}
	return os.Rename(d.connections(name+nextConnections), d.connections(name))
}

// Connections returns the connections that the generation's programs know, for another
// generation; nil where they know none, or have room for another number. The caller must close
// them.
func (g *Generation) Connections(entries int) *Connections {
	if g.config.Connections == nil {
		return nil
	}
	c := &Connections{make(map[string]*array)}
	for name, n := range connectionEntries(entries) {
		if g.maps[name].entries() != n {
			c.Close()
			return nil
		}
		c.maps[name] = g.maps[name].share()
	}
	return c
}

// RepinConnections pins the connections of a generation again that are no longer pinned, and
// returns how many maps that were. It does not wait for the lock of the pins.
func (d Pins) RepinConnections(g *Generation) (made int, err error) {
	var lost []string
	for name := range connectionEntries(0) {
		if g.config.Connections == nil {
			break
		}
		if is, err := (pinnableMap{g.maps[name].m}).isAt(d.connections(name)); err != nil {
			return 0, fmt.Errorf("look for the pinned connections: %w", explainExhausted(explainPermission(err)))
		} else if !is {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 {
		return 0, nil
	}
	unlock, err := d.lock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return 0, nil // next time
	}
	if err == nil {
		defer unlock()
		for _, name := range lost {
			path := d.connections(name)
			next := path + "_again"
			if err = errors.Join(os.RemoveAll(next), pin(pinnableMap{g.maps[name].m}, next)); err == nil {
				err = os.Rename(next, path)
			}
			if err != nil {
				break
			}
			made++
		}
	}
	if err != nil {
		return made, fmt.Errorf("pin the connections again: %w", explainExhausted(explainPermission(err)))
	}
	return made, nil
}

// ForgetConnections removes the pins of the connections.
func (d Pins) ForgetConnections() error {
	for name := range connectionEntries(0) {
		for _, suffix := range []string{"", nextConnections} {
			err := os.Remove(d.connections(name + suffix))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("forget connections: %w", explainPermission(err))
			}
		}
	}
	return nil
}

// Put remembers a connection, where it is known or else as that of a connected socket.
func (c *Connections) Put(k Connection, s ConnectionState) error {
	err := c.maps[bpf.WeirMapUnconnected].m.Update(&k, &s, ebpf.UpdateExist)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = c.maps[bpf.WeirMapConnections].m.Put(&k, &s)
	}
	return err
}

// All calls fn with each connection, expired ones included, until it fails. Those that
// come and go meanwhile may be left out.
func (c *Connections) All(fn func(Connection, ConnectionState) error) error {
	for _, a := range c.maps {
		if err := eachConnection(a, fn); err != nil {
			return err
		}
	}
	return nil
}

func eachConnection(a *array, fn func(Connection, ConnectionState) error) error {
	var k Connection
	var s ConnectionState
	all := a.m.Iterate()
	for all.Next(&k, &s) {
		if err := fn(k, s); err != nil {
			return err
		}
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read connections: %w", err)
	}
	return nil
}

// Bytes is the kernel memory that they take, 0 where the kernel does not say.
func (c *Connections) Bytes() (bytes int) {
	for _, a := range c.maps {
		info, err := a.m.Info()
		if err != nil {
			return 0
		}
		n, _ := info.Memlock()
		bytes += int(n)
	}
	return bytes
}

// Close releases the connections. Programs keep theirs.
func (c *Connections) Close() (err error) {
	if c == nil {
		return nil
	}
	for _, a := range c.maps {
		err = errors.Join(err, a.Close())
	}
	return err
}

// makeConnections takes part in the connections of the configuration, if there are any.
func (g *Generation) makeConnections() error {
	for name := range connectionEntries(0) {
		if c := g.config.Connections; c != nil {
			g.maps[name] = c.maps[name].share()
			continue
		}
		a, err := newArray(g.spec.Maps[name])
		if err != nil {
			return err
		}
		g.maps[name] = a
	}
	return nil
}

// replies returns the constants of a program that counts in stats.
func (g *Generation) replies(s *Stats) *Replies {
	r := g.config.Replies
	r.Scope, r.On = s.scope.Load(), flag(g.config.Connections != nil)
	if port := s.ephemeral.Load(); port != 0 {
		r.Ephemeral = port
	}
	return &r
}

// SetInsides sets the interfaces behind which hosts are whose connections count as this
// host's where they leave by the program's interface, by their indexes. It fails where there
// are too many for the map, or where the kernel refuses, and then some may be set.
func (s *Stats) SetInsides(devices []uint32) (err error) {
	s.read(func(k pinnedMaps) { err = setKeys(k[bpf.WeirMapReplyInsides].m, devices) })
	if err != nil {
		return fmt.Errorf("set the interfaces whose hosts get replies: %w", explainPermission(err))
	}
	return nil
}

// SetNamespace makes the programs that are loaded with the stats from now on remember
// connections apart from those of other network namespaces, and take the ports that are
// connected from there for such. "" is the namespace of this process, where the ports are
// those of the configuration.
func (s *Stats) SetNamespace(name string) {
	h := fnv.New64a()
	h.Write([]byte(name))
	s.scope.Store(h.Sum64())
	var port uint16
	if name != "" {
		port, _ = Target{Netns: name}.EphemeralPort() // if it fails, those of the configuration
	}
	s.ephemeral.Store(uint32(port))
}
