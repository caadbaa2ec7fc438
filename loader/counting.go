package loader

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// trackerMemory is the memory in which programs count for trackers, and have penalties: one for
// all interfaces, whose flows are judged together. Each of its members has a word in its rows that
// says which banks count. All change together, also that of an interface whose program has only
// just begun to count.
type trackerMemory struct {
	maps pinnedMaps

	mu      sync.Mutex // guards the following
	users   int        // generations
	held    bool       // the maps are open: for these, or until the first one comes
	active  uint64     // the banks that count, as the rows have them
	members map[*Stats]joined
}

// joined is an interface whose programs count in a memory.
type joined struct {
	rows     *array
	replaced func() bool // another process has taken over; nil: none can. It does not wait.
}

// trackerBanks are the bits of trackers in the banks of a row.
const trackerBanks = 1<<MaxTrackers - 1 | 1<<dropBank

// newTrackerMemory returns the memory of trackers with this layout. It goes on with the penalties
// of former ones, if there are any.
func newTrackerMemory(l *layout, cpus int, former pinnedMaps) (*trackerMemory, error) {
	entries := l.counted(cpus)
	maps.Copy(entries, punished())
	k, err := newPinnedMaps(entries)
	if err != nil {
		return nil, err
	}
	if former.haveSizes(punished()) {
		for name := range punished() {
			copy(k[name].words, former[name].words)
		}
	}
	began := uint64(Monotonic()) // before any program counts
	lines := k[bpf.WeirMapTrackerLines].words
	for bank := range cpus * banks {
		for _, t := range l.trackers {
			if t.Lines > 0 {
				lines[(bank*int(l.lines)+int(t.First))*lineWords+beganWord] = began
			}
		}
	}
	marks, err := k.countedBeside()
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	copy(lines[len(lines)-lineWords:], marks)
	return newMemoryOf(k), nil
}

// newMemoryOf returns a memory that takes over maps.
func newMemoryOf(k pinnedMaps) *trackerMemory {
	return &trackerMemory{maps: k, held: true, members: make(map[*Stats]joined)}
}

// countedBeside returns the IDs of the maps that belong to a memory's lines, which the last of these has.
func (k pinnedMaps) countedBeside() (marks []uint64, err error) {
	for _, name := range []string{bpf.WeirMapTrackerFlows, bpf.WeirMapTrackerPairs} {
		id, err := bpffs.MapID(k[name].m)
		if err != nil {
			return nil, err
		}
		marks = append(marks, uint64(id))
	}
	return marks, nil
}

// openTrackerMemory returns the memory that opened pins have, nil where it has not this layout, or
// a process that was killed while it replaced the pins has left those of two.
func openTrackerMemory(l *layout, cpus int, k pinnedMaps) *trackerMemory {
	if !k.haveSizes(l.counted(cpus)) || !k.haveSizes(punished()) {
		return nil
	}
	marks, err := k.countedBeside()
	lines := k[bpf.WeirMapTrackerLines].words
	for i, mark := range marks {
		if lines[len(lines)-lineWords+i] != mark {
			return nil
		}
	}
	if err != nil {
		return nil
	}
	own := make(pinnedMaps)
	for _, entries := range []map[string]int{l.counted(cpus), punished()} {
		for name := range entries {
			own[name] = k[name].share()
		}
	}
	m := newMemoryOf(own)
	m.active = atomic.LoadUint64(&k[bpf.WeirMapReasonStats].words[banksWord]) & trackerBanks
	return m
}

// isOf reports whether maps of stats belong to the memory, which may be nil.
func (m *trackerMemory) isOf(k pinnedMaps) bool {
	if m == nil {
		return false
	}
	for name, a := range m.maps {
		if k[name] != a {
			return false
		}
	}
	return true
}

// use counts a generation that uses the memory. If there was none, the caller has the maps open.
func (m *trackerMemory) use() *trackerMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users++
	if !m.held {
		for _, a := range m.maps {
			a.share()
		}
		m.held = true
	}
	return m
}

// release ends the use of the memory by a generation. A nil memory is none.
func (m *trackerMemory) release() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users > 0 {
		return nil
	}
	m.held = false
	return m.maps.Close()
}

// setActive makes the programs of all members count in bank 0 or 1 of a tracker, and reports whether
// the one with these rows is a member. What another process has taken over is none any more.
func (m *trackerMemory) setActive(place, bank int, rows []uint64) (isMember bool) {
	m.mu.Lock()
	m.active = m.active&^(1<<place) | uint64(bank)<<place
	active := m.active
	var all []joined
	for _, of := range m.members {
		all = append(all, joined{of.rows.share(), of.replaced})
	}
	m.mu.Unlock()
	for _, of := range all {
		if of.replaced == nil || !of.replaced() {
			of.setBanks(active)
		}
		isMember = isMember || &of.rows.words[0] == &rows[0]
		of.rows.Close() // if it fails, a map leaks
	}
	return isMember
}

func (of joined) setBanks(active uint64) {
	words := of.rows.words
	for i := banksWord; i < len(words); i += rowWords {
		atomic.StoreUint64(&words[i], atomic.LoadUint64(&words[i])&^trackerBanks|active)
	}
}

// add makes the stats a member. Its programs look for penalties from now on: there may be some.
func (m *trackerMemory) add(s *Stats, rows *array, replaced func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of, ok := m.members[s]; ok {
		of.replaced = replaced
		of.setBanks(m.active) // a process that was replaced may have set them meanwhile
		m.members[s] = of
		rows.Close() // if it fails, a map leaks
		return
	}
	of := joined{rows, replaced}
	of.setBanks(m.active)
	for i := penaltyWord; i < len(rows.words); i += rowWords {
		atomic.CompareAndSwapUint64(&rows.words[i], 0, 1)
	}
	m.members[s] = of
}

func (m *trackerMemory) remove(s *Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if of, ok := m.members[s]; ok {
		of.rows.Close() // if it fails, a map leaks
		delete(m.members, s)
	}
}

// join makes the stats a member of the memory that their next program counts in, nil for none,
// and returns the former. replaced may be nil.
func (s *Stats) join(m *trackerMemory, replaced func() bool) (former *trackerMemory) {
	former = s.memory.Swap(m)
	if former != nil && former != m {
		former.remove(s)
	}
	if m == nil {
		return former
	}
	if shared := s.share(bpf.WeirMapReasonStats); shared != nil {
		m.add(s, shared[bpf.WeirMapReasonStats], replaced)
	}
	return former
}

// counting is the memory of a generation's trackers.
type counting struct {
	mu     sync.Mutex
	memory *trackerMemory // nil until a program needs it
}

func (c *counting) present() *trackerMemory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory
}

func (c *counting) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memory
	c.memory = nil
	return m.release()
}

// memoryFor returns the memory for a program that counts in stats with these maps: if there is none yet,
// the one that the stats are a member of, or a new one with their penalties, if they are of the
// same trackers.
func (g *Generation) memoryFor(s *Stats, present pinnedMaps) (*trackerMemory, error) {
	c := g.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory != nil {
		return c.memory, nil
	}
	same := g.trackers == present.identity()
	if m := s.memory.Load(); m != nil && same && m.isOf(present) {
		c.memory = m.use()
		return m, nil
	}
	if !same {
		present = nil
	}
	m, err := newTrackerMemory(&g.layout, s.cpus, present)
	if err != nil {
		return nil, err
	}
	c.memory = m.use()
	return m, nil
}

// Continue makes the programs of all interfaces count where those of these stats do, if they have
// the generation's trackers, and reports whether they have. It is to be called before Load, for
// an interface that is filtered already: otherwise the first program that is loaded may be that of
// another one, and all count anew. Where the stats were opened from pins, others reports whether programs
// that are not to be replaced count there, too: then all count anew, and penalties stay. It is called
// only if that matters; nil: there are none.
func (g *Generation) Continue(s *Stats, others func() bool) (continued bool, err error) {
	c := g.counting
	same := false
	s.read(func(k pinnedMaps) { same = g.trackers != 0 && g.trackers == k.identity() })
	if !same || c.present() != nil {
		return false, nil
	}
	other := others != nil && others() // which may read the stats
	s.read(func(k pinnedMaps) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.memory != nil {
			return
		}
		m := s.memory.Load()
		if !m.isOf(k) {
			m = nil
		}
		if m == nil && !other {
			m = openTrackerMemory(&g.layout, s.cpus, k)
		}
		if m == nil {
			m, err = newTrackerMemory(&g.layout, s.cpus, k)
		}
		if continued = err == nil; continued {
			c.memory = m.use()
		}
	})
	if err != nil {
		return false, fmt.Errorf("trackers: %w", err)
	}
	return continued, nil
}

// outgrownTrackers returns the maps of trackers that must replace those of stats. Where these have
// opened the same maps of the kernel from other pins, they use them by one mapping from now on.
func (g *Generation) outgrownTrackers(s *Stats, present pinnedMaps) (fresh pinnedMaps, err error) {
	fresh = make(pinnedMaps)
	// Without trackers, too: penalties must not come back with a tracker that is configured again.
	if same := g.trackers == present.identity(); same && g.trackers == 0 {
		return fresh, nil
	} else if !same {
		if fresh, err = newHead(&g.config); err != nil {
			return nil, fmt.Errorf("trackers: %w", err)
		}
	}
	m, err := g.memoryFor(s, present)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("trackers: %w", err), fresh.Close())
	}
	for name, a := range m.maps {
		switch {
		case present[name] == a:
		case isSame(present[name], a):
			present[name] = a.share()
			if err := s.move(pinnedMaps{name: a}); err != nil {
				return nil, errors.Join(err, fresh.Close())
			}
		default:
			fresh[name] = a.share()
		}
	}
	return fresh, nil
}

// isSame reports whether two arrays are one map of the kernel.
func isSame(x, y *array) bool {
	one, err1 := bpffs.MapID(x.m)
	other, err2 := bpffs.MapID(y.m)
	return err1 == nil && err2 == nil && one == other
}

// CountElsewhere reports whether the program of another interface than these counts where those of
// the stats do, by the pins of their maps.
func (d Pins) CountElsewhere(s *Stats, interfaces []netif.Target) (elsewhere bool, err error) {
	own := make(map[string]bool)
	for _, t := range interfaces {
		if i, err := t.Find(); err == nil {
			own[d.path(i, t.Out)] = true
		}
	}
	err = d.locked(func() error {
		paths, err := hooks.Dirs(string(d))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if own[path] {
				continue
			}
			same := false
			s.read(func(k pinnedMaps) {
				lines := bpffs.Map{Map: k[bpf.WeirMapTrackerLines].m}
				same, err = lines.IsAt(filepath.Join(path, bpf.WeirMapTrackerLines))
			})
			if err != nil || !same {
				continue // it counts elsewhere
			}
			a, err := d.open(path)
			if err != nil {
				return err
			}
			elsewhere = elsewhere || !a.Severed()
			if err := a.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look for programs that count with others: %w", err)
	}
	return elsewhere, nil
}
