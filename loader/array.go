package loader

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// array is an array map with its memory mapped, or a map that cannot be mapped: of
// another type, or an array that no program reads.
type array struct {
	m     *ebpf.Map
	entry int      // its size in bytes; 0: the map cannot be mapped
	words []uint64 // all entries
	pages []byte

	users atomic.Int32 // apart from the owner; see share
}

func newArray(spec *ebpf.MapSpec) (*array, error) {
	// Before 5.11 the memory of maps counts as locked memory of the process.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	if whole, err := ebpf.NewMap(wholeOf(spec)); err == nil {
		return mapArray(whole, int(spec.ValueSize))
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("map %s with %d entries of %d bytes: %w",
			spec.Name, spec.MaxEntries, spec.ValueSize, err)
	}
	return mapArray(m, int(spec.ValueSize))
}

// maxWhole is the largest offset in a value that programs may compute: BPF_MAX_VAR_OFF. It is
// a variable for tests.
var maxWhole uint64 = 1 << 29

// wholeOf returns the specification of an array whose only value is all entries, as which
// programs use it with fewer instructions (bpf/array.h). It returns that of any other map as
// it is. Before Linux 6.8 or so, the kernel refuses values that are larger than what it can
// allocate at once, 4 MiB.
func wholeOf(spec *ebpf.MapSpec) *ebpf.MapSpec {
	size := uint64(spec.ValueSize) * uint64(spec.MaxEntries)
	if !isAddressed()[spec.Name] || size > maxWhole {
		return spec
	}
	whole := spec.Copy()
	whole.ValueSize, whole.MaxEntries = uint32(size), 1
	whole.Key, whole.Value = nil, nil // types: of one entry
	return whole
}

// suffixes of the variables that an array has in the object (bpf/array.h).
const (
	suffixWhole   = "_whole"
	suffixEntries = "_entries"
)

// isAddressed has the names of the arrays that programs can use as one value. Those of TC have
// no others than those of XDP.
var isAddressed = sync.OnceValue(func() map[string]bool {
	spec, err := object()
	if err != nil {
		return nil // who loads it fails
	}
	return addressedBy(spec)
})

func addressedBy(spec *ebpf.CollectionSpec) map[string]bool {
	names := make(map[string]bool)
	for name := range spec.Variables {
		if name, ok := strings.CutSuffix(name, suffixWhole); ok {
			names[name] = true
		}
	}
	return names
}

// address makes the programs of a specification use arrays, by name, as they are: their
// addresses, where they are one value.
func address(spec *ebpf.CollectionSpec, arrays map[string]*array) error {
	var section string
	at := make(map[uint32]string) // names by the offsets of their variables
	for name, v := range spec.Variables {
		name, ok := strings.CutSuffix(name, suffixWhole)
		if !ok {
			continue
		}
		section = v.SectionName
		if a := arrays[name]; a != nil && a.isWhole() {
			at[v.Offset] = name
			if err := spec.Variables[name+suffixEntries].Set(uint32(a.entries())); err != nil {
				return err
			}
		}
	}
	for _, p := range spec.Programs {
		for i, ins := range p.Instructions {
			if !ins.IsLoadFromMap() || ins.Reference() != section {
				continue
			}
			// What is not used as one value has code that is not reached: there, any number will do.
			next := asm.LoadImm(ins.Dst, 0, asm.DWord)
			if name := at[uint32(uint64(ins.Constant)>>32)]; name != "" {
				next = asm.LoadMapValue(ins.Dst, 0, 0).WithReference(name)
			}
			if name := ins.Symbol(); name != "" {
				return fmt.Errorf("function %s begins with an address", name)
			}
			p.Instructions[i] = next
		}
	}
	return nil
}

// mapArray maps m, whose entries have this size, into memory and takes it over, also when it
// fails.
func mapArray(m *ebpf.Map, entry int) (*array, error) {
	if m.Type() != ebpf.Array || m.Flags()&unix.BPF_F_MMAPABLE == 0 {
		return &array{m: m}, nil
	}
	// The kernel lays out entries of whole words without padding.
	size := int(m.MaxEntries()) * int(m.ValueSize())
	a := &array{m: m, entry: entry}
	var err error
	if a.pages, err = unix.Mmap(m.FD(), 0, pageAlign(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		m.Close()
		return nil, fmt.Errorf("map %d bytes of kernel memory: %w", size, err)
	}
	a.words = unsafe.Slice((*uint64)(unsafe.Pointer(&a.pages[0])), size/8)
	return a, nil
}

func pageAlign(n int) int {
	page := os.Getpagesize()
	return (n + page - 1) / page * page
}

func (a *array) entries() int {
	if a.entry == 0 {
		return int(a.m.MaxEntries())
	}
	return int(a.m.MaxEntries()) * int(a.m.ValueSize()) / a.entry
}

// isWhole reports whether all entries are one value of the map.
func (a *array) isWhole() bool { return a.entry != 0 && a.m.MaxEntries() == 1 }

// fits returns an error unless the map has the form of its specification. The number of
// entries may differ, and all of them may be one value.
func fits(m *ebpf.Map, spec *ebpf.MapSpec) error {
	spec = spec.Copy()
	spec.MaxEntries = m.MaxEntries()
	if m.MaxEntries() == 1 && isAddressed()[spec.Name] && m.ValueSize()%spec.ValueSize == 0 {
		spec.ValueSize = m.ValueSize()
	}
	return spec.Compatible(m)
}

// bytes is the kernel memory of the entries of an array.
func (a *array) bytes() int {
	if a.pages == nil && a.m.Type() == ebpf.Array {
		return a.entries() * int(a.m.ValueSize())
	}
	return len(a.pages)
}

// share returns the array for another user, who must close it as well. The owner
// must not close it meanwhile.
func (a *array) share() *array {
	a.users.Add(1)
	return a
}

// Close releases the array once all users have closed it.
func (a *array) Close() error {
	if a == nil || a.users.Add(-1) >= 0 {
		return nil
	}
	var err error
	if a.pages != nil {
		err = unix.Munmap(a.pages)
	}
	a.words, a.pages = nil, nil
	return errors.Join(err, a.m.Close())
}
