package fold

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A cache has for each specification what Constants makes of it, whatever it was asked before.
func TestCache(t *testing.T) {
	code := func(n int32, section string) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapValue(asm.R1, 0, 0).WithReference(section),
			asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord),
			asm.Add.Imm(asm.R0, n),
			asm.Return(),
		}
	}
	specs := []func() *ebpf.CollectionSpec{
		func() *ebpf.CollectionSpec { return specOf(code(1, ".rodata"), 10) },
		func() *ebpf.CollectionSpec { return specOf(code(1, ".rodata"), 11) },
		func() *ebpf.CollectionSpec { return specOf(code(2, ".rodata"), 10) },
		func() *ebpf.CollectionSpec { return specOf(code(1, ".data"), 10) },
		func() *ebpf.CollectionSpec {
			s := specOf(code(1, ".rodata"), 10)
			s.Variables = map[string]*ebpf.VariableSpec{"n": {Name: "n", SectionName: ".rodata", Value: binary.NativeEndian.AppendUint64(nil, 12)}}
			return s
		},
		func() *ebpf.CollectionSpec {
			s := specOf(code(1, ".rodata.first"), 10)
			s.Maps[".rodata.first"] = specOf(code(1, ".rodata"), 7).Maps[".rodata"]
			return s
		},
	}
	if len(specs) <= maxCached {
		t.Fatal("nothing leaves the cache")
	}
	var c Cache
	var all sync.WaitGroup
	for i := range 4 * len(specs) {
		of := specs[i*5%len(specs)]
		all.Go(func() {
			got, want := of(), of()
			if err := c.Constants(got); err != nil {
				t.Error(err)
			}
			if err := Constants(want); err != nil {
				t.Error(err)
			}
			if got, want := text(got.Programs["test"].Instructions), text(want.Programs["test"].Instructions); got != want {
				t.Errorf("the program is\n%swant\n%s", got, want)
			}
			got.Programs["test"].Instructions[0] = asm.Return() // which must not change that of others
		})
		if i%2 == 0 {
			all.Wait()
		}
	}
	all.Wait()
}

// Equal specifications are folded once.
func TestCacheIsUsed(t *testing.T) {
	var c Cache
	spec := func(n uint64) *ebpf.CollectionSpec {
		return specOf(asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}, n)
	}
	for _, n := range []uint64{1, 2, 1, 2, 1} {
		if err := c.Constants(spec(n)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.kept) != 2 || c.kept[0].constants.sections[0][0] != 1 {
		t.Errorf("%d are kept", len(c.kept))
	}
	for n := range uint64(maxCached) {
		if err := c.Constants(spec(3 + n)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.kept) != maxCached || slices.ContainsFunc(c.kept, func(f *folded) bool { return f.constants.sections[0][0] < 3 }) {
		t.Errorf("%d are kept, or not the last", len(c.kept))
	}
}
