package measure

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/tests/bench/probe"
)

// kernelMap is one of the kernel's own maps in a program that parses, looks up the
// source, counts and drops.
type kernelMap struct {
	place
	kind     string // one of probe's
	room     int    // entries the map takes beyond the list
	programs *probe.Programs
}

func newDrop(p place) contender { return &kernelMap{place: p, kind: probe.None} }
func newLine(p place) contender { return &oneRead{kernelMap{place: p, kind: probe.Line}} }
func newHash(p place) contender {
	return &kernelMap{place: p, kind: probe.Hash, room: mostChanges}
}
func newBloom(p place) contender { return &kernelMap{place: p, kind: probe.Bloom} }
func newTrie(p place) contender {
	return &kernelMap{place: p, kind: probe.Trie, room: mostChanges}
}

func (m *kernelMap) prepare(b *blocklist) (err error) {
	if m.programs, err = probe.LoadMap(m.kind, b.n()+m.room, m.keys); err != nil || m.programs.Map == nil {
		return err
	}
	e, _, err := listfile.Load(b.path, listfile.Options{})
	if err != nil {
		return err
	}
	return m.fill(e.V4)
}

// oneRead reads a line of as much memory as its twin's lookups have, and finds nothing.
type oneRead struct{ kernelMap }

func (m *oneRead) prepare(*blocklist) (err error) {
	m.programs, err = probe.LoadMap(m.kind, m.like.generation.Block.Bytes()/64, m.keys)
	return err
}

// batch is the number of entries added by one system call.
const batch = 1 << 16

func (m *kernelMap) fill(prefixes []list.V4Prefix) error {
	if m.kind != probe.Hash {
		for _, p := range prefixes {
			if err := m.put(p); err != nil {
				return fmt.Errorf("add %v: %w", p, err)
			}
		}
		return nil
	}
	keys, values := make([][4]byte, 0, batch), make([]uint32, batch)
	for i, p := range prefixes {
		keys = append(keys, wireOrder(p.Addr()))
		if len(keys) == batch || i == len(prefixes)-1 {
			if _, err := m.programs.Map.BatchUpdate(keys, values[:len(keys)], nil); err != nil {
				return fmt.Errorf("add %d addresses: %w", len(keys), err)
			}
			keys = keys[:0]
		}
	}
	return nil
}

func (m *kernelMap) put(p list.V4Prefix) error {
	switch m.kind {
	case probe.Trie:
		return m.programs.Map.Put(trieKey(p), uint32(1))
	case probe.Bloom:
		return m.programs.Map.Put(nil, wireOrder(p.Addr()))
	}
	return m.programs.Map.Put(wireOrder(p.Addr()), uint32(1))
}

func trieKey(p list.V4Prefix) (k [8]byte) {
	binary.NativeEndian.PutUint32(k[:], uint32(p.Bits()))
	binary.BigEndian.PutUint32(k[4:], p.Addr())
	return k
}

func (m *kernelMap) program() (*ebpf.Program, error) { return m.programs.Wire() }

func (m *kernelMap) enforce() error {
	p, err := m.program()
	if err != nil {
		return err
	}
	return m.wire.attach(p)
}
func (m *kernelMap) catch() error { return m.enforce() } // it drops all packets anyway

func (m *kernelMap) received() (all, listed uint64, err error) {
	all, listed = counted(m.programs)
	return all, listed, nil
}

func (m *kernelMap) update(add, remove []uint32) error {
	for _, a := range add {
		if err := m.put(list.V4(a, 32)); err != nil {
			return err
		}
	}
	for _, a := range remove {
		var key any = wireOrder(a)
		if m.kind == probe.Trie {
			key = trieKey(list.V4(a, 32))
		}
		if err := m.programs.Map.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func (m *kernelMap) bench(*blocklist) (*probe.Programs, string, error) {
	if m.kind == probe.None {
		return m.programs, "empty", nil
	}
	return m.programs, m.kind, nil
}

// kernelBytes returns the map's memory as the kernel reports it, or 0.
func (m *kernelMap) kernelBytes() int {
	if m.programs.Map == nil {
		return 0
	}
	info, err := m.programs.Map.Info()
	if err != nil {
		return 0
	}
	bytes, _ := info.Memlock()
	return int(bytes)
}

func (m *kernelMap) Close() error {
	if m.programs == nil {
		return nil
	}
	return m.programs.Close()
}
