package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/kernelerr"
)

// Shared are maps that the programs of all generations and interfaces share. They are
// hashes, and pinned beside the interfaces.
type Shared struct {
	maps map[string]*array
}

// sharedMapNames are the names of all of them.
var sharedMapNames = []string{bpf.WeirMapConnections, bpf.WeirMapUnconnected, bpf.WeirMapAccepted, bpf.WeirMapPartners}

// NewShared returns maps with room for numbers of entries, which are not pinned.
func NewShared(entries map[string]int) (*Shared, error) {
	return makeShared(entries, newShared)
}

// makeShared makes each of the maps.
func makeShared(entries map[string]int, newMap func(name string, entries int) (*array, error)) (s *Shared, err error) {
	s = &Shared{make(map[string]*array)}
	for name, n := range entries {
		if n < 1 || n > maxEntries {
			return nil, errors.Join(fmt.Errorf("%s: %d entries: not in 1 … %d", name, n, maxEntries), s.Close())
		}
		a, err := newMap(name, n)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, kernelerr.Permission(err)), s.Close())
		}
		s.maps[name] = a
	}
	return s, nil
}

func newShared(name string, entries int) (*array, error) {
	spec, err := sharedSpec(name)
	if err != nil {
		return nil, err
	}
	spec.MaxEntries = uint32(entries)
	return newArray(spec)
}

func sharedSpec(name string) (*ebpf.MapSpec, error) {
	all, err := object()
	if err != nil {
		return nil, err
	}
	return all.Maps[name].Copy(), nil
}

// OpenShared opens the maps that are pinned, or makes new ones, which KeepShared has to
// pin. If there is room for another number of entries, those of before are copied.
func (d Pins) OpenShared(entries map[string]int) (s *Shared, err error) {
	err = d.locked(func() error {
		s, err = makeShared(entries, d.openShared)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the maps that all programs share: %w", kernelerr.Permission(err))
	}
	return s, nil
}

func (d Pins) openShared(name string, entries int) (*array, error) {
	old, err := d.pinnedShared(name)
	if err != nil {
		return nil, err
	}
	path := d.shared(name + nextShared)
	if err := removePin(path); err != nil { // one may be left from a generation that failed
		return nil, errors.Join(err, old.Close())
	}
	if old != nil && old.entries() == entries {
		return old, nil
	}
	a, err := newShared(name, entries)
	if err != nil {
		return nil, errors.Join(err, old.Close())
	}
	if old != nil {
		err = errors.Join(copyShared(name, old, a), old.Close())
	}
	if err == nil {
		err = bpffs.Pin(bpffs.Map{Map: a.m}, path)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// nextShared is the suffix of the pins of maps that no program may use yet.
const nextShared = "_next"

// removePin removes a pin that may not exist, also where the bpffs is read-only then: os.RemoveAll
// fails there.
func removePin(path string) error {
	if !bpffs.Exists(path) {
		return nil
	}
	return os.RemoveAll(path)
}

func (d Pins) shared(name string) string { return filepath.Join(string(d), name) }

// pinnedShared opens what is pinned under a name, nil where that is nothing, or of
// another version.
func (d Pins) pinnedShared(name string) (*array, error) {
	spec, err := sharedSpec(strings.TrimSuffix(name, nextShared))
	if err != nil {
		return nil, err
	}
	a, err := openPinned(d.shared(name), spec)
	if errors.Is(err, errLayout) {
		return nil, nil
	}
	return a, err
}

// copyShared copies the entries of a shared map to another one, or merges them with its own: both
// may have changed since they were copied before.
func copyShared(name string, from, to *array) error {
	if name == bpf.WeirMapPartners {
		return copyEntries[bpf.WeirPartner](from, to, mergeConversations)
	}
	return copyEntries[bpf.WeirConnection](from, to, lastState)
}

// copyEntries copies entries, or merges them with those that are there. It reads in batches of
// whole buckets: an iteration by key would begin anew at a key that is evicted meanwhile, and end
// before it has seen all.
func copyEntries[K any, V comparable](from, to *array, merge func(now, old V) V) error {
	const batch = 4096 // more than a bucket has
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := from.m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // which says that these are the last ones
			return fmt.Errorf("read a map: %w", err)
		}
		for i := range n {
			if err := mergeEntry(to.m, &keys[i], &values[i], merge); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// mergeEntry puts an entry into a map, merged with what the map has of its key.
func mergeEntry[K any, V comparable](to *ebpf.Map, key *K, value *V, merge func(now, old V) V) error {
	err := to.Update(key, value, ebpf.UpdateNoExist)
	if !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	var now V
	if err = to.Lookup(key, &now); err == nil {
		if merged := merge(now, *value); merged != now {
			err = to.Update(key, &merged, ebpf.UpdateExist)
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // evicted meanwhile
	}
	return err
}

// lastState returns the state of a connection that lasts longer: each packet prolongs it.
func lastState(now, old bpf.WeirConnectionState) bpf.WeirConnectionState {
	if old.Until > now.Until {
		return old
	}
	return now
}

func mergeConversations(now, old bpf.WeirConversation) bpf.WeirConversation {
	now.First, now.Last = min(now.First, old.First), max(now.Last, old.Last)
	now.How |= old.How
	return now
}

// eachEntry calls fn for each entry of a hash, with key and value set to it, until it fails.
func eachEntry(m *ebpf.Map, key, value any, fn func() error) error {
	all := m.Iterate()
	for all.Next(key, value) {
		if err := fn(); err != nil {
			return err
		}
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read a map: %w", err)
	}
	return nil
}

// KeepShared pins the maps that OpenShared has made for a generation, once all programs are
// that generation's, with what the former programs have added meanwhile. Until then the former
// ones stay pinned, since the new programs may fail. Maps that were made for another
// generation, which has failed, are forgotten.
func (d Pins) KeepShared(g *Generation) error {
	err := d.locked(func() error {
		for _, name := range sharedMapNames {
			if err := d.keepShared(g, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep the maps that all programs share: %w", kernelerr.Permission(err))
	}
	return nil
}

func (d Pins) keepShared(g *Generation, name string) error {
	path, used := d.shared(name+nextShared), g.maps[name]
	if is, err := (bpffs.Map{Map: used.m}).IsAt(path); err != nil {
		return err
	} else if !is {
		return removePin(path)
	}
	old, err := d.pinnedShared(name)
	if err != nil {
		return err
	}
	if old != nil {
		if err := errors.Join(copyShared(name, old, used), old.Close()); err != nil {
			return err
		}
	}
	return os.Rename(path, d.shared(name))
}

// Shared returns the maps that the generation's programs share with others, for another
// generation; nil where these are others, or have room for other numbers of entries. The
// caller must close them.
func (g *Generation) Shared(entries map[string]int) *Shared {
	if g.config.Shared == nil {
		return nil
	}
	s := &Shared{make(map[string]*array)}
	for name, n := range entries {
		a := g.config.Shared.maps[name]
		if a == nil || a.entries() != n {
			s.Close()
			return nil
		}
		s.maps[name] = a.share()
	}
	return s
}

// RepinShared pins the shared maps of a generation again that are no longer pinned, and
// returns how many those were. It does not wait for the lock of the pins.
func (d Pins) RepinShared(g *Generation) (made int, err error) {
	if g.config.Shared == nil {
		return 0, nil
	}
	var lost []string
	for _, name := range slices.Sorted(maps.Keys(g.config.Shared.maps)) {
		if is, err := (bpffs.Map{Map: g.maps[name].m}).IsAt(d.shared(name)); err != nil {
			return 0, fmt.Errorf("look for the pins of %s: %w", name, kernelerr.Exhausted(kernelerr.Permission(err)))
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
			path := d.shared(name)
			next := path + "_again"
			if err = errors.Join(os.RemoveAll(next), bpffs.Pin(bpffs.Map{Map: g.maps[name].m}, next)); err == nil {
				err = os.Rename(next, path)
			}
			if err != nil {
				break
			}
			made++
		}
	}
	if err != nil {
		return made, fmt.Errorf("pin %s again: %w", strings.Join(lost, " and "), kernelerr.Exhausted(kernelerr.Permission(err)))
	}
	return made, nil
}

// ForgetShared removes the pins of the shared maps.
func (d Pins) ForgetShared() error {
	for _, name := range sharedMapNames {
		for _, suffix := range []string{"", nextShared} {
			err := os.Remove(d.shared(name + suffix))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("forget %s: %w", name, kernelerr.Permission(err))
			}
		}
	}
	return nil
}

// Put sets an entry of one of the maps, as the flags of [ebpf.Map.Update] say.
func (s *Shared) Put(name string, key, value any, flags ebpf.MapUpdateFlags) error {
	return s.maps[name].m.Update(key, value, flags)
}

// Each calls fn for each entry of one of the maps, with key and value set to it, until it
// fails. Entries that come and go meanwhile may be left out.
func (s *Shared) Each(name string, key, value any, fn func() error) error {
	return eachEntry(s.maps[name].m, key, value, fn)
}

// Bytes is the kernel memory that they take, 0 where the kernel does not say.
func (s *Shared) Bytes() (bytes int) {
	for _, a := range s.maps {
		info, err := a.m.Info()
		if err != nil {
			return 0
		}
		n, _ := info.Memlock()
		bytes += int(n)
	}
	return bytes
}

// Close releases the maps. Programs keep theirs.
func (s *Shared) Close() (err error) {
	if s == nil {
		return nil
	}
	for _, a := range s.maps {
		err = errors.Join(err, a.Close())
	}
	return err
}

// makeShared takes part in the shared maps of the configuration. In place of others, which
// no program reads, the generation has some of its own.
func (g *Generation) makeShared() error {
	for _, name := range sharedMapNames {
		if s := g.config.Shared; s != nil && s.maps[name] != nil {
			g.maps[name] = s.maps[name].share()
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
