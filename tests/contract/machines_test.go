package contract

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

// machine has the properties that sets are laid out for and built by.
type machine struct {
	near  int // bytes of the cache that a CPU has for itself
	procs int // CPUs that Go uses
}

var machines = []machine{
	{near: loader.GuessedCache, procs: 2}, // nothing says how large the caches are
	{near: 1 << 10, procs: 1},
	{near: 1 << 30, procs: 32},
}

// machine returns one of machines in turn, and has Go use as many CPUs.
func (r random) machine(t testing.TB, i int) machine {
	m := machines[i%len(machines)]
	before := runtime.GOMAXPROCS(m.procs)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	return m
}

// Whatever the caches and the CPUs, the kernel's program and the reference find the same in sets
// that have a directory, a front or neither, on both paths through the program, also after changes
// in place.
func TestMachines(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	many, few := []int{14, 18, 20, 22, 23, 24, 27, 32}, []int{24, 32}
	planned := map[membership.DirectoryLayout]bool{}
	fronts := map[bool]bool{}
	for i := range machines {
		for _, c := range []engine.Config{{}, {NoLean: true}} {
			c.NearCache = r.machine(t, i).near
			g := r.sameFound(t, c, r.prefixesOf(40_000, many...), r.prefixesOf(20_000, many...))
			if d := g.Block.Directory; d.Bits == 0 || !d.Src || !d.Dst || len(g.General()) > 0 != c.NoLean {
				t.Errorf("%+v: directory %+v, general path: %q", machines[i], d, g.General())
			}
			planned[g.Block.Directory] = true
		}
		g := r.sameFound(t, engine.Config{NearCache: r.machine(t, i).near}, r.prefixesOf(180_000, few...), list.Entries{})
		if g.Block.Directory.Bits > 0 {
			t.Errorf("%+v: directory %+v for two lengths", machines[i], g.Block.Directory)
		}
		fronts[g.Block.Prefixes.Front > 0] = true
	}
	if len(planned) < 2 || len(fronts) < 2 {
		t.Errorf("directories %v, fronts %v: the test is too narrow", planned, fronts)
	}
}

// sameFound has the kernel and the reference look up packets with addresses within and next to
// prefixes of sources and destinations, and returns the generation.
func (r random) sameFound(t *testing.T, c engine.Config, src, dst list.Entries) *engine.Generation {
	t.Helper()
	lists := []engine.List{{Name: "from", Contents: src.Set()}}
	at := slices.Concat(src.V4, dst.V4)
	if len(dst.V4) > 0 {
		lists = append(lists, engine.List{Name: "to", Direction: engine.Destination, Contents: dst.Set()})
	}
	round := newRound(t)
	defer round.end()
	g, kernel := engines(round, lists, c)
	seen := make(map[verdict.Reason]int)
	check := func() {
		t.Helper()
		for range 2000 {
			tuple := key.Tuple{Src: r.near(src.V4), Dst: r.near(at), Proto: 17, HasPorts: true, DstPort: 443}
			frame := packet.Frame(tuple)
			o, err := agree(g, kernel, frame)
			if err != nil {
				t.Fatalf("%+v: %v: % x", c, err, frame)
			}
			seen[o.Reason]++
		}
	}
	check()
	for range 4 {
		come := r.prefixesOf(100, 22, 24, 32)
		if g.Block.Directory.Bits == 0 {
			come = r.prefixesOf(100, 24, 32)
		}
		gone := list.Entries{V4: src.V4[:100:100]}
		if _, err := g.Apply([]engine.Change{{List: 1, Delta: list.Delta{Add: come.Set(), Remove: gone.Set()}}}); err != nil {
			t.Fatal(err)
		}
		src.V4 = append(src.V4[100:], come.V4...)
		check()
	}
	if seen[verdict.Blocked] < 3000 || seen[verdict.Clean] < 300 {
		t.Errorf("%+v: packets left as %v: the test is too narrow", c, seen)
	}
	return g
}

// Where the kernel lists no caches, sets with many lengths have a directory nonetheless.
func TestNoCachesListed(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	src := r.prefixesOf(8000, 14, 18, 20, 22, 24, 32)
	type result struct {
		bits, near int
		err        error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and its file systems with it
		results <- func() (r result) {
			if r.err = hideCaches(); r.err != nil {
				return r
			}
			r.near, _ = loader.NearCache()
			var g *engine.Generation
			if g, r.err = engine.Build([]engine.List{{Name: "from", Contents: src.Set()}}, engine.Config{}); r.err == nil {
				r.bits, r.err = g.Block.Directory.Bits, g.Close()
			}
			return r
		}()
	}()
	if got := <-results; got.err != nil || got.bits == 0 || got.near <= 0 {
		t.Errorf("%+v", got)
	}
}

// hideCaches hides from this thread what sysfs says of the caches.
func hideCaches() error {
	const caches = "/sys/devices/system/cpu/cpu0/cache"
	if _, err := os.Stat(caches); os.IsNotExist(err) {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("none", caches, "tmpfs", 0, "")
}
