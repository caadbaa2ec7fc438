package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// Bench holds the programs that measure a generation's stages beside the
// kernel's own maps. It is no part of the data plane.
type Bench struct {
	// The kernel's maps that weir is measured against; to be filled by the
	// caller. Keys are IPv4 addresses as they stand in a packet, in the trie
	// preceded by a prefix length in native byte order; values are 4 bytes.
	Hash, Bloom, Trie *ebpf.Map

	coll  *ebpf.Collection
	keys  *array
	stats *Stats
}

// BenchKeys is the number of keys that are looked up in turn.
const BenchKeys = 1 << 20

// benchLookups is LOOKUPS in bpf/bench.bpf.c.
const benchLookups = 8192

// NewBench loads the programs for a generation. The kernel's maps have room for
// so many entries; with 0 a map is not to be used.
func (g *Generation) NewBench(hash, bloom, trie int) (_ *Bench, err error) {
	b := &Bench{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("load the benchmark: %w", explainPermission(err)), b.Close())
		}
	}()
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnLoop); errors.Is(err, ebpf.ErrNotSupported) {
		return nil, fmt.Errorf("%w by this kernel: it wants Linux 5.17 or later, for its loops", ErrUnsupported)
	} else if err != nil {
		return nil, err
	}
	spec, err := bpf.LoadBench()
	if err != nil {
		return nil, err
	}
	frags, err := haveFrags()
	if err != nil {
		return nil, err
	}
	if err := specialise(spec, &g.config, frags); err != nil {
		return nil, err
	}
	if b.stats, err = newStats(g.config.Lists); err != nil {
		return nil, err
	}
	if b.keys, err = newArray(spec.Maps[bpf.BenchMapBenchKeys]); err != nil {
		return nil, err
	}
	spec.Maps[bpf.BenchMapBenchHash].MaxEntries = uint32(max(hash, 1))
	spec.Maps[bpf.BenchMapBenchBloom].MaxEntries = uint32(max(bloom, 1))
	spec.Maps[bpf.BenchMapBenchLpm].MaxEntries = uint32(max(trie, 1))
	kept, err := b.stats.present()
	if err != nil {
		return nil, err
	}
	fresh, err := g.outgrown(b.stats, kept)
	if err != nil {
		return nil, err
	}
	if err := b.stats.move(fresh); err != nil {
		return nil, err
	}
	maps.Copy(kept, fresh)
	replacements, err := g.connect(spec, kept, b.stats.stride(kept[bpf.WeirMapListStats]))
	if err != nil {
		return nil, err
	}
	replacements[bpf.BenchMapBenchKeys] = b.keys.m
	if b.coll, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return nil, err
	}
	b.Hash = b.coll.Maps[bpf.BenchMapBenchHash]
	b.Bloom = b.coll.Maps[bpf.BenchMapBenchBloom]
	b.Trie = b.coll.Maps[bpf.BenchMapBenchLpm]
	return b, nil
}

// SetKeys sets the keys that are looked up: BenchKeys addresses.
func (b *Bench) SetKeys(next func() [4]byte) {
	for i := range b.keys.words {
		k := next()
		copy(b.keys.pages[8*i:], k[:])
	}
}

// Listed reports what the program "ask" has answered for the i-th key.
func (b *Bench) Listed(i int) bool {
	return binary.NativeEndian.Uint32(b.keys.pages[8*i+4:]) != 0
}

// Stats are what the programs count in, with the trackers.
func (b *Bench) Stats() *Stats { return b.stats }

// Loop does at least n lookups with the named program and gives the time of one
// in nanoseconds. "weir", "match", "hash", "bloom" and "lpm" look the key up and
// "ask" notes the answer as well; "track" counts a packet of the key in the
// first tracker, and "empty" does nothing of all this.
func (b *Bench) Loop(name string, n int) (float64, error) {
	runs := (n + benchLookups - 1) / benchLookups
	_, run, err := b.coll.Programs["loop_"+name].Benchmark(make([]byte, 64), runs, nil)
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", name, err)
	}
	return float64(run.Nanoseconds()) / benchLookups, nil // the mean run
}

// Hits gives the number of hits since the last call.
func (b *Bench) Hits() (int, error) {
	v := b.coll.Variables[bpf.BenchVarBenchLoop]
	var loop struct{ At, Hits uint32 }
	if err := v.Get(&loop); err != nil {
		return 0, err
	}
	hits := int(loop.Hits)
	loop.Hits = 0
	return hits, v.Set(loop)
}

// Wire gives the program that stands on the wire in the place of weir's:
// "drop", "hash", "bloom", "lpm", or "weir" itself. It drops every packet.
func (b *Bench) Wire(name string) *ebpf.Program { return b.coll.Programs["wire_"+name] }

// Send sends n copies of a frame out of an interface, each with the next key as
// its IPv4 source, as fast as it goes, from this CPU.
func (b *Bench) Send(frame []byte, n int) error {
	_, err := b.coll.Programs[bpf.BenchProgGenerate].Run(&ebpf.RunOptions{
		Data:   frame,
		Repeat: uint32(n),
		Flags:  unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	})
	return err
}

// SetTarget sets the number of the interface to which Send sends.
func (b *Bench) SetTarget(ifindex int) error {
	return b.coll.Variables[bpf.BenchVarBenchIfindex].Set(uint32(ifindex))
}

// Received is the number of packets that a program on the wire has counted.
func (b *Bench) Received() (packets uint64) {
	for _, c := range b.stats.Reasons(nil) {
		packets += c.Packets
	}
	return packets
}

// Close lets go of programs and maps.
func (b *Bench) Close() error {
	if b.coll != nil {
		b.coll.Close()
	}
	err := b.keys.Close()
	if b.stats != nil {
		err = errors.Join(err, b.stats.Close())
	}
	return err
}
