package probe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir/loader"
	"weir/loader/fold"
)

// loopLookups is LOOKUPS in bench.bpf.c.
const loopLookups = 8192

// Programs measure one way to look up keys: weir's, or one of the kernel's maps
// behind weir's parser. What is not used is not loaded.
type Programs struct {
	// Map is the kernel's map, for the caller to fill; nil for weir and None. Keys
	// are IPv4 addresses in network byte order, preceded in a trie by the prefix
	// length in native byte order; values are 4 bytes.
	Map *ebpf.Map

	spec   *ebpf.CollectionSpec // for loadOnly
	shared map[string]*ebpf.Map // maps of a generation, the keys, and Map
	loops  []string             // names of programs
	wire   string               // of the program for the wire
	stats  *loader.Stats
	loaded map[part]*ebpf.Collection
	at     uint32 // lookups counted by Hits so far
}

// part is a unit that is loaded at once: the loops, which count together, or one variant
// of the program for the wire.
type part uint8

// Variants have the numbers of bench.bpf.c's preludes.
const (
	wirePart part = iota
	visitPart
	stampPart
	forwardPart
	loopPart
	xxh64Part
)

// What LoadMap measures.
const (
	None  = "drop" // no lookup
	Line  = "line" // a read of one 64-byte line of memory
	Hash  = "hash"
	Bloom = "bloom"
	Trie  = "lpm"
)

var mapOf = map[string]string{
	None: "", Line: benchMapBenchLines, Hash: benchMapBenchHash, Bloom: benchMapBenchBloom, Trie: benchMapBenchLpm,
}

// Load returns the programs that measure a generation.
func Load(g *loader.Generation, k *Keys) (*Programs, error) {
	return load(g, k, "weir", 0, "loop_weir", "loop_match", "loop_ask", "loop_track")
}

// LoadV6 returns the program for the wire that looks up IPv6 sources, and nothing
// else, in a generation that lists IPv6 addresses alone.
func LoadV6(g *loader.Generation, k *Keys) (*Programs, error) { return load(g, k, "v6", 0) }

// LoadMap returns the programs that measure a map of the kernel with room for a
// number of entries or, for Line, with as many lines.
func LoadMap(kind string, entries int, k *Keys) (*Programs, error) {
	if _, ok := mapOf[kind]; !ok {
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

// object is the object file, parsed once: that takes as long as most of its programs
// take to load.
var object = sync.OnceValues(loadBench)

func newSpec() (*ebpf.CollectionSpec, error) {
	spec, err := object()
	if err != nil {
		return nil, err
	}
	return spec.Copy(), nil
}

func load(g *loader.Generation, k *Keys, kind string, entries int, loops ...string) (_ *Programs, err error) {
	p := &Programs{loops: loops, wire: "wire_" + kind, loaded: make(map[part]*ebpf.Collection)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("load probe of %s: %w", kind, err), p.Close())
		}
	}()
	if p.spec, err = newSpec(); err != nil {
		return nil, err
	}
	name := mapOf[kind]
	if name != "" {
		p.spec.Maps[name].MaxEntries = uint32(entries)
		if err := p.spec.Variables[benchVarBenchLineCount].Set(uint32(entries)); err != nil {
			return nil, err
		}
	}
	if p.stats, err = loader.NewStats(0); err != nil {
		return nil, err
	}
	bound, err := g.Bind(p.spec, p.stats)
	if err != nil {
		return nil, err
	}
	// Clones, because the generation may be closed first.
	p.shared = make(map[string]*ebpf.Map)
	bound[benchMapBenchKeys] = k.m
	for name, m := range bound {
		if p.shared[name], err = m.Clone(); err != nil {
			return nil, err
		}
	}
	if name != "" {
		if p.Map, err = ebpf.NewMap(p.spec.Maps[name]); err != nil {
			return nil, err
		}
		p.shared[name] = p.Map
	}
	return p, nil
}

// collection returns a part's programs, which it loads when they are first used.
func (p *Programs) collection(which part) (*ebpf.Collection, error) {
	if c := p.loaded[which]; c != nil {
		return c, nil
	}
	spec, programs := p.spec.Copy(), []string{p.wire}
	constant, value := benchVarBenchPrelude, uint8(which)
	switch which {
	case loopPart:
		programs, value = p.loops, 0
	case xxh64Part:
		constant, value = benchVarBenchXxh64, 1
	}
	if err := spec.Variables[constant].Set(value); err != nil {
		return nil, err
	}
	c, err := loadOnly(spec, programs, maps.Clone(p.shared))
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", strings.Join(programs, ", "), err)
	}
	p.loaded[which] = c
	return c, nil
}

// loadOnly loads the named programs and the maps they use.
func loadOnly(spec *ebpf.CollectionSpec, programs []string, replacements map[string]*ebpf.Map) (*ebpf.Collection, error) {
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(programs, name) })
	if err := fold.Constants(spec); err != nil {
		return nil, err
	}
	used := make(map[string]bool)
	for _, p := range spec.Programs {
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
// name of its kind; for None it is "empty" and only reads the key.
func (p *Programs) Loop(name string, n int) (float64, error) {
	c, err := p.collection(loopPart)
	if err != nil {
		return 0, err
	}
	ns, err := run(c, "loop_"+name, make([]byte, 64), (n+loopLookups-1)/loopLookups)
	return ns / loopLookups, err
}

// run runs a program n times on a frame and returns the mean time in whole
// nanoseconds.
func run(c *ebpf.Collection, program string, frame []byte, n int) (float64, error) {
	_, mean, err := c.Programs[program].Benchmark(frame, n, nil)
	if err != nil {
		return 0, fmt.Errorf("run %s: %w", program, err)
	}
	return float64(mean.Nanoseconds()), nil
}

func (p *Programs) runVariant(which part, frame []byte, n int) (float64, error) {
	c, err := p.collection(which)
	if err != nil {
		return 0, err
	}
	return run(c, p.wire, frame, n)
}

// Visit runs the pipeline n times on a frame with a loop filter of at most 256
// bits at an offset, and empties the filter before each run. It returns the time
// of one run in nanoseconds.
func (p *Programs) Visit(frame []byte, filter, n int) (float64, error) {
	c, err := p.collection(visitPart)
	if err != nil {
		return 0, err
	}
	if err := c.Variables[benchVarBenchFilter].Set(uint32(filter)); err != nil {
		return 0, err
	}
	return run(c, p.wire, frame, n)
}

// Stamped runs the pipeline n times on an IP frame of at least 64 bytes, each
// time with another payload, and returns the time of one run in nanoseconds.
func (p *Programs) Stamped(frame []byte, n int) (float64, error) {
	return p.runVariant(stampPart, frame, n)
}

// Forward runs the attached program, multicast included, n times on an IP frame
// of at least 64 bytes, and returns the time of one run in nanoseconds. Test runs
// do not make the copies.
func (p *Programs) Forward(frame []byte, n int) (float64, error) {
	return p.runVariant(forwardPart, frame, n)
}

// Hits returns the number of lookups since the last call, and how many of them
// were hits. The kernel restarts a loop that a signal interrupts, so there may be
// more lookups than Loop asked for.
func (p *Programs) Hits() (hits, lookups int, err error) {
	c, err := p.collection(loopPart)
	if err != nil {
		return 0, 0, err
	}
	v := c.Variables[benchVarBenchLoop]
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
func (p *Programs) Wire() (*ebpf.Program, error) { return p.wireOf(wirePart) }

// WireXXH64 is Wire, of LoadV6, for a set whose hash is XXH64, with the first offset
// of the secret as its seed.
func (p *Programs) WireXXH64() (*ebpf.Program, error) { return p.wireOf(xxh64Part) }

func (p *Programs) wireOf(which part) (*ebpf.Program, error) {
	c, err := p.collection(which)
	if err != nil {
		return nil, err
	}
	return c.Programs[p.wire], nil
}

// Close releases programs, maps and counters.
func (p *Programs) Close() error {
	var errs []error
	for _, c := range p.loaded {
		c.Close()
	}
	for _, m := range p.shared {
		errs = append(errs, m.Close())
	}
	if p.stats != nil {
		errs = append(errs, p.stats.Close())
	}
	return errors.Join(errs...)
}

// NewPassing loads a program that passes every packet. An end of a veth pair
// needs one to receive frames by redirection.
func NewPassing() (*ebpf.Program, error) { return constant("weir_pass", ebpf.XDP, loader.ActionPass) }

// NewDropping loads a program that drops every packet, and does nothing else.
func NewDropping() (*ebpf.Program, error) { return constant("weir_drop", ebpf.XDP, loader.ActionDrop) }

// NewDroppingTC is NewDropping for TC.
func NewDroppingTC() (*ebpf.Program, error) {
	const shot = 2 // TC_ACT_SHOT
	return constant("weir_drop", ebpf.SchedCLS, shot)
}

func constant(name string, kind ebpf.ProgramType, action int32) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         name,
		Type:         kind,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, action), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		return nil, fmt.Errorf("load a program that returns %d for every packet: %w", action, err)
	}
	return p, nil
}
