package probe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// KeysLen is the number of keys: BENCH_KEYS in bench.bpf.c.
const KeysLen = 1 << 20

// Keys are the IPv4 addresses that programs look up, in turn.
type Keys struct {
	m      *ebpf.Map
	memory *ebpf.Memory
}

// NewKeys makes the memory of the keys, all 0.0.0.0 at first. It fails with
// kernelerr.ErrUnsupported on kernels that cannot run the programs.
func NewKeys() (*Keys, error) {
	k, err := newKeys()
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("benchmarks need root: %w", err)
	}
	return k, err
}

func newKeys() (*Keys, error) {
	err := features.HaveProgramHelper(ebpf.XDP, asm.FnLoop)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return nil, fmt.Errorf("%w by this kernel: bpf_loop needs Linux 5.17 or later", kernelerr.ErrUnsupported)
	} else if err != nil {
		return nil, err
	}
	spec, err := newSpec()
	if err != nil {
		return nil, err
	}
	k := new(Keys)
	if k.m, err = ebpf.NewMap(spec.Maps[benchMapBenchKeys]); err != nil {
		return nil, fmt.Errorf("make the keys to look up: %w", err)
	}
	if k.memory, err = k.m.Memory(); err != nil {
		return nil, errors.Join(fmt.Errorf("map the keys to look up: %w", err), k.m.Close())
	}
	return k, nil
}

// entry is one key's size in memory: the key, then the answer of "ask".
const entry = 8

// Set sets all keys, and clears the answers.
func (k *Keys) Set(next func() [4]byte) error {
	entries := make([]byte, KeysLen*entry)
	for i := range KeysLen {
		addr := next()
		copy(entries[i*entry:], addr[:])
	}
	_, err := k.memory.WriteAt(entries, 0)
	return err
}

// Listed returns, for each key, whether the loop "ask" found it listed.
func (k *Keys) Listed() ([]bool, error) {
	entries := make([]byte, KeysLen*entry)
	if _, err := k.memory.ReadAt(entries, 0); err != nil {
		return nil, err
	}
	listed := make([]bool, KeysLen)
	for i := range listed {
		listed[i] = binary.NativeEndian.Uint32(entries[i*entry+4:]) != 0
	}
	return listed, nil
}

// Close releases the keys; loaded programs keep them.
func (k *Keys) Close() error { return k.m.Close() }
