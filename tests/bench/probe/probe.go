package probe

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir/loader"
)

// loopLookups is LOOKUPS in bench.bpf.c.
const loopLookups = 8192

// Programs measure one way to look up keys: weir's, or one of the kernel's maps
// behind weir's parser.
type Programs struct {
	// Map is the kernel's map, for the caller to fill; nil for weir and None. Keys
	// are IPv4 addresses in network byte order, preceded in a trie by the prefix
	// length in native byte order; values are 4 bytes.
	Map *ebpf.Map

	coll  *ebpf.Collection
	stats *loader.Stats
	wire  string // name of the program for the wire
	at    uint32 // lookups counted by Hits so far
}

// What LoadMap measures.
const (
	None  = "drop" // no lookup
	Line  = "line" // a read of one 64-byte line of memory
	Hash  = "hash"
	Bloom = "bloom"
	Trie  = "lpm"
)

var maps = map[string]string{
	None: "", Line: benchMapBenchLines, Hash: benchMapBenchHash, Bloom: benchMapBenchBloom, Trie: benchMapBenchLpm,
}

// Load loads the programs that measure a generation.
func Load(g *loader.Generation, k *Keys) (*Programs, error) {
	return load(g, k, "weir", 0, "loop_weir", "loop_match", "loop_ask", "loop_track", "visit", "stamped", "forward")
}

// LoadMap loads the programs that measure a map of the kernel with room for a
// number of entries or, for Line, with as many lines.
func LoadMap(kind string, entries int, k *Keys) (*Programs, error) {
	if _, ok := maps[kind]; !ok {
		return nil, fmt.Errorf("load probe: unknown kind %q", kind)
	}
	loop := "loop_" + kind
	if kind == None {
		loop = "loop_empty"
	}
	g, err := loader.NewGeneration(loader.Config{}) // for the parser and the counters
	if err != nil {
		return nil, err
	}
	defer g.Close()
	return load(g, k, kind, entries, loop)
}

func load(g *loader.Generation, k *Keys, kind string, entries int, loops ...string) (_ *Programs, err error) {
	p := &Programs{wire: "wire_" + kind}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("load probe of %s: %w", kind, err), p.Close())
		}
	}()
	spec, err := loadBench()
	if err != nil {
		return nil, err
	}
	name := maps[kind]
	if name != "" {
		spec.Maps[name].MaxEntries = uint32(entries)
		if err := spec.Variables[benchVarBenchLineCount].Set(uint32(entries)); err != nil {
			return nil, err
		}
	}
	if p.stats, err = loader.NewStats(0); err != nil {
		return nil, err
	}
	replacements, err := g.Bind(spec, p.stats)
	if err != nil {
		return nil, err
	}
	replacements[benchMapBenchKeys] = k.m
	if p.coll, err = loadOnly(spec, append(loops, p.wire), replacements); err != nil {
		return nil, err
	}
	if name != "" {
		p.Map = p.coll.Maps[name]
	}
	return p, nil
}

// loadOnly loads the named programs and the maps they use.
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

// Stats returns the counters and trackers of the programs.
func (p *Programs) Stats() *loader.Stats { return p.stats }

// Loop does at least n lookups with a program and returns the time of one in
// nanoseconds. For a generation, "weir" looks up an address in the block set,
// "match" looks up all shapes, "ask" does too and stores the answers, and "track"
// counts a packet of the key in the first tracker. For a map, the program has the
// name of its kind; for None it is "empty" and computes weir's hash of the key.
func (p *Programs) Loop(name string, n int) (float64, error) {
	ns, err := p.run("loop_"+name, make([]byte, 64), (n+loopLookups-1)/loopLookups)
	return ns / loopLookups, err
}

// run runs a program n times on a frame and returns the mean time in whole
// nanoseconds.
func (p *Programs) run(program string, frame []byte, n int) (float64, error) {
	_, mean, err := p.coll.Programs[program].Benchmark(frame, n, nil)
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", program, err)
	}
	return float64(mean.Nanoseconds()), nil
}

// Visit runs the pipeline n times on a frame with a loop filter of at most 256
// bits at an offset, and empties the filter before each run. It returns the time
// of one run in nanoseconds.
func (p *Programs) Visit(frame []byte, filter, n int) (float64, error) {
	if err := p.coll.Variables[benchVarBenchFilter].Set(uint32(filter)); err != nil {
		return 0, err
	}
	return p.run(benchProgVisit, frame, n)
}

// Stamped runs the pipeline n times on an IP frame of at least 70 bytes, each
// time with another payload, and returns the time of one run in nanoseconds.
func (p *Programs) Stamped(frame []byte, n int) (float64, error) {
	return p.run(benchProgStamped, frame, n)
}

// Forward runs the attached program, multicast included, n times on an IP frame
// of at least 64 bytes, and returns the time of one run in nanoseconds. Test runs
// do not make the copies.
func (p *Programs) Forward(frame []byte, n int) (float64, error) {
	return p.run(benchProgForward, frame, n)
}

// Hits returns the number of lookups since the last call, and how many of them
// were hits. The kernel restarts a loop that a signal interrupts, so there may be
// more lookups than Loop asked for.
func (p *Programs) Hits() (hits, lookups int, err error) {
	v := p.coll.Variables[benchVarBenchLoop]
	var loop struct{ At, Hits uint32 }
	if err := v.Get(&loop); err != nil {
		return 0, 0, err
	}
	hits, lookups = int(loop.Hits), int(loop.At-p.at)
	p.at, loop.Hits = loop.At, 0
	return hits, lookups, v.Set(loop)
}

// Wire returns the program to attach to the receiving end of a wire. It looks up
// each packet's source, counts the packet and drops it, listed or not.
func (p *Programs) Wire() *ebpf.Program { return p.coll.Programs[p.wire] }

// Close releases programs, maps and counters.
func (p *Programs) Close() error {
	if p.coll != nil {
		p.coll.Close()
	}
	if p.stats != nil {
		return p.stats.Close()
	}
	return nil
}

// NewPassing loads a program that passes every packet. An end of a veth pair
// needs one to receive frames by redirection.
func NewPassing() (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "weir_pass",
		Type:         ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, loader.ActionPass), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		return nil, fmt.Errorf("load a program that passes packets: %w", err)
	}
	return p, nil
}
