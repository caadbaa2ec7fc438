package contract

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/engine"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/quotient"
	"weir/loader"
	"weir/tests/bench/probe"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// addressSet returns a set of IPv4 sources in the kernel, with a quotient table of
// this layout, and a directory if keys have 33 bits, and the programs that look addresses up in it.
func addressSet(t *testing.T, l quotient.Layout) (*membership.Set, *probe.Programs, *probe.Keys) {
	t.Helper()
	seed.Secrets(t)
	layout := membership.Layout{
		Mode: membership.Exact, Secret: hash.NewSecret(hash.NewSeed()),
		Prefixes: membership.PrefixLayout{Layout: l, Secret: quotient.NewSecret(), Shift: uint8(min(l.KeyBits-32, 1))},
		V4:       []membership.GatedShape{{Shape: key.Shape{SrcBits: 32}, Gate: membership.GateAlways}},
	}
	if l.KeyBits > 32 {
		layout = layout.WithDirectory(9)
	}
	block := loader.KeySet{
		Directory: engine.Directory(layout.Directory),
		Quotient:  engine.Quotient(l, layout.Prefixes.Secret), PrefixShift: uint32(layout.Prefixes.Shift), N_prefixes: 1,
	}
	block.Prefixes[0].SrcMask, block.Prefixes[0].Tail = ^uint32(0), layout.Prefixes.Tail(32, false)
	return setOf(t, layout, block)
}

// setOf returns an empty set in the kernel, and the programs that look addresses up in it.
func setOf(t *testing.T, layout membership.Layout, block loader.KeySet) (*membership.Set, *probe.Programs, *probe.Keys) {
	t.Helper()
	g, err := loader.NewGeneration(loader.Config{Block: block, Lists: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	s, err := membership.NewSet(layout, membership.Memory(g.Block()))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := probe.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	p, err := probe.Load(g, keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return s, p, keys
}

// Beside a writer that adds, removes and changes addresses in crowded lines of the
// quotient table, so that entries move, go to the spill and return all the time, the
// kernel's program finds the listed ones at each of 4·10⁶ lookups, 10⁸ with
// WEIR_LONG=1, and never an unlisted one. A lookup is judged only where its answer was the same before and
// after a run of the program.
func TestQuotientBesideWriter(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	lookups := long.Or(4_000_000, 30_000_000)
	r := newRandom(t)
	layouts := []quotient.Layout{
		{KeyBits: 32, LaneBits: 31, Lines: 64, Buckets: 6}, {KeyBits: 33, LaneBits: 63, Lines: 64, Buckets: 6, Front: 640},
		{KeyBits: 32, LaneBits: 21, Lines: 1 << 13, Buckets: 6, Front: 1 << 16}, {KeyBits: 32, LaneBits: 15, Lines: 1 << 19, Buckets: 6},
		{KeyBits: 32, LaneBits: 12, Lines: 1 << 22, Buckets: 6},
	}
	full := 0
	for _, l := range layouts {
		t.Run(fmt.Sprintf("%d-bit lanes", l.LaneBits), func(t *testing.T) {
			s, p, keys := addressSet(t, l)
			w := newCrowd(t, r, s)
			done := make(chan struct{})
			var writer sync.WaitGroup
			writer.Go(func() { w.write(done) })
			end := sync.OnceFunc(func() {
				close(done)
				writer.Wait()
			})
			defer end() // before the memory is gone
			var found, absent int
			deadline := time.Now().Add(time.Minute) // for a writer that gets few turns
			few := func() bool { return min(found, absent) < lookups/100 || w.writes.Load() < 10_000 }
			for !t.Failed() && (found+absent < lookups/len(layouts) || few() && time.Now().Before(deadline)) {
				f, a := w.ask(t, p, keys, r)
				found, absent = found+f, absent+a
			}
			end()
			full += w.full
			t.Logf("%d listed and %d unlisted found so; %d writes, %d times full, %d times tidied", found, absent, w.writes.Load(), w.full, w.tidied)
			if few() {
				t.Error("too few of a kind for the test to say anything")
			}
		})
	}
	if full == 0 {
		t.Error("no table was ever full")
	}
}

// crowd is addresses in a few lines of a quotient table, more than there is room for.
type crowd struct {
	set   *membership.Set
	addrs []key.Key
	// phases, modulo 4: 0 is unlisted, 2 listed; between them it changes.
	phases       []atomic.Uint32
	seed         uint64
	full, tidied int
	writes       atomic.Int64
	asked        int // lookups so far
}

func newCrowd(t *testing.T, r random, s *membership.Set) *crowd {
	t.Helper()
	l := s.Prefixes.Layout
	twin, err := quotient.New(l, s.Prefixes.Secret)
	if err != nil {
		t.Fatal(err)
	}
	const lines = 4
	images := lines << l.KeyBits / uint64(l.Lines)
	w := &crowd{set: s, seed: r.Uint64()}
	seen := make(map[key.Key]bool)
	for len(w.addrs) < lines*8*(63/l.LaneBits)*5/2 {
		k := twin.KeyOf(r.Uint64N(images))
		if s.Prefixes.Shift > 0 && k&1 == 0 {
			continue // not an address
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(k>>s.Prefixes.Shift))
		if k := key.Source(netip.PrefixFrom(netip.AddrFrom4(b), 32)); !seen[k] {
			seen[k] = true
			w.addrs = append(w.addrs, k)
		}
	}
	w.phases = make([]atomic.Uint32, len(w.addrs))
	return w
}

// write changes the set until it is done.
func (w *crowd) write(done <-chan struct{}) {
	r := rand.New(rand.NewPCG(w.seed, 1))
	for {
		select {
		case <-done:
			return
		default:
		}
		i := r.IntN(len(w.addrs))
		w.writes.Add(1)
		switch k, list := w.addrs[i], uint16(1+r.IntN(3)); {
		case w.phases[i].Load()%4 == 0:
			w.phases[i].Add(1)
			if w.set.Add(k, list) != nil {
				w.full++
				w.phases[i].Add(3)
				continue
			}
			w.phases[i].Add(1)
		case r.IntN(3) == 0:
			w.set.SetList(k, list)
		default:
			w.phases[i].Add(1)
			w.set.Remove(k)
			w.phases[i].Add(1)
		}
		if w.writes.Load()%50_000 == 0 && w.set.Tidy(loader.Grace) {
			w.tidied++
		}
	}
}

// ask looks addresses up in the kernel, and returns how many were found listed and
// unlisted that were so all the time.
func (w *crowd) ask(t *testing.T, p *probe.Programs, keys *probe.Keys, r random) (found, absent int) {
	t.Helper()
	asked := make([]uint16, 0, probe.KeysLen)
	if err := keys.Set(func() [4]byte {
		asked = append(asked, uint16(r.IntN(len(w.addrs))))
		return w.addrs[asked[len(asked)-1]].Src.As4()
	}); err != nil {
		t.Fatal(err)
	}
	snapshot := func() []uint32 {
		phases := make([]uint32, len(w.phases))
		for i := range phases {
			phases[i] = w.phases[i].Load()
		}
		return phases
	}
	// Each key's phase, if it was that before and after the run that asked for it.
	const changed = math.MaxUint32
	phases := make([]uint32, probe.KeysLen)
	for asking := 0; asking < probe.KeysLen; {
		before := snapshot()
		if _, err := p.Loop("ask", 1); err != nil {
			t.Fatal(err)
		}
		after := snapshot()
		_, n, err := p.Hits()
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			i := w.asked % probe.KeysLen
			phases[i] = before[asked[i]]
			if phases[i] != after[asked[i]] {
				phases[i] = changed
			}
			w.asked++
		}
		asking += n
	}
	listed, err := keys.Listed()
	if err != nil {
		t.Fatal(err)
	}
	for i, phase := range phases {
		switch {
		case phase%2 != 0: // or changed
		case phase%4 == 0 && listed[i]:
			t.Fatalf("%v is found, but not listed", w.addrs[asked[i]])
		case phase%4 == 2 && !listed[i]:
			t.Fatalf("%v is listed, but not found", w.addrs[asked[i]])
		case listed[i]:
			found++
		default:
			absent++
		}
	}
	return found, absent
}
