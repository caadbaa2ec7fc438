package loader

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// minStride is the minimum number of counters in a row of list_stats: room for
// further lists without a new map.
const minStride = 64

// Stats are the maps of an interface that outlive its program: the counters of
// packets and bytes by reason and by list, the trackers of heavy hitters with their
// penalties, the memory of parts, and the events. A program writes a row or a bank for
// each CPU; Stats read them in the kernel's memory. The methods may be called at
// any time, also concurrently. Nil Stats have no counters.
type Stats struct {
	cpus int          // possible ones
	mu   sync.RWMutex // guards the following: Replace exchanges maps
	maps pinnedMaps   // nil: closed

	entry atomic.Uint32 // the program that counts in them

	target atomic.Pointer[netif.Target] // see For; nil: none
	own    atomic.Pointer[ownDevices]   // see Follow; nil: it is none of the devices

	memory atomic.Pointer[trackerMemory] // of the programs that were attached; nil: they have no trackers

	reading sync.Mutex      // guards the following; taken after mu
	events  *ringbuf.Reader // nil until it is read
	record  ringbuf.Record
}

// pinnedMaps are the maps that outlive a program, by name. Their pins have the same
// names.
type pinnedMaps map[string]*array

// kept is the tag of these maps in the object: KEPT in bpf/array.h.
const kept = "kept"

// pinnedMapNames returns the names of all of them, sorted. Those of TC are among those of XDP.
var pinnedMapNames = sync.OnceValue(func() (names []string) {
	spec, err := object()
	if err != nil {
		return nil // who loads it fails
	}
	for name, m := range spec.Maps {
		if slices.Contains(m.Tags, kept) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Clip(names) // for all attachments, which append to it
})

// perCPU are the names of those with a row for each possible CPU, whatever is configured.
var perCPU = []string{
	bpf.WeirMapReasonStats, bpf.WeirMapEthertypeStats, bpf.WeirMapInnerStats, bpf.WeirMapLoopStats,
}

func (k pinnedMaps) Close() error {
	var errs []error
	for _, m := range k {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// haveSizes reports whether the maps of these names have these numbers of entries. A process that
// was killed while it replaced pins leaves maps of two generations: the identity in the head then
// does not describe the others.
func (k pinnedMaps) haveSizes(entries map[string]int) bool {
	for name, n := range entries {
		if k[name] == nil || k[name].entries() != n {
			return false
		}
	}
	return true
}

// isHead reports whether a map has the seed and the identity for all maps of its stage.
func isHead(name string) bool { return strings.HasSuffix(name, "_now") }

// comparePins orders names of pins as they are to be made or replaced: heads come last. A
// process that is killed in between leaves the former identity, so that no later program takes the
// new maps for its own.
func comparePins(x, y string) int {
	if isHead(x) != isHead(y) {
		if isHead(x) {
			return 1
		}
		return -1
	}
	return strings.Compare(x, y)
}

// newPinnedMaps returns empty maps of these names, with these numbers of entries.
func newPinnedMaps(entries map[string]int) (_ pinnedMaps, err error) {
	spec, _, err := statsSpec()
	if err != nil {
		return nil, err
	}
	k := make(pinnedMaps)
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	for name, n := range entries {
		if n > maxEntries {
			return nil, errors.New("more memory for all CPUs than a map can have")
		}
		spec.Maps[name].MaxEntries = uint32(n)
		if k[name], err = newArray(spec.Maps[name]); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// NewStats returns counters for a program that is tested, not attached, and
// numbers its lists 1 … lists.
func NewStats(lists int) (*Stats, error) {
	s, err := newStats(lists)
	if err != nil {
		return nil, fmt.Errorf("new counters: %w", kernelerr.Permission(err))
	}
	return s, nil
}

func newStats(lists int) (_ *Stats, err error) {
	spec, cpus, err := statsSpec()
	if err != nil {
		return nil, err
	}
	s := &Stats{cpus: cpus, maps: make(pinnedMaps)}
	defer func() {
		if err != nil {
			s.maps.Close()
		}
	}()
	for _, name := range pinnedMapNames() {
		if name == bpf.WeirMapListStats {
			s.maps[name], err = newListArray(lists)
		} else {
			// The maps of trackers are empty until a program brings its own.
			s.maps[name], err = newArray(spec.Maps[name])
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// newListArray returns counters for lists 0 … lists: a row of a power of two for
// each possible CPU, and one that no CPU writes. The latter has the counts from
// before the counters moved here from a smaller array.
func newListArray(lists int) (*array, error) {
	spec, cpus, err := statsSpec()
	if err != nil {
		return nil, err
	}
	stride := max(minStride, 1<<bits.Len(uint(lists)))
	m := spec.Maps[bpf.WeirMapListStats]
	m.MaxEntries = uint32(stride * (cpus + 1))
	return newArray(m)
}

// statsSpec returns the specifications of maps, those in perCPU with all their rows, and the
// number of CPUs.
func statsSpec() (*ebpf.CollectionSpec, int, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, 0, err
	}
	all, err := object()
	if err != nil {
		return nil, 0, err
	}
	spec := &ebpf.CollectionSpec{Maps: make(map[string]*ebpf.MapSpec)}
	for name, m := range all.Maps {
		spec.Maps[name] = m.Copy()
	}
	for _, name := range perCPU {
		spec.Maps[name].MaxEntries = uint32(cpus)
	}
	return spec, cpus, nil
}

// object and objectTC are the object files, parsed once: that takes milliseconds, which
// add up where there are hundreds of interfaces, or lists change often. A caller that
// changes a specification copies it first.
var (
	object   = sync.OnceValues(bpf.LoadWeir)
	objectTC = sync.OnceValues(bpf.LoadWeirTC)
)

// openStats opens pinned maps. It fails with errLayout where they do not fit,
// because another version of weir has made them, or are gone. The maps of a stage that
// has no pins at all, because the version that made the others did not have it, are
// new and empty; their names are in fresh.
func openStats(path string) (_ *Stats, fresh []string, err error) {
	spec, cpus, err := statsSpec()
	if err != nil {
		return nil, nil, err
	}
	s := &Stats{cpus: cpus, maps: make(pinnedMaps)}
	defer func() {
		if err != nil {
			s.maps.Close()
		}
	}()
	pinned := make(map[string]bool) // by stage
	for _, name := range pinnedMapNames() {
		if bpffs.Exists(filepath.Join(path, name)) {
			pinned[stageOf(name)] = true
		}
	}
	for _, name := range pinnedMapNames() {
		if stage := stageOf(name); pinned[stage] || name == bpf.WeirMapReasonStats || name == bpf.WeirMapListStats {
			s.maps[name], err = openPinned(filepath.Join(path, name), spec.Maps[name])
		} else {
			fresh = append(fresh, name)
			s.maps[name], err = newArray(spec.Maps[name])
		}
		if err != nil {
			return nil, nil, err
		}
	}
	for _, name := range perCPU {
		if s.maps[name].entries() != cpus {
			return nil, nil, errLayout
		}
	}
	if stride := s.stride(s.maps[bpf.WeirMapListStats]); stride < minStride || bits.OnesCount(uint(stride)) != 1 {
		return nil, nil, errLayout
	}
	return s, fresh, nil
}

// stageOf returns the first word of a map's name, which the maps of a stage share.
func stageOf(name string) string {
	stage, _, _ := strings.Cut(name, "_")
	return stage
}

// openPinned opens a pinned map that matches spec, apart from its size.
func openPinned(path string, spec *ebpf.MapSpec) (*array, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, cmp.Or(bpffs.UnlessDamaged(path, err), errLayout)
	}
	if fits(m, spec) != nil {
		m.Close()
		return nil, errLayout
	}
	return mapArray(m, int(spec.ValueSize))
}

// present returns the maps that a program loaded now shares.
func (s *Stats) present() (pinnedMaps, error) {
	if s == nil {
		return nil, errors.New("there are no counters")
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.maps == nil {
		return nil, errors.New("the counters are closed")
	}
	return maps.Clone(s.maps), nil
}

// read calls fn with the maps, unless the stats are closed. The maps are valid
// until it returns.
func (s *Stats) read(fn func(pinnedMaps)) {
	if s == nil {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.maps != nil {
		fn(s.maps)
	}
}

// share returns the maps of these names for another user, who must close them, or
// nil if the stats are closed.
func (s *Stats) share(names ...string) (shared pinnedMaps) {
	s.read(func(k pinnedMaps) {
		shared = make(pinnedMaps)
		for _, name := range names {
			shared[name] = k[name].share()
		}
	})
	return shared
}

// stride is the number of counters in a row of list_stats.
func (s *Stats) stride(lists *array) int {
	return lists.entries() / (s.cpus + 1)
}

// Reasons returns the counters of all reasons, by number. It uses the memory of
// dst if that suffices, and makes no system call.
func (s *Stats) Reasons(dst []Counter) []Counter {
	dst = dst[:0]
	s.read(func(k pinnedMaps) {
		// Behind the counters, a row has other words; cut them off.
		dst = sum(dst, k[bpf.WeirMapReasonStats].words, rowWords/counterWords)[:bpf.WeirReasonREASON_COUNT]
	})
	return dst
}

// Lists returns the counters of the lists, by number, as many as there is room
// for: list 0 is for hits that no table attributes. It uses the memory of dst if
// that suffices, and makes no system call.
func (s *Stats) Lists(dst []Counter) []Counter {
	dst = dst[:0]
	s.read(func(k pinnedMaps) {
		lists := k[bpf.WeirMapListStats]
		dst = sum(dst, lists.words, s.stride(lists))
	})
	return dst
}

// Refuted is the number of keys that the cascade has passed and the table has
// not confirmed: the false positives of the cascade in exact mode.
func (s *Stats) Refuted() uint64 { return s.sumOfRows(refutedWord) }

// sumOfRows adds up a word of all CPUs' rows.
func (s *Stats) sumOfRows(word int) (n uint64) {
	s.read(func(k pinnedMaps) {
		words := k[bpf.WeirMapReasonStats].words
		for i := word; i < len(words); i += rowWords {
			n += atomic.LoadUint64(&words[i])
		}
	})
	return n
}

const (
	counterWords   = 2
	rowWords       = int(unsafe.Sizeof(bpf.WeirCpuRow{})) / 8
	refutedWord    = int(unsafe.Offsetof(bpf.WeirCpuRow{}.Refuted)) / 8
	eventsLostWord = int(unsafe.Offsetof(bpf.WeirCpuRow{}.EventsLost)) / 8
)

// sum adds up rows of row counters.
func sum(dst []Counter, words []uint64, row int) []Counter {
	dst = slices.Grow(dst[:0], row)[:row]
	clear(dst)
	for i := 0; i < len(words); i += counterWords {
		c := &dst[i/counterWords%row]
		c.Packets += atomic.LoadUint64(&words[i])
		c.Bytes += atomic.LoadUint64(&words[i+1])
	}
	return dst
}

// Take takes over the maps that a program under test brings. [Attachment.Replace]
// does so for an attachment.
func (s *Stats) Take(p *Program) error {
	err := s.move(p.take())
	s.join(p.memory, nil)
	return err
}

// carry initialises the larger array `to` with the counts of the present one.
func (s *Stats) carry(to *array) {
	row := s.stride(to)
	last := to.words[len(to.words)-row*counterWords:]
	for i, c := range s.Lists(nil) {
		atomic.StoreUint64(&last[i*counterWords], c.Packets)
		atomic.StoreUint64(&last[i*counterWords+1], c.Bytes)
	}
}

// move replaces the maps of these names. Larger counters of lists take over the
// counts of the former ones.
func (s *Stats) move(fresh pinnedMaps) error {
	if lists := fresh[bpf.WeirMapListStats]; lists != nil {
		s.carry(lists)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := make(pinnedMaps)
	for name, m := range fresh {
		old[name], s.maps[name] = s.maps[name], m
	}
	return old.Close()
}

// Close releases the counters. Those of an attachment stay in the kernel.
func (s *Stats) Close() error {
	s.join(nil, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.maps.Close()
	if s.events != nil {
		err = errors.Join(err, s.events.Close())
	}
	s.maps, s.events = nil, nil
	return err
}
