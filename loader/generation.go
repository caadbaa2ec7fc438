package loader

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/fold"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
)

// Memory is the kernel memory of a set, read by the program as it is written. It
// is zero at first. Parts that the set's geometry omits are nil.
type Memory struct {
	Lines   []uint64 // 8 words a line of the cascade
	Buckets []uint64 // 8 slots a bucket of the table
	Marks4  []uint64 // 2^18 words for the sources, then, if they are asked, as many for the destinations
	Marks6  []uint64 // 8 words a line
	Hot     []uint64 // 8 slots a bucket of the hot table

	Prefixes []uint64 // 8 words a line of the prefix table
	Spill    []uint64 // 8 slots a bucket of its spill
	Front    []uint64 // words of its front

	Directory []uint64 // a word for each network, of sources and then of destinations

	Reach []uint64 // a bit for each network, likewise
}

// Generation is a configuration in the kernel: the filter maps, of exactly
// the configured sizes, and all that its programs have in common. The
// programs of any number of interfaces share it.
type Generation struct {
	spec    *ebpf.CollectionSpec // specialised, apart from what differs by interface
	tc      *ebpf.CollectionSpec // the same for TC; nil: no program is for TC
	config  Config
	folding *fold.Cache // of the programs for all interfaces

	trackers uint64 // identity of the trackers, which takes long to compute
	layout   layout // of the trackers
	counting *counting

	maps  map[string]*array
	block Memory
	allow Memory

	description *array // of the block set, for the next process; nil: it is not kept
}

// NewGeneration creates the filter maps for a configuration and maps them into
// memory. It allocates the kernel memory for all of them, and fails where there is
// not enough.
func NewGeneration(cfg Config) (*Generation, error) { return newGeneration(cfg, nil) }

// newGeneration takes over the maps of a filter, unless it fails.
func newGeneration(cfg Config, filter map[string]*array) (*Generation, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("new generation: %w", err)
	}
	g := &Generation{config: cfg, trackers: cfg.trackerIdentity(), layout: cfg.layTrackers(), counting: new(counting), maps: make(map[string]*array), folding: new(fold.Cache)}
	if err := g.build(&cfg, filter); err != nil {
		for name, a := range filter {
			if g.maps[name] == a {
				delete(g.maps, name)
			}
		}
		g.Close()
		return nil, fmt.Errorf("new generation: %w", kernelerr.Permission(err))
	}
	return g, nil
}

func (g *Generation) build(cfg *Config, filter map[string]*array) (err error) {
	all, err := object()
	if err != nil {
		return err
	}
	g.spec = all.Copy()
	frags, err := hooks.HasFrags()
	if err != nil {
		return err
	}
	if err := specialise(g.spec, cfg, frags); err != nil {
		return err
	}
	if cfg.Out || cfg.TC {
		if g.tc, err = tcSpec(cfg); err != nil {
			return err
		}
	}
	if g.block, err = g.makeSet(cfg.Block, setMaps{
		bpf.WeirMapBlockLines, bpf.WeirMapBlockBuckets, bpf.WeirMapBlockMarks4, bpf.WeirMapBlockMarks6,
		bpf.WeirMapBlockHot, bpf.WeirMapBlockPrefixes, bpf.WeirMapBlockSpill, bpf.WeirMapBlockFront,
		bpf.WeirMapBlockDirectory, "",
	}, filter); err != nil {
		return err
	}
	if g.allow, err = g.makeSet(cfg.Allow, setMaps{
		bpf.WeirMapAllowLines, bpf.WeirMapAllowBuckets, bpf.WeirMapAllowMarks4, bpf.WeirMapAllowMarks6,
		"", bpf.WeirMapAllowPrefixes, bpf.WeirMapAllowSpill, "", "",
		bpf.WeirMapAllowReach,
	}, nil); err != nil {
		return err
	}
	if err := g.makeWords(); err != nil {
		return err
	}
	if err := g.makeShared(); err != nil {
		return err
	}
	if err := g.makeWakes(); err != nil {
		return err
	}
	return g.makeParts()
}

func specialise(spec *ebpf.CollectionSpec, cfg *Config, frags bool) error {
	for name, value := range constants(cfg, frags) {
		if err := spec.Variables[name].Set(value); err != nil {
			return err
		}
	}
	var context kernelContext
	if frags {
		context = contextOf()
	}
	for _, p := range spec.Programs {
		context.resolve(p.Instructions)
		if !frags {
			p.Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
	return spec.Variables[bpf.WeirVarBufferFlags].Set(context.flags)
}

// constants returns the values of the variables that both entries may have, by name.
func constants(cfg *Config, frags bool) map[string]any {
	l := cfg.layTrackers()
	return map[string]any{
		bpf.WeirVarTrackers:       &l.trackers,
		bpf.WeirVarTrackerCount:   uint32(len(cfg.counting())),
		bpf.WeirVarBankLines:      l.lines,
		bpf.WeirVarBankBuckets:    l.buckets,
		bpf.WeirVarBankPairs:      l.pairs,
		bpf.WeirVarEphemeralPort:  uint32(cfg.EphemeralPort),
		bpf.WeirVarPenaltyBuckets: uint32(PenaltyBuckets),
		bpf.WeirVarWindowBuckets:  uint32(WindowBuckets),
		bpf.WeirVarCpuCount:       uint32(CPUs()),
		bpf.WeirVarKeySecret:      &cfg.Secret,
		bpf.WeirVarBlock:          &cfg.Block,
		bpf.WeirVarBlockClasses:   cfg.blockClasses(),
		bpf.WeirVarAllow:          &cfg.Allow,
		bpf.WeirVarFailsafeConfig: &cfg.Failsafe,
		bpf.WeirVarFailsafeIcmp:   cfg.FailsafeICMP,
		bpf.WeirVarRules:          &cfg.Rules,
		bpf.WeirVarDropMalformed:  Flag(cfg.DropMalformed),
		bpf.WeirVarDropNotIp:      Flag(cfg.DropNotIP),
		bpf.WeirVarInner:          Flag(cfg.Inner),
		bpf.WeirVarDhcpServer:     Flag(cfg.DHCPServer),
		bpf.WeirVarMonitor:        Flag(cfg.Monitor),
		bpf.WeirVarLean:           cfg.lean(),
		bpf.WeirVarSampleClean:    Flag(cfg.SampleClean),
		bpf.WeirVarFrags:          Flag(frags),
		bpf.WeirVarReordersLoads:  Flag(runtime.GOARCH != "amd64" && runtime.GOARCH != "386" && runtime.GOARCH != "s390x"),
	}
}

// blockClasses returns the extra bits of classes as programs have them.
func (c *Config) blockClasses() (all [classes]uint8) {
	copy(all[:], c.BlockClasses)
	return all
}

// Flag returns a truth value as programs have it.
func Flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// setMaps are the names of a set's maps.
type setMaps struct {
	lines, buckets, marks4, marks6 string
	hot                            string // "": the set has no weights
	prefixes, spill                string
	front, directory, reach        string // "": the set has none
}

// makeSet creates the maps of a set, without those of a filter that exists already.
func (g *Generation) makeSet(s KeySet, names setMaps, filter map[string]*array) (m Memory, err error) {
	if s.Lines == 0 {
		s = KeySet{Quotient: s.Quotient, Directory: s.Directory, Reach: s.Reach} // the program looks up nothing else
	}
	for _, part := range []struct {
		memory  *[]uint64
		name    string
		entries uint32
	}{
		{&m.Lines, names.lines, s.Lines},
		{&m.Buckets, names.buckets, s.Buckets},
		{&m.Marks4, names.marks4, marks4Words(&s)},
		{&m.Marks6, names.marks6, s.Marks6Lines},
		{&m.Hot, names.hot, s.HotBuckets},
		{&m.Prefixes, names.prefixes, s.Quotient.Lines},
		{&m.Spill, names.spill, s.Quotient.Buckets},
		{&m.Front, names.front, s.Quotient.Front},
		{&m.Directory, names.directory, s.Directory.Src + s.Directory.Dst},
		{&m.Reach, names.reach, reachWords(&s.Reach)},
	} {
		if part.name == "" {
			continue
		}
		spec := g.spec.Maps[part.name]
		if part.entries == 0 {
			if g.maps[part.name], err = g.unused(spec, filter); err != nil {
				delete(g.maps, part.name)
				return Memory{}, err
			}
			continue
		}
		spec.MaxEntries = part.entries
		array, err := arrayOf(spec, filter)
		if err != nil {
			return Memory{}, err
		}
		g.maps[part.name] = array
		*part.memory = array.words
	}
	return m, nil
}

// wordMaps are the maps of a generation with words that depend on its lists.
var wordMaps = []string{RuleWords, bpf.WeirMapFirstLevels}

// makeWords creates these maps.
func (g *Generation) makeWords() error {
	for _, name := range wordMaps {
		spec, words := g.spec.Maps[name], g.config.Words[name]
		var a *array
		var err error
		if len(words) == 0 {
			a, err = g.unused(spec, nil)
		} else {
			spec.MaxEntries = uint32(len(words))
			a, err = newArray(spec)
		}
		if err != nil {
			return err
		}
		if len(words) > 0 {
			copy(a.words, words)
		}
		g.maps[name] = a
	}
	return nil
}

// Words is the memory of a map of [Config.Words] or [Config.Maps], until Close; nil: it has none.
func (g *Generation) Words(name string) []uint64 {
	if a := g.maps[name]; a != nil && (len(g.config.Words[name]) > 0 || g.config.Maps[name] > 0) {
		return a.words
	}
	return nil
}

// unused returns the array of a map that the generation's programs refer to only in
// code that the verifier removes. The kernel has no empty arrays: maps with values of one
// size share one, unless they are to be pinned. It cannot be mapped, which would take a
// page.
func (g *Generation) unused(spec *ebpf.MapSpec, filter map[string]*array) (*array, error) {
	spec.MaxEntries = 1
	if g.config.Kept && slices.Contains(filterMaps, spec.Name) {
		return arrayOf(spec, filter)
	}
	for _, m := range g.maps {
		if m.entries() == 1 && m.m.Type() == spec.Type && m.m.ValueSize() == spec.ValueSize {
			return m.share(), nil
		}
	}
	spec.Flags &^= unix.BPF_F_MMAPABLE
	return newArray(spec)
}

// marks4Words returns the size of the IPv4 marks, in words. The marks of destinations
// follow the marks of sources, also where only destinations are listed.
func marks4Words(s *KeySet) uint32 {
	switch {
	case s.GatesV4&gateDst != 0:
		return 2 * markWords
	case s.GatesV4&gateSrc != 0:
		return markWords
	}
	return 0
}

// reachWords returns the size of a reach, in words. Bits of destinations follow those of sources.
func reachWords(r *Reach) uint32 {
	words := uint32(1) << (32 - r.Shift) / 64
	switch {
	case r.Shift == 0:
		return 0
	case (r.GatesV4|r.GatesV6)&gateDst != 0:
		return 2 * words
	}
	return words
}

var errClosed = errors.New("the generation is closed")

// Block is the memory of the block set, until Close.
func (g *Generation) Block() Memory { return g.block }

// Allow is the memory of the allow set, until Close.
func (g *Generation) Allow() Memory { return g.allow }

// General returns why all packets take the general path through the program, or
// nothing: plain IPv4 packets take the lean path.
func (g *Generation) General() []string { return g.config.general() }

// MapBytes is the kernel memory of all filter maps, in bytes.
func (g *Generation) MapBytes() int {
	n := 0
	counted := make(map[*array]bool) // some are shared
	for _, m := range g.maps {
		if !counted[m] {
			n += m.bytes()
		}
		counted[m] = true
	}
	return n
}

// WithMonitor returns a generation with the same maps, whose programs only count
// what they would drop, or drop it. One of the two may be used from then on, and
// closed.
func (g *Generation) WithMonitor(on bool) (*Generation, error) {
	next := *g
	next.config.Monitor = on
	return &next, next.set(bpf.WeirVarMonitor, Flag(on))
}

// WithCleanSampled is WithMonitor for events of packets that match nothing.
func (g *Generation) WithCleanSampled(on bool) (*Generation, error) {
	next := *g
	next.config.SampleClean = on
	if err := next.set(bpf.WeirVarSampleClean, Flag(on)); err != nil {
		return nil, err
	}
	return &next, next.set(bpf.WeirVarLean, next.config.lean())
}

// SamplesClean reports whether packets that match nothing have events.
func (g *Generation) SamplesClean() bool { return g.config.SampleClean }

// set sets a constant of the programs to be loaded, in a copy of their specification.
func (g *Generation) set(name string, value uint8) error {
	g.spec, g.tc = g.spec.Copy(), g.tc.Copy()
	for _, spec := range []*ebpf.CollectionSpec{g.spec, g.tc} {
		if spec == nil {
			continue
		}
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// Load loads the generation's program for an interface that counts in stats.
// It may be called any number of times, also concurrently. What the kernel's
// verifier has to say is in the error, an [ebpf.VerifierError].
//
// If stats have no room for the generation's lists, or the memory of other trackers or parts,
// the program comes with new maps, which stats take over with [Attachment.Replace].
// Two mappings of the same trackers become one at once.
func (g *Generation) Load(stats *Stats) (*Program, error) {
	p, err := g.load(stats)
	if err != nil {
		return nil, fmt.Errorf("load the program: %w", kernelerr.Permission(err))
	}
	return p, nil
}

func (g *Generation) load(stats *Stats) (_ *Program, err error) {
	if g.maps == nil {
		return nil, errClosed
	}
	p := &Program{stats: stats, filter: g.kept()}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.maps, err = stats.present(); err != nil {
		return nil, err
	}
	if p.fresh, err = g.outgrown(stats, p.maps); err != nil {
		return nil, err
	}
	maps.Copy(p.maps, p.fresh)
	if g.trackers != 0 {
		p.memory = g.counting.present()
	}

	spec, err := g.specFor(stats, p.maps)
	if err != nil {
		return nil, err
	}
	replacements, err := g.connect(spec, p.maps, stats.stride(p.maps[bpf.WeirMapListStats]))
	if err != nil {
		return nil, err
	}
	if p.prog, err = g.loadFolded(spec, replacements); err != nil {
		return nil, err
	}
	return p, nil
}

// foldConstants is a variable for tests.
var foldConstants = (*fold.Cache).Constants

// loadFolded loads the program of a specification with its constants in the instructions, or,
// where the kernel's verifier does not accept that, as the compiler has made it.
func (g *Generation) loadFolded(spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map) (*ebpf.Program, error) {
	folded := withOwnPrograms(spec)
	if err := foldConstants(g.folding, folded); err != nil {
		return nil, err
	}
	p, err := loadVerified(folded, replacements)
	if errors.Is(err, kernelerr.ErrUnsupported) || errors.As(err, new(*ebpf.VerifierError)) {
		if p, plain := loadVerified(spec, replacements); plain == nil {
			return p, nil
		}
	}
	return p, err
}

// withOwnPrograms returns a copy of a specification whose programs can get other instructions: all
// else, which takes longer to copy, it shares with spec.
func withOwnPrograms(spec *ebpf.CollectionSpec) *ebpf.CollectionSpec {
	own := *spec
	own.Programs = make(map[string]*ebpf.ProgramSpec, len(spec.Programs))
	for name, p := range spec.Programs {
		program := *p
		own.Programs[name] = &program
	}
	return &own
}

// loadVerified loads the program of a specification.
func loadVerified(spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map) (*ebpf.Program, error) {
	var objects struct {
		Weir *ebpf.Program `ebpf:"weir"`
	}
	options := ebpf.CollectionOptions{MapReplacements: replacements}
	options.Programs.LogLevel = ebpf.LogLevelStats // see VerifiedInstructions
	err := spec.LoadAndAssign(&objects, &options)
	if errors.Is(err, unix.E2BIG) {
		return nil, fmt.Errorf("%w: the shapes and trackers together make the program too large for this kernel's verifier (%w): "+
			"use fewer prefix lengths, kinds of flows or trackers, or a later kernel", kernelerr.ErrUnsupported, unix.E2BIG)
	}
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		options.Programs.LogLevel = 0 // now with its reasons
		err = spec.LoadAndAssign(&objects, &options)
	}
	if errors.As(err, &verifier) {
		err = verifier // without the names of the steps up to it
	}
	return objects.Weir, err
}

// specFor returns the specification of the program for an interface, without its maps.
func (g *Generation) specFor(stats *Stats, kept pinnedMaps) (spec *ebpf.CollectionSpec, err error) {
	entry := stats.entry.Load()
	if g.config.Out || entry == entryTC || entry == entryBare {
		if spec, err = g.tcFor(entry); err != nil {
			return nil, err
		}
		return spec, g.setParts(spec, stats, kept)
	}
	spec = g.spec.Copy()
	if entry == entryDispatched {
		// Later kernels compare it with the type of the stub that jumps here, which has none.
		spec.Programs[bpf.WeirProgWeir].AttachType = ebpf.AttachNone
	}
	return spec, g.setParts(spec, stats, kept)
}

// Bind prepares spec, other programs that include the data plane's headers, to
// run on the generation's data: it sets their constants, and returns the maps to
// load them with, the maps of the stats included. Benchmarks and tests use it to run
// parts of the pipeline; the maps remain the generation's and the stats'.
func (g *Generation) Bind(spec *ebpf.CollectionSpec, stats *Stats) (map[string]*ebpf.Map, error) {
	m, err := g.bind(spec, stats)
	if err != nil {
		return nil, fmt.Errorf("bind programs: %w", kernelerr.Permission(err))
	}
	return m, nil
}

func (g *Generation) bind(spec *ebpf.CollectionSpec, stats *Stats) (map[string]*ebpf.Map, error) {
	if g.maps == nil {
		return nil, errClosed
	}
	frags, err := hooks.HasFrags()
	if err != nil {
		return nil, err
	}
	if err := specialise(spec, &g.config, frags); err != nil {
		return nil, err
	}
	kept, err := stats.present()
	if err != nil {
		return nil, err
	}
	fresh, err := g.outgrown(stats, kept)
	if err != nil {
		return nil, err
	}
	if err := stats.move(fresh); err != nil {
		return nil, err
	}
	if g.trackers != 0 {
		stats.join(g.counting.present(), nil)
	}
	maps.Copy(kept, fresh)
	if err := g.setParts(spec, stats, kept); err != nil {
		return nil, err
	}
	return g.connect(spec, kept, stats.stride(kept[bpf.WeirMapListStats]))
}

// outgrown creates the maps that must replace maps of the stats: counters for
// more lists, other trackers, the memory of other parts.
func (g *Generation) outgrown(stats *Stats, present pinnedMaps) (pinnedMaps, error) {
	fresh := make(pinnedMaps)
	if stats.stride(present[bpf.WeirMapListStats]) <= g.config.Lists {
		lists, err := newListArray(g.config.Lists)
		if err != nil {
			return nil, err
		}
		fresh[bpf.WeirMapListStats] = lists
	}
	trackers, err := g.outgrownTrackers(stats, present)
	if err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	maps.Copy(fresh, trackers)
	of, err := g.outgrownParts(stats.of(), present)
	if err != nil {
		return nil, errors.Join(err, fresh.Close())
	}
	maps.Copy(fresh, of)
	return fresh, nil
}

// connect makes the spec's programs use the generation's filter maps and those
// that outlive programs: it sets sizes and the stride, and returns the maps by
// name.
func (g *Generation) connect(spec *ebpf.CollectionSpec, k pinnedMaps, stride int) (map[string]*ebpf.Map, error) {
	used, maps := make(map[string]*array), make(map[string]*ebpf.Map)
	for _, arrays := range []map[string]*array{k, g.maps} {
		for name, a := range arrays {
			s := spec.Maps[name]
			if s == nil {
				continue // no program reads it
			}
			used[name], maps[name] = a, a.m
			s.ValueSize, s.MaxEntries, s.Flags = a.m.ValueSize(), a.m.MaxEntries(), a.m.Flags()
		}
	}
	if err := address(spec, used); err != nil {
		return nil, err
	}
	return maps, spec.Variables[bpf.WeirVarListStride].Set(uint32(stride))
}

// Close releases the filter maps: Block and Allow must no longer be used. In the
// kernel, they live as long as the programs that were loaded.
func (g *Generation) Close() error {
	var errs []error
	for _, m := range g.maps {
		errs = append(errs, m.Close())
	}
	errs = append(errs, g.description.Close(), g.counting.Close())
	g.maps, g.block, g.allow, g.description = nil, Memory{}, Memory{}, nil
	return errors.Join(errs...)
}
