package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"weir/control/list"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/world"
)

// attached attaches a generation's program to one end of a wire.
type attached struct {
	*loader.Attachment
	pins   loader.Pins
	target netif.Target
}

func newAttached(t testing.TB, g *Generation) *attached {
	t.Helper()
	l := lab.New(t)
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	a := &attached{pins: loader.Pins(dir), target: netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}}
	t.Cleanup(func() {
		if err := errors.Join(a.DetachAny(), a.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	p, err := a.pins.Prepare(a.target, hooks.Native)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	program, err := g.Load(p.Stats())
	if err != nil {
		t.Fatal(err)
	}
	if a.Attachment, err = p.Attach(program, nil); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *attached) filter(t testing.TB) *loader.Filter {
	t.Helper()
	f, err := a.pins.OpenFilter(a.target)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (a *attached) replace(t testing.TB, g *Generation) {
	t.Helper()
	program, err := g.Load(a.Stats())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Replace(program); err != nil {
		t.Fatal(err)
	}
}

var approximate = Config{Mode: membership.Approximate, BitsPerKey: 24, Owner: "1:2"}

func blockList(contents *list.Set) []List {
	return []List{{Name: "a", Contents: contents}}
}

// A generation that adopts the filter of one that was closed has its counters: it
// decides as one that was built from its lists, and so it does after random changes in
// place, and again after the next has adopted it.
func TestAdopt(t *testing.T) {
	long.Seconds(t)
	classed := approximate
	half := membership.Period{Networks: make(map[uint32]membership.Sighting)}
	for i := range uint32(1 << 12) {
		half.Networks[i<<20] = membership.Sighting{Found: 1, Exposed: 1}
	}
	classed.Demand.Sightings = &membership.Sightings{Periods: slices.Repeat([]membership.Period{half}, membership.MaxPeriods)}
	for name, c := range map[string]Config{"": approximate, "with classes of networks": classed} {
		t.Run(name, func(t *testing.T) { testAdopt(t, c) })
	}
}

func testAdopt(t *testing.T, approximate Config) {
	r := world.New(t)
	contents := func(n int) *list.Set {
		var keys []key.Key
		for range n {
			keys = append(keys, key.Source(r.Prefix()), r.Flow())
		}
		return list.SetOf(keys...)
	}
	lists := append(blockList(contents(300)), List{Name: "allow", Allow: true, Contents: contents(5)})
	g, err := Build(lists, approximate)
	if err != nil {
		t.Skip(err) // without privileges
	}
	if classed := approximate.Demand.Sightings != nil; (g.Block.Classes != nil) != classed {
		t.Fatalf("classes: %t", !classed)
	}
	a := newAttached(t, g)
	adoptions := 0
	for round := range 12 {
		for range 5 {
			changes := []Change{{List: uint16(1 + r.IntN(2)), Delta: list.Delta{Add: contents(r.IntN(20)), Remove: contents(r.IntN(20))}}}
			if _, err := g.Apply(changes); err != nil && !needsNext(err) {
				t.Fatal(err)
			}
		}
		lists = g.Lists()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		// What the next one knows may differ from what the last one had.
		if round%2 == 0 {
			lists[0].Contents, _ = lists[0].Contents.Apply(list.Delta{Add: contents(r.IntN(50)), Remove: contents(r.IntN(50))})
		}
		var changed int
		known := approximate
		known.Demand = membership.Demand{} // of a process that has learned nothing yet
		if g, changed, err = Adopt(lists, known, a.filter(t)); err != nil {
			if g, err = Build(lists, approximate); err != nil { // a new prefix length, or shape
				t.Fatal(err)
			}
		} else {
			if adoptions++; (g.Block.Sightings == nil) != (approximate.Demand.Sightings == nil) {
				t.Errorf("round %d: what the last process has found: %t", round, g.Block.Sightings != nil)
			}
			if round%2 == 1 && changed > 0 {
				t.Errorf("%d entries were changed, where none differ", changed)
			}
		}
		a.replace(t, g)
		reference, err := Reference(lists, approximate)
		if err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			p := r.Tuple()
			if listed := reference.Blocks(p); listed {
				if _, found := g.Block.Match(p); !found {
					t.Fatalf("round %d: %+v is listed, and not found", round, p)
				}
			}
		}
		if err := reference.Close(); err != nil {
			t.Error(err)
		}
	}
	if adoptions < 6 {
		t.Errorf("%d of 12 filters were adopted", adoptions)
	}
	// Without entries, no bit is left: all counters were right.
	var all []Change
	for i, l := range g.Lists() {
		all = append(all, Change{List: uint16(i + 1), Delta: list.Delta{Remove: l.Contents}})
	}
	if _, err := g.Apply(all); err != nil {
		t.Fatal(err)
	}
	if bits, _ := g.Block.Load(); bits > 0 || g.Block.Len() > 0 {
		t.Errorf("%d keys, and %v of the bits are set, where nothing is listed", g.Block.Len(), bits)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// A filter that is not what a build would result in is not adopted.
func TestAdoptRefuses(t *testing.T) {
	lists := blockList(list.SetOf(key.Source(netip.MustParsePrefix("192.0.2.1/32"))))
	g, err := Build(lists, approximate)
	if err != nil {
		t.Skip(err)
	}
	defer g.Close()
	a := newAttached(t, g)
	other := blockList(list.SetOf(key.Source(netip.MustParsePrefix("2001:db8::/48"))))
	for _, c := range []struct {
		says   string
		lists  []List
		change func(*Config)
	}{
		{"belongs to another state directory", lists, func(c *Config) { c.Owner = "1:3" }},
		{"belongs to another state directory", lists, func(c *Config) { c.Owner = "" }},
		{"the mode is exact now", lists, func(c *Config) { c.Mode = membership.Exact }},
		{"its size is another", lists, func(c *Config) { c.BitsPerKey = 25 }},
		{"its size is another", lists, func(c *Config) { c.Hot = 1000 }},
		{"no place for prefixes of 48 bits", other, func(*Config) {}},
	} {
		config := approximate
		c.change(&config)
		if g, _, err := Adopt(c.lists, config, a.filter(t)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
			if err == nil {
				g.Close()
			}
		}
	}
	for text, says := range map[string]string{`{`: "its description", `{"Version": 0}`: "of version 0"} {
		f := a.filter(t)
		f.Description = []byte(text)
		if _, _, err := Adopt(lists, approximate, f); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	// One with classes must not be adopted by a version that does not know them.
	for text, says := range map[string]string{
		`{"Version": 1, "Layout": {"Classes": "AA=="}}`: "of version 1",
		`{"Version": 2, "Layout": {"Classes": "AA=="}}`: "of version 2",
		`{"Version": 3, "Layout": {}}`:                  "of version 3",
	} {
		f := a.filter(t)
		f.Description = []byte(text)
		if _, _, err := Adopt(lists, approximate, f); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	// A part that the kernel refuses leaves the memory, which programs read, as it is.
	impossible := approximate
	impossible.Parts = []Part{refusedPart{}}
	more := netip.MustParsePrefix("192.0.2.99/32")
	if _, _, err := Adopt(blockList(list.SetOf(key.Source(more))), impossible, a.filter(t)); !errors.Is(err, kernelerr.ErrUnsupported) {
		t.Errorf("%v, want that the part is refused", err)
	}
	if g.Block.Passes(key.Source(more)) {
		t.Error("a filter that was not adopted has other entries")
	}
	impossible.Parts = []Part{unfilledPart{}}
	if g, err := Build(lists, impossible); !errors.Is(err, kernelerr.ErrUnsupported) {
		t.Errorf("%v, want that the memory of the part cannot be filled", err)
		if err == nil {
			g.Close()
		}
	}
	// A damaged size is noticed before the memory is used.
	f := a.filter(t)
	f.Description = []byte(strings.Replace(string(f.Description), `"Lines":`, `"Lines":1`, 1))
	if _, _, err := Adopt(lists, approximate, f); err == nil {
		t.Error("a filter of another size is adopted")
	}
	// An exact generation leaves no filter behind.
	exact, err := Build(lists, Config{Owner: "1:2"})
	if err != nil {
		t.Fatal(err)
	}
	defer exact.Close()
	a.replace(t, exact)
	if _, err := a.pins.OpenFilter(a.target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after an exact generation: %v, want that there is no filter", err)
	}
}

// refusedPart is a part that this kernel cannot have.
type refusedPart struct{ BasePart }

func (refusedPart) Constants(netif.Target, loader.Seed) map[string]any { return nil }
func (refusedPart) Maps(bool) (map[string]int, error)                  { return nil, kernelerr.ErrUnsupported }
func (refusedPart) Fill(*loader.Generation, *hash.Secret) error        { return nil }

// unfilledPart is a part whose memory cannot be filled.
type unfilledPart struct{ refusedPart }

func (unfilledPart) Maps(bool) (map[string]int, error)           { return nil, nil }
func (unfilledPart) Fill(*loader.Generation, *hash.Secret) error { return kernelerr.ErrUnsupported }

// BenchmarkAdopt takes over ten million entries: from opening the pins to the new
// program's first packet. In comparison, it builds them.
func BenchmarkAdopt(b *testing.B) {
	const n = 10_000_000
	prefixes := make([]list.V4Prefix, n)
	for i := range prefixes {
		prefixes[i] = list.V4(uint32(i)*401, 32)
	}
	lists := blockList(list.Entries{V4: prefixes}.Set())
	config := Config{Mode: membership.Approximate, Owner: "1:2"}
	g, err := Build(lists, config)
	if err != nil {
		b.Skip(err)
	}
	a := newAttached(b, g)
	defer func() { g.Close() }()
	for _, how := range []string{"adopt", "build"} {
		b.Run(fmt.Sprintf("%s/%d", how, n), func(b *testing.B) {
			for b.Loop() {
				var next *Generation
				var err error
				if how == "adopt" {
					next, _, err = Adopt(lists, config, a.filter(b))
				} else {
					next, err = Build(lists, config)
				}
				if err != nil {
					b.Fatal(err)
				}
				a.replace(b, next)
				g.Close()
				g = next
			}
		})
	}
}
