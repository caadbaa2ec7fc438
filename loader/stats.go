package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"weir/bpf"
)

// minStride is the least number of counters in a row of list_stats: room for
// lists to come, which then need no new map.
const minStride = 64

// Stats are the counters of an interface: packets and bytes by reason and by
// list. A program writes them in a row for each CPU; Stats read them in the
// kernel's memory. The methods may be called at any time, also concurrently.
// Nil Stats have no counters.
type Stats struct {
	cpus    int          // possible ones
	mu      sync.RWMutex // guards what follows: Replace exchanges arrays
	reasons *array
	lists   *array
}

// NewStats makes counters for a program that is tested, not attached, and
// numbers its lists 1 … lists.
func NewStats(lists int) (*Stats, error) {
	s, err := newStats(lists)
	if err != nil {
		return nil, fmt.Errorf("new counters: %w", explainPermission(err))
	}
	return s, nil
}

func newStats(lists int) (*Stats, error) {
	spec, cpus, err := statsSpec()
	if err != nil {
		return nil, err
	}
	reasons := spec.Maps[bpf.WeirMapReasonStats]
	reasons.MaxEntries = uint32(cpus)
	s := &Stats{cpus: cpus}
	if s.reasons, err = newArray(reasons); err != nil {
		return nil, err
	}
	if s.lists, err = newListArray(lists); err != nil {
		s.reasons.Close()
		return nil, err
	}
	return s, nil
}

// newListArray makes counters for lists 0 … lists: a row of a power of two
// for each possible CPU, and one that no CPU writes. The latter holds what
// was counted before the counters moved here from a smaller array.
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

func statsSpec() (*ebpf.CollectionSpec, int, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, 0, err
	}
	spec, err := bpf.LoadWeir()
	return spec, cpus, err
}

// openStats opens pinned counters. It fails with errLayout where they do not
// fit, because another version of weir has made them, or are gone.
func openStats(path string) (*Stats, error) {
	spec, cpus, err := statsSpec()
	if err != nil {
		return nil, err
	}
	s := &Stats{cpus: cpus}
	if s.reasons, err = openArray(filepath.Join(path, pinReasons), spec.Maps[bpf.WeirMapReasonStats], cpus); err != nil {
		return nil, err
	}
	if s.lists, err = openArray(filepath.Join(path, pinLists), spec.Maps[bpf.WeirMapListStats], minStride*(cpus+1)); err != nil {
		s.reasons.Close()
		return nil, err
	}
	return s, nil
}

// openArray opens a pinned array that is as spec says, except that it has
// units times a power of two entries.
func openArray(path string, spec *ebpf.MapSpec, units int) (*array, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errLayout
	}
	if err != nil {
		return nil, err
	}
	spec.MaxEntries = m.MaxEntries()
	n := int(m.MaxEntries()) / units
	if spec.Compatible(m) != nil || n*units != int(m.MaxEntries()) || bits.OnesCount(uint(n)) != 1 {
		m.Close()
		return nil, errLayout
	}
	return mapArray(m)
}

// arrays are what a program that is loaded now counts in.
func (s *Stats) arrays() (reasons, lists *array) {
	if s == nil {
		return nil, nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.reasons, s.lists
}

// stride is the number of counters in a row of list_stats.
func (s *Stats) stride(lists *array) int {
	return int(lists.m.MaxEntries()) / (s.cpus + 1)
}

// Reasons are the counters of all reasons, by number. It uses the memory of
// dst where that suffices. It makes no system call.
func (s *Stats) Reasons(dst []Counter) []Counter {
	if s == nil {
		return dst[:0]
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.reasons == nil {
		return dst[:0]
	}
	// Behind its counters, a row holds what is none; that is cut off.
	return sum(dst, s.reasons.words, int(s.reasons.m.ValueSize())/counterBytes)[:bpf.WeirReasonREASON_COUNT]
}

// Lists are the counters of the lists, by number, as many as there is room
// for: list 0 is that of hits which no table attributes. It uses the memory of
// dst where that suffices. It makes no system call.
func (s *Stats) Lists(dst []Counter) []Counter {
	if s == nil {
		return dst[:0]
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.lists == nil {
		return dst[:0]
	}
	return sum(dst, s.lists.words, s.stride(s.lists))
}

const (
	counterBytes = 16
	counterWords = counterBytes / 8
)

// sum adds up rows of so many counters.
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

// carry sets what the larger array `to` holds from before its own time to
// what the present one has counted.
func (s *Stats) carry(to *array) {
	row := s.stride(to)
	last := to.words[len(to.words)-row*counterWords:]
	for i, c := range s.Lists(nil) {
		atomic.StoreUint64(&last[i*counterWords], c.Packets)
		atomic.StoreUint64(&last[i*counterWords+1], c.Bytes)
	}
}

// move makes the larger array `to` the present one.
func (s *Stats) move(to *array) error {
	s.carry(to)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.lists
	s.lists = to
	return old.Close()
}

// Close lets go of the counters. Those of an attachment live on in the kernel.
func (s *Stats) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.reasons.Close(), s.lists.Close())
	s.reasons, s.lists = nil, nil
	return err
}
