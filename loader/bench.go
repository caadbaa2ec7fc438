package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// BenchKeys is the number of keys that are looked up in turn.
const BenchKeys = 1 << 20

// benchLookups is LOOKUPS in bpf/bench.bpf.c.
const benchLookups = 8192

// Keys are the keys that all contenders of a benchmark are asked for, in turn:
// IPv4 addresses, as they stand in a packet.
type Keys struct{ array *array }

// NewKeys makes the memory of the keys, which are 0.0.0.0 at first.
func NewKeys() (*Keys, error) {
	spec, err := bpf.LoadBench()
	if err != nil {
		return nil, err
	}
	a, err := newArray(spec.Maps[bpf.BenchMapBenchKeys])
	if err != nil {
		return nil, fmt.Errorf("keys of the benchmark: %w", explainPermission(err))
	}
	return &Keys{a}, nil
}

// Set sets all BenchKeys keys.
func (k *Keys) Set(next func() [4]byte) {
	for i := range k.array.words {
		addr := next()
		copy(k.array.pages[8*i:], addr[:])
	}
}

// Listed reports what the program "ask" has answered for the i-th key.
func (k *Keys) Listed(i int) bool {
	return binary.NativeEndian.Uint32(k.array.pages[8*i+4:]) != 0
}

// Close lets go of the memory; programs that are loaded keep it.
func (k *Keys) Close() error { return k.array.Close() }

// Bench holds the programs that measure one contender: a generation, or one of
// the kernel's own maps in its place, behind the same parser. It is no part of
// the data plane.
type Bench struct {
	// Map is the kernel's map, to be filled by the caller; nil where the
	// contender has none. Keys are IPv4 addresses as they stand in a packet, in
	// the trie preceded by a prefix length in native byte order; values are 4
	// bytes.
	Map *ebpf.Map

	coll  *ebpf.Collection
	stats *Stats
	wire  string // its program on the wire
	at    uint32 // lookups that Hits has told of
}

// The kernel's maps that weir is measured against, the contender that looks
// nothing up, and the one that reads a line of memory and nothing else.
const (
	BenchNone  = "drop"
	BenchLine  = "line"
	BenchHash  = "hash"
	BenchBloom = "bloom"
	BenchTrie  = "lpm"
)

// benchMaps are the maps by contender, as the object has them.
var benchMaps = map[string]string{
	BenchNone: "", BenchHash: bpf.BenchMapBenchHash, BenchBloom: bpf.BenchMapBenchBloom, BenchTrie: bpf.BenchMapBenchLpm,
	BenchLine: bpf.BenchMapBenchLines,
}

// NewBench loads the programs that measure the generation.
func (g *Generation) NewBench(k *Keys) (*Bench, error) {
	return newBench(g, k, "weir", 0, "loop_weir", "loop_match", "loop_ask", "loop_track", "visit", "stamped", "forward")
}

// NewMapBench loads the programs that measure a map of the kernel's with room
// for so many entries, or memory of so many lines of 64 bytes.
func NewMapBench(kind string, entries int, k *Keys) (*Bench, error) {
	if _, ok := benchMaps[kind]; !ok {
		return nil, fmt.Errorf("load the benchmark: there is no %q", kind)
	}
	loop := "loop_" + kind
	if kind == BenchNone {
		loop = "loop_empty"
	}
	return newBench(&Generation{}, k, kind, entries, loop)
}

func newBench(g *Generation, k *Keys, kind string, entries int, loops ...string) (_ *Bench, err error) {
	b := &Bench{wire: "wire_" + kind}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("load the benchmark of %s: %w", kind, explainPermission(err)), b.Close())
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
	name := benchMaps[kind]
	if name != "" {
		spec.Maps[name].MaxEntries = uint32(entries)
		if err := spec.Variables[bpf.BenchVarBenchLineCount].Set(uint32(entries)); err != nil {
			return nil, err
		}
	}
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
	replacements[bpf.BenchMapBenchKeys] = k.array.m
	if b.coll, err = loadOnly(spec, append(loops, b.wire), replacements); err != nil {
		return nil, err
	}
	if name != "" {
		b.Map = b.coll.Maps[name]
	}
	return b, nil
}

// loadOnly loads the named programs, and the maps that they use.
func loadOnly(spec *ebpf.CollectionSpec, programs []string, replacements map[string]*ebpf.Map) (*ebpf.Collection, error) {
	used := make(map[string]bool)
	for name, p := range spec.Programs {
		if !slices.Contains(programs, name) {
			delete(spec.Programs, name)
			continue
		}
		for _, ins := range p.Instructions {
			if ins.IsLoadFromMap() {
				used[ins.Reference()] = true
			}
		}
	}
	for name := range spec.Maps {
		if !used[name] {
			delete(spec.Maps, name)
			delete(replacements, name)
		}
	}
	for name, v := range spec.Variables {
		if !used[v.SectionName] {
			delete(spec.Variables, name)
		}
	}
	return ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
}

// Stats are what the programs count in, with the trackers.
func (b *Bench) Stats() *Stats { return b.stats }

// Loop does at least n lookups with the named program and gives the time of one
// in nanoseconds. Of a generation, "weir" asks the set for an address, "match" for
// all shapes, and "ask" notes the answer as well; "track" counts a packet of the
// key in the first tracker. That of a map is called like the map, and where there
// is none, "empty" computes weir's hash of the key and nothing else.
func (b *Bench) Loop(name string, n int) (float64, error) {
	ns, err := b.run("loop_"+name, make([]byte, 64), (n+benchLookups-1)/benchLookups)
	return ns / benchLookups, err
}

// run runs a program n times over a frame, and gives the mean time of one in whole
// nanoseconds.
func (b *Bench) run(program string, frame []byte, n int) (float64, error) {
	_, mean, err := b.coll.Programs[program].Benchmark(frame, n, nil)
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", program, err)
	}
	return float64(mean.Nanoseconds()), nil
}

// Visit runs the whole pipeline n times over a frame whose loop filter, of 256
// bits at most, begins at the offset `filter` and is emptied before each run. It
// gives the time of one in nanoseconds.
func (b *Bench) Visit(frame []byte, filter, n int) (float64, error) {
	if err := b.coll.Variables[bpf.BenchVarBenchFilter].Set(uint32(filter)); err != nil {
		return 0, err
	}
	return b.run(bpf.BenchProgVisit, frame, n)
}

// Stamped runs the whole pipeline n times over an IP frame of at least 70 bytes,
// each time as another packet, and gives the time of one in nanoseconds.
func (b *Bench) Stamped(frame []byte, n int) (float64, error) {
	return b.run(bpf.BenchProgStamped, frame, n)
}

// Forward runs all that is attached n times over an IP frame of at least 64 bytes that has
// hops left, and gives the time of one in nanoseconds. What is to be copied is not.
func (b *Bench) Forward(frame []byte, n int) (float64, error) {
	return b.run(bpf.BenchProgForward, frame, n)
}

// Hits gives the number of lookups since the last call, and how many of them were
// hits. A loop that a signal interrupts is begun anew, so that there may be more
// lookups than were asked for.
func (b *Bench) Hits() (hits, lookups int, err error) {
	v := b.coll.Variables[bpf.BenchVarBenchLoop]
	var loop struct{ At, Hits uint32 }
	if err := v.Get(&loop); err != nil {
		return 0, 0, err
	}
	hits, lookups = int(loop.Hits), int(loop.At-b.at)
	b.at, loop.Hits = loop.At, 0
	return hits, lookups, v.Set(loop)
}

// Wire gives the program that stands on the wire for the contender. It drops
// every packet, also what the contender would pass.
func (b *Bench) Wire() *ebpf.Program { return b.coll.Programs[b.wire] }

// Close lets go of programs and maps.
func (b *Bench) Close() error {
	if b.coll != nil {
		b.coll.Close()
	}
	if b.stats != nil {
		return b.stats.Close()
	}
	return nil
}

// Generator sends packets whose IPv4 sources are the keys, in turn.
type Generator struct{ coll *ebpf.Collection }

// NewGenerator loads the program that sends.
func NewGenerator(k *Keys) (*Generator, error) {
	spec, err := bpf.LoadBench()
	if err != nil {
		return nil, err
	}
	coll, err := loadOnly(spec, []string{bpf.BenchProgGenerate}, map[string]*ebpf.Map{bpf.BenchMapBenchKeys: k.array.m})
	if err != nil {
		return nil, fmt.Errorf("load the generator: %w", explainPermission(err))
	}
	return &Generator{coll}, nil
}

// Send sends n copies of a frame out of an interface of this network namespace,
// each with the next key as its source, as fast as it goes, from this CPU, and
// gives the mean time of one in nanoseconds. The kernel takes that time itself:
// what it needs to begin and to end, and what other processes have of the CPU, are
// not in it.
func (g *Generator) Send(ifindex int, frame []byte, n int) (ns float64, err error) {
	if err := g.coll.Variables[bpf.BenchVarBenchIfindex].Set(uint32(ifindex)); err != nil {
		return 0, err
	}
	var pinner runtime.Pinner // the kernel reads the frame
	pinner.Pin(&frame[0])
	defer pinner.Unpin()
	run := testRun{
		fd:    uint32(g.coll.Programs[bpf.BenchProgGenerate].FD()),
		size:  uint32(len(frame)),
		data:  uint64(uintptr(unsafe.Pointer(&frame[0]))),
		times: uint32(n),
		flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
		switch errno {
		case 0:
			return float64(run.duration), nil
		case unix.EINTR: // by a signal of Go's scheduler
			continue
		}
		return 0, fmt.Errorf("send %d live frames (Linux 5.18 and later do): %w", n, errno)
	}
}

// testRun is the kernel's union bpf_attr for BPF_PROG_TEST_RUN: the ebpf module
// does not tell the duration of runs with flags.
type testRun struct {
	fd, _    uint32
	size, _  uint32
	data, _  uint64
	times    uint32
	duration uint32 // of one, in nanoseconds
	_, _     uint32
	_, _     uint64
	flags    uint32
	_, _     uint32
	_        uint32 // to a multiple of eight bytes
}

// Close lets go of the program.
func (g *Generator) Close() error {
	g.coll.Close()
	return nil
}

// NewPassing loads a program that passes every packet. With it, an interface of
// a veth pair takes frames that are sent by redirection.
func NewPassing() (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "weir_pass",
		Type:         ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, ActionPass), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		return nil, fmt.Errorf("load a program that passes packets: %w", explainPermission(err))
	}
	return p, nil
}
