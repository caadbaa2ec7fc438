package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// pinFilter is the directory, below the directory of an interface, with the pins of the block
// set that the program reads, and its description.
const (
	pinFilter      = "filter"
	pinDescription = "description"
)

// filterMaps are the names of the maps that a filter consists of. Earlier versions have
// pinned others beside them, of counters, which go with the directory.
var filterMaps = []string{
	bpf.WeirMapBlockLines, bpf.WeirMapBlockMarks4, bpf.WeirMapBlockMarks6, bpf.WeirMapBlockHot,
}

// Filter is the memory of a block set that stays in the kernel, pinned, when the process
// that wrote to it has ended. The next one can go on with it, with [NewGenerationOver].
type Filter struct {
	Description []byte // what the last process stored with [Generation.Keep]
	maps        map[string]*array
}

// OpenFilter opens the filter that is pinned for an interface, whether a program uses it
// or not. It fails with [fs.ErrNotExist] where there is none.
func (d Pins) OpenFilter(t netif.Target) (*Filter, error) {
	a, err := d.Open(t)
	if errors.Is(err, ErrNotAttached) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	defer a.Close()
	f := &Filter{maps: make(map[string]*array)}
	if err := f.open(filepath.Join(a.path, pinFilter)); err != nil {
		return nil, errors.Join(fmt.Errorf("open the filter of %s: %w", t, kernelerr.Permission(err)), f.Close())
	}
	return f, nil
}

func (f *Filter) open(path string) error {
	description, err := ebpf.LoadPinnedMap(filepath.Join(path, pinDescription), nil)
	if err != nil {
		return err
	}
	defer description.Close()
	if f.Description, err = readText(description); err != nil {
		return err
	}
	for _, name := range filterMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(path, name), nil)
		if err != nil {
			return err
		}
		if f.maps[name], err = mapArray(m, int(m.ValueSize())); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the filter, unless a generation has taken it over. It stays pinned.
func (f *Filter) Close() error {
	var errs []error
	for _, m := range f.maps {
		errs = append(errs, m.Close())
	}
	f.maps = nil
	return errors.Join(errs...)
}

// NewGenerationOver is [NewGeneration] with the memory of a filter for the block set, as
// it is. It takes over the filter, and fails where its sizes are others.
func NewGenerationOver(cfg Config, f *Filter) (*Generation, error) {
	g, err := newGeneration(cfg, f.maps)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.maps = nil
	return g, nil
}

// arrayOf returns a map of a filter, or a new one where there is none.
func arrayOf(spec *ebpf.MapSpec, of map[string]*array) (*array, error) {
	a := of[spec.Name]
	if a == nil {
		return newArray(spec)
	}
	if err := fits(a.m, spec); err != nil {
		return nil, fmt.Errorf("the filter's map %s: %w", spec.Name, err)
	}
	a.entry = int(spec.ValueSize)
	if a.entries() != int(spec.MaxEntries) {
		return nil, fmt.Errorf("the filter's map %s has %d entries, not %d", spec.Name, a.entries(), spec.MaxEntries)
	}
	return a, nil
}

// Keep makes programs of the generation keep the block set when this process has ended:
// from now on, attaching one pins the set's maps beside it, and a description for the
// process that opens them with [Pins.OpenFilter].
func (g *Generation) Keep(description []byte) error {
	if !g.config.Kept {
		return errors.New("keep the filter: the generation shares its maps")
	}
	m, err := newTextMap(pinDescription, description)
	if err != nil {
		return fmt.Errorf("keep the filter: %w", kernelerr.Permission(err))
	}
	g.description = &array{m: m}
	return nil
}

// kept returns the maps that are to be pinned with the generation's programs, nil if none
// are. The caller must close them.
func (g *Generation) kept() map[string]*array {
	if g.description == nil {
		return nil
	}
	all := map[string]*array{pinDescription: g.description.share()}
	for _, name := range filterMaps {
		all[name] = g.maps[name].share()
	}
	return all
}

// pinFilterIn makes the directory of a filter's pins, in the directory of an interface.
func pinFilterIn(path string, filter map[string]*array) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(filter)) {
		if err := bpffs.Pin(bpffs.Map{Map: filter[name].m}, filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// replaceFilter replaces the pins of the last program's filter by the pins of the present
// program's, if it has any. Where it fails, or the process is killed meanwhile, the next process
// finds no filter, or the last program's, which was complete when it was replaced, and
// whose description says what it contains.
func (a *Attachment) replaceFilter(filter map[string]*array) error {
	next, path := a.next(pinFilter), filepath.Join(a.path, pinFilter)
	err := os.RemoveAll(next)
	if err == nil && filter != nil {
		err = pinFilterIn(next, filter)
	}
	if err = errors.Join(err, os.RemoveAll(path)); err != nil || filter == nil {
		return err
	}
	return os.Rename(next, path)
}
