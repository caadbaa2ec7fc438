package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/prefix"
	"weir/loader"
)

// filterVersion is increased when the memory of an approximate set, or the meaning of a
// key's bits, changes. Sets with classes of networks have the later version: daemons that
// do not know these would clear bits that programs test.
const (
	filterVersion  = 1
	classedVersion = 3
)

func versionOf(l *membership.Layout) int {
	if l.Classes != nil {
		return classedVersion
	}
	return filterVersion
}

// kept describes an approximate block set in the kernel to the process that adopts it.
type kept struct {
	Version    int
	Owner      string
	Seed       hash.Seed
	BitsPerKey float64
	Hot        int
	Layout     membership.Layout // without its secret
	Src4, Dst4 prefix.Levels
	Src6, Dst6 prefix.Levels
	Flows      []storedShape
}

// storedShape says at which shape flows of another one are stored.
type storedShape struct{ Of, At key.Shape }

// keep makes the block set stay for the next process, if it can be adopted.
func (g *Generation) keep(seed hash.Seed, c *Config) error {
	if g.kernel == nil || c.Owner == "" || c.Mode != membership.Approximate || g.Block.Lines == 0 {
		return nil
	}
	e := &g.index.block
	k := kept{
		Version: versionOf(&g.Block.Layout), Owner: c.Owner, Seed: seed, BitsPerKey: c.BitsPerKey, Hot: c.Hot, Layout: g.Block.Layout,
		Src4: e.src4.levels, Dst4: e.dst4.levels, Src6: e.src6.levels, Dst6: e.dst6.levels,
	}
	k.Layout.Secret = nil
	for of, at := range e.flows.levels.Stored {
		k.Flows = append(k.Flows, storedShape{of, at})
	}
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return g.kernel.Keep(text)
}

// Adopt returns a generation in the kernel over the filter of another process, which has
// ended. That is changed to contain what the lists do, by changed keys, instead of being
// built. It takes over the filter. Where the filter is not one that a build would result
// in, or the lists differ too much from what it contains, Adopt fails, and the answer is
// [Build].
func Adopt(lists []List, c Config, from *loader.Filter) (g *Generation, changed int, err error) {
	g, changed, err = adopt(slices.Clone(lists), c, from)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("adopt the filter: %w", err), from.Close())
	}
	return g, changed, nil
}

func adopt(lists []List, c Config, from *loader.Filter) (g *Generation, changed int, err error) {
	c.setDefaults()
	var k kept
	if err := json.Unmarshal(from.Description, &k); err != nil {
		return nil, 0, fmt.Errorf("its description: %w", err)
	}
	switch {
	case k.Version != versionOf(&k.Layout):
		return nil, 0, fmt.Errorf("it is of version %d, not %d", k.Version, versionOf(&k.Layout))
	case c.Owner == "" || k.Owner != c.Owner:
		return nil, 0, errors.New("it belongs to another state directory")
	case c.Mode != membership.Approximate:
		return nil, 0, errors.New("the mode is exact now")
	case k.BitsPerKey != c.BitsPerKey || k.Hot != c.Hot:
		return nil, 0, errors.New("its size is another")
	}
	x := newIndex(lists, false)
	if err := errors.Join(x.block.takeLevels(&k), x.allow.plan()); err != nil {
		return nil, 0, err
	}
	block := compiled{layout: k.Layout, columns: x.block.columns()}
	block.layout.Secret = hash.NewSecret(k.Seed)
	block.countClasses()
	over := func(of loader.Config) (*loader.Generation, error) { return loader.NewGenerationOver(of, from) }
	g, err = assemble(x, k.Seed, &block, c, over, func(block *compiled, m membership.Memory) (s *membership.Set, err error) {
		s, changed, err = membership.Adopt(block.layout, m, block.columns, loader.Grace)
		return s, err
	})
	if err == nil {
		err = g.addOut(c, true)
	}
	return g, changed, err
}

// takeLevels takes the levels of an earlier build. It fails where entries have no level
// among them.
func (e *entries) takeLevels(k *kept) error {
	if err := errors.Join(e.src4.takeLevels(k.Src4), e.dst4.takeLevels(k.Dst4), e.src6.takeLevels(k.Src6), e.dst6.takeLevels(k.Dst6)); err != nil {
		return err
	}
	stored := make(map[key.Shape]key.Shape)
	for _, s := range k.Flows {
		stored[s.Of] = s.At
	}
	for s := range e.flows.shapes() {
		if _, ok := stored[s]; !ok {
			return fmt.Errorf("no place for flows of %v", s)
		}
	}
	e.flows.levels = NewFlows(stored)
	return nil
}

func (s *side[P]) takeLevels(levels prefix.Levels) error {
	for bits := range 129 {
		if _, ok := levels.Of(bits); s.lengths.Has(bits) && !ok {
			return fmt.Errorf("no place for prefixes of %d bits", bits)
		}
	}
	s.levels = levels
	return nil
}
