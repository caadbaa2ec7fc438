package attenuated

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"weir/filter/bloom"
	"weir/filter/hash"
	"weir/filter/internal/trial"
	"weir/tests/must"
)

const seed = 20020623

func standard(m uint32, k int) bloom.Geometry { return must.Have(bloom.Standard(m, k)) }

func newRand(t testing.TB) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// An absent element is found at depth d with the probability that d is the
// first of independent filters to have a false positive, f_d·∏_{i<d}(1 − f_i),
// within 3 %. Each level has four times the elements of the one before, as in a
// network where each router has five links.
func TestFalsePositivesByDepth(t *testing.T) {
	const depth, m, k = 4, 1 << 20, 3
	g := standard(m, k)
	rng := newRand(t)
	f := New(g, seed, depth)
	var rate [depth + 1]float64
	miss := 1.0
	for d, n := 1, 2500; d <= depth; d, n = d+1, 4*n {
		for range n {
			f.Level(d).AddHash(rng.Uint64())
		}
		p := g.FalsePositiveRate(uint64(n))
		rate[d] = miss * p
		miss *= 1 - p
	}
	for d := 3; d <= depth; d++ { // the rates of the first two are below 10⁻⁴
		hits, trials := 0, trial.Count(rate[d], 0.03)
		for range trials {
			if hops, ok := f.LookupHash(rng.Uint64()); ok && hops == d {
				hits++
			}
		}
		trial.Check(t, hits, trials, rate[d])
	}
}

func TestLookupFindsTheNearest(t *testing.T) {
	f := New(standard(10_000, 5), seed, 3)
	b := []byte("resource")
	if _, ok := f.Lookup(b); ok {
		t.Error("the empty filter contains an element")
	}
	for d := f.Depth(); d >= 1; d-- {
		f.Level(d).Add(b)
		if hops, ok := f.Lookup(b); !ok || hops != d {
			t.Errorf("found %v at %d hops, want %d", ok, hops, d)
		}
	}
}

// network is a simulated overlay: routers, and for each of their links the
// router and the link at the far end.
type network struct {
	routers []*Router
	far     [][]end
}

type end struct{ router, link int }

func newNetwork(n int, g bloom.Geometry, depth int) *network {
	w := &network{far: make([][]end, n)}
	for range n {
		w.routers = append(w.routers, NewRouter(g, seed, depth))
	}
	return w
}

func (w *network) connect(a, b int) {
	la, lb := w.routers[a].AddLink(), w.routers[b].AddLink()
	w.far[a] = append(w.far[a], end{b, lb})
	w.far[b] = append(w.far[b], end{a, la})
}

// round sends the announcements of all routers at once and returns the number
// of messages.
func (w *network) round(t testing.TB) int {
	type message struct {
		to end
		f  *Filter
	}
	var all []message
	for i, r := range w.routers {
		for l, far := range w.far[i] {
			if f, changed := r.Announce(l); changed {
				all = append(all, message{far, f})
			}
		}
	}
	for _, m := range all {
		if err := w.routers[m.to.router].Receive(m.to.link, m.f); err != nil {
			t.Fatal(err)
		}
	}
	return len(all)
}

// settle runs rounds until no router announces anything: depth rounds, and one
// more to notice.
func (w *network) settle(t testing.TB) (messages int) {
	for range w.routers[0].depth + 1 {
		n := w.round(t)
		messages += n
		if n == 0 {
			return messages
		}
	}
	t.Fatalf("the network still announces after %d rounds", w.routers[0].depth+1)
	return 0
}

// distances are the true numbers of hops from a router to all others.
func (w *network) distances(from int) []int {
	d := make([]int, len(w.routers))
	for i := range d {
		d[i] = -1
	}
	d[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, e := range w.far[queue[0]] {
			if d[e.router] < 0 {
				d[e.router] = d[queue[0]] + 1
				queue = append(queue, e.router)
			}
		}
	}
	return d
}

// random returns a ring, so that it is connected, with random chords.
func random(n int, g bloom.Geometry, depth int, rng *rand.Rand) *network {
	w := newNetwork(n, g, depth)
	for i := range n {
		w.connect(i, (i+1)%n)
	}
	for range n / 2 {
		if a, b := rng.IntN(n), rng.IntN(n); a != b {
			w.connect(a, b)
		}
	}
	return w
}

func resource(i int) []byte { return fmt.Append(nil, "resource ", i) }

// outcome counts the queries of all resources from all routers.
type outcome struct {
	within  int // the holder is within reach
	tooNear int // of these, those whose distance came out too small
	lost    int // of these, those whose route does not lead to the holder
	phantom int // out of reach, but seems within
}

// query looks up all resources from all routers; router holder[i] stores
// resource i. Within reach each must be found, at no more than its true
// distance.
func (w *network) query(t *testing.T, holder []int) (o outcome) {
	t.Helper()
	for from, r := range w.routers {
		distance := w.distances(from)
		for i, h := range holder {
			b := resource(i)
			_, hops, ok := r.Route(b)
			if distance[h] > r.depth {
				if ok {
					o.phantom++
				}
				continue
			}
			if !ok || hops > distance[h] {
				t.Fatalf("router %d finds %s %v at %d hops, true distance %d", from, b, ok, hops, distance[h])
			}
			o.within++
			if hops < distance[h] {
				o.tooNear++
			}
			if w.follow(from, b) != h {
				o.lost++
			}
		}
	}
	return o
}

// follow returns the router at which a query ends that takes the path that the
// first router found the shortest, for as many hops as it reported.
func (w *network) follow(from int, b []byte) int {
	_, hops, _ := w.routers[from].Route(b)
	for ; hops > 0; hops-- {
		over, _, ok := w.routers[from].Route(b)
		if !ok || over == Local {
			break
		}
		from = w.far[from][over].router
	}
	return from
}

// populate stores n resources in random routers, which it returns.
func (w *network) populate(n int, rng *rand.Rand) (holder []int) {
	for i := range n {
		h := rng.IntN(len(w.routers))
		w.routers[h].Add(resource(i))
		holder = append(holder, h)
	}
	return holder
}

// With filters that are large enough, 16 bits for each of some 300 resources,
// nearly all queries take a shortest path to the holder.
func TestNetworkRoutesToHolder(t *testing.T) {
	const routers, depth, resources = 60, 3, 600
	rng := newRand(t)
	w := random(routers, standard(4800, 11), depth, rng)
	holder := w.populate(resources, rng)
	messages := w.settle(t)
	o := w.query(t, holder)
	t.Logf("%d messages, %+v", messages, o)
	if bad := o.tooNear + o.lost + o.phantom; bad > routers*resources/100 {
		t.Errorf("%d of %d queries met a false positive", bad, routers*resources)
	}
}

// Filters that are too small misroute requests but miss nothing.
func TestNetworkWithFalsePositives(t *testing.T) {
	const routers, depth, resources = 30, 3, 300
	rng := newRand(t)
	w := random(routers, standard(400, 2), depth, rng)
	holder := w.populate(resources, rng)
	w.settle(t)
	o := w.query(t, holder)
	t.Logf("%+v", o)
	if o.tooNear == 0 || o.lost == 0 || o.phantom == 0 {
		t.Errorf("%+v: no false positives: the test shows too little", o)
	}
}

// A change spreads one hop a round and not beyond the depth, unchanged filters
// are not announced, and deleted resources are no longer found.
func TestUpdatesPropagate(t *testing.T) {
	const routers, depth = 10, 4
	w := newNetwork(routers, standard(10_000, 7), depth)
	for i := range routers - 1 { // a line, router 0 at its end
		w.connect(i, i+1)
	}
	if n := w.settle(t); n != 0 {
		t.Errorf("empty routers sent %d messages", n)
	}
	b := resource(0)
	reach := func() (n int) {
		for i, r := range w.routers {
			_, hops, ok := r.Route(b)
			if !ok {
				break
			}
			if hops != i {
				t.Errorf("router %d finds the resource at %d hops", i, hops)
			}
			n++
		}
		return n
	}
	w.routers[0].Add(b)
	for round := range depth {
		if got := reach(); got != round+1 {
			t.Errorf("after %d rounds %d routers know the resource", round, got)
		}
		if n := w.round(t); n != 1 {
			t.Errorf("round %d took %d messages, want 1", round, n)
		}
	}
	if n := w.round(t); n != 0 || reach() != depth+1 {
		t.Errorf("beyond the depth: %d messages, %d routers know the resource", n, reach())
	}
	if !w.routers[0].Remove(b) {
		t.Fatal("the resource cannot be removed")
	}
	if n := w.settle(t); n != depth || reach() != 0 {
		t.Errorf("after the deletion: %d messages, %d routers know the resource", n, reach())
	}
}

func TestReceiveRejects(t *testing.T) {
	g := standard(100, 3)
	r := NewRouter(g, seed, 2)
	l := r.AddLink()
	for what, f := range map[string]*Filter{
		"depth":    New(g, seed, 3),
		"geometry": New(standard(101, 3), seed, 2),
		"seed":     New(g, seed+1, 2),
	} {
		f.Level(1).Add([]byte("x"))
		if err := r.Receive(l, f); !errors.Is(err, bloom.ErrIncompatible) {
			t.Errorf("other %s: %v", what, err)
		}
		if _, _, ok := r.Route([]byte("x")); ok {
			t.Errorf("other %s: the router changed", what)
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	const n = 100_000
	f := New(standard(16*n, 11), seed, 4)
	for d := 1; d <= 4; d++ {
		for i := range uint64(n) {
			f.Level(d).AddHash(hash.Nth(seed, i+uint64(d)*n))
		}
	}
	b.Run("depth=4/op=query-hit", func(b *testing.B) {
		for i := uint64(0); b.Loop(); i++ {
			f.LookupHash(hash.Nth(seed, n+i%(4*n)))
		}
	})
	b.Run("depth=4/op=query-miss", func(b *testing.B) {
		for i := uint64(0); b.Loop(); i++ {
			f.LookupHash(hash.Nth(seed, 5*n+i))
		}
	})
}

func BenchmarkRouter(b *testing.B) {
	rng := newRand(b)
	w := random(20, standard(16_000, 11), 3, rng)
	for i := range 1000 {
		w.routers[rng.IntN(20)].Add(resource(i))
	}
	w.settle(b)
	b.Run("op=announce", func(b *testing.B) {
		for b.Loop() {
			w.routers[0].Announce(0)
		}
	})
	b.Run("op=query", func(b *testing.B) {
		e := resource(1)
		for b.Loop() {
			w.routers[0].Route(e)
		}
	})
}
