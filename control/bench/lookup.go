package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/cilium/ebpf"

	"weir/control/generation"
	"weir/control/list"
	"weir/filter/membership"
	"weir/loader"
)

// lookups of a contender in one round: each key once.
const lookups = loader.BenchKeys

// lookup measures lookups of random addresses in a loop in the kernel, none of
// them listed and all of them listed.
func (r *Report) lookup(o Options, n int) error {
	o.logf("lookup: %d random addresses", n)
	store, err := randomStore(n)
	if err != nil {
		return err
	}
	exact, err := newContenders(store, generation.Config{}, n, n, 0)
	if err != nil {
		return err
	}
	defer exact.Close()
	approx, err := newContenders(store, generation.Config{Mode: membership.Approximate}, 0, 0, 0)
	if err != nil {
		return err
	}
	defer approx.Close()
	if err := exact.fillRandom(n); err != nil {
		return err
	}

	net := map[float64]map[string]float64{}
	for _, listed := range []float64{0, 1} {
		for _, c := range []*contenders{exact, approx} {
			c.SetKeys(mixed(n, listed))
		}
		// A Bloom filter confirms nothing, so there is no hit to compare.
		names := []string{"empty", "weir-exact", "weir-approx", "kernel-hash", "kernel-bloom"}
		ns, err := rounds(o.Rounds, names, func(name string) (float64, error) {
			c, loop := exact, map[string]string{
				"empty": "empty", "weir-exact": "weir", "weir-approx": "weir", "kernel-hash": "hash", "kernel-bloom": "bloom",
			}[name]
			if name == "weir-approx" {
				c = approx
			}
			return c.loop(loop, listed, name != "empty")
		})
		if err != nil {
			return err
		}
		net[listed] = r.addLoop("lookup", n, listed, names[1:], ns)
	}
	size := count(n)
	miss, hit := net[0], net[1]
	r.atMost("negative lookup, "+size+", cascade against kernel hash", miss["weir-exact"]/miss["kernel-hash"], 0.12)
	r.atMost("negative lookup, "+size+", cascade against kernel Bloom map", miss["weir-exact"]/miss["kernel-bloom"], 0.25)
	limit := 0.40
	if n > 1_000_000 {
		limit = 0.85
	}
	r.atMost("confirmed hit, "+size+", against kernel hash", hit["weir-exact"]/hit["kernel-hash"], limit)
	if n >= 10_000_000 { // below, the fixed 2 MiB of a marker count
		r.atMost("kernel memory, "+size+", exact, bytes an entry", float64(exact.generation.KernelBytes())/float64(n), 11)
		r.atMost("kernel memory, "+size+", approximate, bytes an entry", float64(approx.generation.KernelBytes())/float64(n), 2.1)
	}
	return nil
}

// addLoop notes the results of a loop and gives the net times.
func (r *Report) addLoop(benchmark string, n int, listed float64, names []string, ns map[string]float64) map[string]float64 {
	net := make(map[string]float64)
	for _, name := range names {
		net[name] = max(ns[name]-ns["empty"], 0.1)
		r.Results = append(r.Results, Result{
			Benchmark: benchmark, Contender: name, Entries: n, ListedShare: listed, NS: ns[name], NetNS: net[name],
		})
	}
	return net
}

// count writes a number of entries as 1M or 300k.
func count(n int) string {
	switch {
	case n%1_000_000 == 0:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n%1000 == 0:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}

// prefixes measures a list of prefixes of many lengths against an LPM trie.
func (r *Report) prefixes(o Options) error {
	prefixes, err := somePrefixes(o.Feed)
	if err != nil {
		return err
	}
	n := len(prefixes)
	o.logf("prefixes: %d of %d lengths", n, lengths(prefixes))
	store := generation.NewStore()
	if _, err := store.AddList(generation.List{Name: "prefixes"}, list.Entries{V4: prefixes}); err != nil {
		return err
	}
	c, err := newContenders(store, generation.Config{}, 0, 0, n)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.fillTrie(prefixes); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	inside := func() uint32 {
		p := prefixes[random.IntN(n)]
		return p.Addr() + uint32(random.Uint64N(1<<(32-p.Bits())))
	}
	net := map[float64]map[string]float64{}
	for _, listed := range []float64{0, 1} {
		c.SetKeys(func() [4]byte {
			if listed == 1 {
				return wireOrder(inside())
			}
			for {
				a := random.Uint32()
				var v uint32
				k := trieKey(a, 32)
				if c.Trie.Lookup(&k, &v) != nil {
					return wireOrder(a)
				}
			}
		})
		names := []string{"empty", "weir-exact", "kernel-lpm"}
		ns, err := rounds(o.Rounds, names, func(name string) (float64, error) {
			loop := map[string]string{"empty": "empty", "weir-exact": "match", "kernel-lpm": "lpm"}[name]
			return c.loop(loop, listed, name != "empty")
		})
		if err != nil {
			return err
		}
		net[listed] = r.addLoop("prefixes", n, listed, names[1:], ns)
	}
	r.atMost("mixed prefixes against LPM trie, clean", net[0]["weir-exact"]/net[0]["kernel-lpm"], 0.15)
	r.atMost("mixed prefixes against LPM trie, listed", net[1]["weir-exact"]/net[1]["kernel-lpm"], 0.50)
	return nil
}

func lengths(prefixes []list.V4Prefix) int {
	seen := make(map[int]bool)
	for _, p := range prefixes {
		seen[p.Bits()] = true
	}
	return len(seen)
}

// somePrefixes reads a feed or makes up a list like one: 200 000 prefixes,
// /12 to /31, mostly /20 to /30, none within another.
func somePrefixes(feed string) ([]list.V4Prefix, error) {
	if feed != "" {
		e, _, err := list.Load(feed, list.Options{})
		return e.V4, err
	}
	random := rand.New(rand.NewPCG(3, 4))
	var prefixes []list.V4Prefix
	taken := make(map[uint32]bool) // networks /20
	for len(prefixes) < 200_000 {
		bits := min(31, 12+int(18*random.Float64())+random.IntN(3))
		addr := random.Uint32() &^ (1<<(32-bits) - 1)
		from, n := addr>>12, uint32(1)<<max(0, 20-bits)
		free := true
		for i := from; i < from+n; i++ {
			free = free && !taken[i]
		}
		if !free || bits < 18 && random.IntN(64) > 0 {
			continue
		}
		for i := from; i < from+n; i++ {
			taken[i] = true
		}
		prefixes = append(prefixes, list.V4(addr, bits))
	}
	return prefixes, nil
}

// contenders are a generation and the kernel's maps beside it.
type contenders struct {
	*loader.Bench
	generation *generation.Generation
}

func newContenders(s *generation.Store, c generation.Config, hash, bloom, trie int) (*contenders, error) {
	g, err := generation.Build(s, c)
	if err != nil {
		return nil, err
	}
	b, err := g.Bench(hash, bloom, trie)
	if err != nil {
		g.Close()
		return nil, err
	}
	return &contenders{b, g}, nil
}

// loop times lookups and, since a benchmark of wrong answers is none, holds
// the hits against what the keys must give.
func (c *contenders) loop(name string, listed float64, check bool) (ns float64, err error) {
	if _, err := c.Hits(); err != nil {
		return 0, err
	}
	d, err := c.Loop(name, lookups)
	if err != nil {
		return 0, err
	}
	hits, err := c.Hits()
	if err != nil {
		return 0, err
	}
	share := float64(hits) / lookups
	if check && (share < listed || share > listed+0.05) { // Bloom filters err
		return 0, fmt.Errorf("%d of %d lookups hit, where a share of %g is listed", hits, lookups, listed)
	}
	return d, nil
}

func (c *contenders) Close() {
	c.Bench.Close()
	c.generation.Close()
}

// fillRandom puts n random addresses into the kernel's hash and Bloom maps.
func (c *contenders) fillRandom(n int) error {
	const batch = 1 << 16
	keys, values := make([][4]byte, 0, batch), make([]uint32, batch)
	for i := range n {
		keys = append(keys, wireOrder(address(uint32(i))))
		if len(keys) == batch || i == n-1 {
			if _, err := c.Hash.BatchUpdate(keys, values[:len(keys)], nil); err != nil {
				return fmt.Errorf("fill the kernel hash: %w", err)
			}
			for _, k := range keys {
				if err := c.Bloom.Update(nil, k, ebpf.UpdateAny); err != nil {
					return fmt.Errorf("fill the kernel Bloom filter: %w", err)
				}
			}
			keys = keys[:0]
		}
	}
	return nil
}

func trieKey(addr uint32, bits int) (k [8]byte) {
	binary.NativeEndian.PutUint32(k[:], uint32(bits))
	binary.BigEndian.PutUint32(k[4:], addr)
	return k
}

func (c *contenders) fillTrie(prefixes []list.V4Prefix) error {
	for _, p := range prefixes {
		k := trieKey(p.Addr(), p.Bits())
		if err := c.Trie.Put(&k, uint32(1)); err != nil {
			return fmt.Errorf("fill the LPM trie: %w", err)
		}
	}
	return nil
}
