package loader

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// array is an array map with its memory mapped, or a map that cannot be mapped: of
// another type, or an array that no program reads.
type array struct {
	m     *ebpf.Map
	words []uint64 // all entries
	pages []byte

	users atomic.Int32 // apart from the owner; see share
}

func newArray(spec *ebpf.MapSpec) (*array, error) {
	// Before 5.11 the memory of maps counts as locked memory of the process.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("map %s with %d entries of %d bytes: %w",
			spec.Name, spec.MaxEntries, spec.ValueSize, err)
	}
	return mapArray(m)
}

// mapArray maps m into memory and takes it over, also when it fails.
func mapArray(m *ebpf.Map) (*array, error) {
	if m.Type() != ebpf.Array || m.Flags()&unix.BPF_F_MMAPABLE == 0 {
		return &array{m: m}, nil
	}
	// The kernel lays out entries of whole words without padding.
	size := int(m.MaxEntries()) * int(m.ValueSize())
	a := &array{m: m}
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

func (a *array) entries() int { return int(a.m.MaxEntries()) }

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
