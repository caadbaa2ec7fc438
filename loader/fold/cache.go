package fold

import (
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// maxCached is the number of specifications whose programs a cache keeps. A generation usually has
// up to four: for XDP, for the edges of a loop, and for TC with and without Ethernet headers. Stages
// with a secret for each interface have a specification for each, and are folded each time.
const maxCached = 4

// Cache keeps the programs of the specifications that were folded last. The programs of many
// interfaces differ in nothing but their maps, and to fold one takes tens of milliseconds. The zero
// value is empty. It may be used concurrently.
type Cache struct {
	mu   sync.Mutex
	kept []*folded // the last that was used comes first
}

// folded has the programs of a specification, by name, as they were and with their constants.
type folded struct {
	constants *constants
	plain     map[string]asm.Instructions

	once sync.Once
	code map[string]asm.Instructions
	err  error
}

// Constants does what [Constants] does, once for all specifications whose instructions and constants
// are the same. It keeps the instructions that a specification had, which must not change any more.
func (c *Cache) Constants(spec *ebpf.CollectionSpec) error {
	f := c.find(spec)
	f.once.Do(func() { f.code, f.err = f.constants.programs(f.plain) })
	if f.err != nil {
		return f.err
	}
	for name, p := range spec.Programs {
		p.Instructions = slices.Clone(f.code[name])
	}
	return nil
}

// find returns the entry of an equal specification, or a new one, which is not folded yet.
func (c *Cache) find(spec *ebpf.CollectionSpec) *folded {
	constants := constantsOf(spec)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.kept, func(f *folded) bool { return f.isOf(spec, constants) })
	if i < 0 {
		f := &folded{constants: constants, plain: instructionsOf(spec)}
		c.kept = slices.Insert(c.kept[:min(len(c.kept), maxCached-1)], 0, f)
		return f
	}
	f := c.kept[i]
	c.kept = slices.Insert(slices.Delete(c.kept, i, i+1), 0, f)
	return f
}

// instructionsOf returns the instructions of all programs, by name.
func instructionsOf(spec *ebpf.CollectionSpec) map[string]asm.Instructions {
	all := make(map[string]asm.Instructions, len(spec.Programs))
	for name, p := range spec.Programs {
		all[name] = p.Instructions
	}
	return all
}

// isOf reports whether f has the programs of a specification with these constants.
func (f *folded) isOf(spec *ebpf.CollectionSpec, c *constants) bool {
	return f.constants.order == c.order && maps.Equal(f.constants.numbers, c.numbers) &&
		slices.EqualFunc(f.constants.sections, c.sections, slices.Equal) &&
		maps.EqualFunc(f.plain, instructionsOf(spec), func(a, b asm.Instructions) bool { return slices.EqualFunc(a, b, isSameInstruction) })
}

// isSameInstruction reports whether two instructions do the same.
func isSameInstruction(a, b asm.Instruction) bool {
	return a.OpCode == b.OpCode && a.Dst == b.Dst && a.Src == b.Src && a.Offset == b.Offset && a.Constant == b.Constant &&
		(a.Metadata == b.Metadata || a.Reference() == b.Reference() && a.Symbol() == b.Symbol())
}
