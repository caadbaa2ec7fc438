package hub

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/seed"
)

// TestHistories has random histories of changes, copies, restores, kills, lost directories
// and wrong clocks. After each start of the hub all nodes have its contents in time, it
// never calls a node current that has others, and entries that are in all histories stay.
func TestHistories(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	random := seed.New(t)
	together := 4
	seeds := make(chan uint64)
	go func() {
		defer close(seeds)
		for range long.Rounds(4, 16, 100) {
			select {
			case seeds <- random.Uint64():
			case <-t.Context().Done():
				return
			}
		}
	}()
	var all sync.WaitGroup
	defer all.Wait()
	for range together { // which wait more than they work
		all.Go(func() {
			for of := range seeds {
				t.Run(fmt.Sprintf("%016x", of), func(t *testing.T) { history(t, rand.New(rand.NewPCG(of, 0))) })
			}
		})
	}
}

// history is one of TestHistories.
func history(t *testing.T, random *rand.Rand) {
	f := newFleet(t)
	f.reserve()
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 1h}}", f.feed("203.0.113.1"))
	f.start(lists)
	var hosts []*host
	for i := range 3 {
		hosts = append(hosts, f.host(fmt.Sprintf("edge-%d", i)))
	}
	const always = "192.0.2.1"
	f.change(block(always))
	f.converged(hosts)
	for _, h := range hosts {
		h.keep(always)
	}
	var steps []string
	defer func() {
		if t.Failed() {
			t.Log("steps:\n" + strings.Join(steps, "\n"))
		}
	}()
	step := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	copies := 0
	take := func() {
		f.copyOf("hub", fmt.Sprintf("copies/%d/hub", copies))
		f.copyOf("broker", fmt.Sprintf("copies/%d/broker", copies))
		copies++
	}
	change := func() {
		c := block(fmt.Sprintf("198.51.100.%d", random.IntN(8)))
		c.Remove = random.IntN(3) == 0
		if !c.Remove && random.IntN(3) == 0 {
			c.TTL = 3600 * float64(1+random.IntN(3))
		}
		if random.IntN(3) == 0 {
			c.List = "drop"
		}
		step("change %s %s remove=%v ttl=%v", c.List, c.Entries[0], c.Remove, c.TTL)
		f.change(c)
	}
	take()
	for range 2 + random.IntN(4) {
		for range random.IntN(5) {
			change()
		}
		if random.IntN(2) == 0 {
			f.converged(hosts)
		}
		if random.IntN(4) == 0 {
			step("a copy of the running hub")
			take()
		}
		running := random.IntN(2) == 0
		if running { // as kill -9 would leave it
			step("kill")
			f.copyOf("hub", "killed/hub")
			f.copyOf("broker", "killed/broker")
		}
		f.stop()
		if running {
			f.copyOf("killed/hub", "hub")
			f.copyOf("killed/broker", "broker")
		}
		if random.IntN(2) == 0 {
			step("a copy")
			take()
		}
		for i, h := range hosts {
			if random.IntN(4) == 0 {
				step("%s starts anew", h.name)
				h.stop()
				hosts[i] = f.again(h)
			}
		}
		from := random.IntN(copies)
		switch what := random.IntN(6); what {
		case 0, 1:
			step("restore state and stream of copy %d", from)
			f.copyOf(fmt.Sprintf("copies/%d/hub", from), "hub")
			f.copyOf(fmt.Sprintf("copies/%d/broker", from), "broker")
		case 2:
			step("restore the state of copy %d", from)
			f.copyOf(fmt.Sprintf("copies/%d/hub", from), "hub")
		case 3:
			step("restore the state of copy %d without a stream", from)
			f.copyOf(fmt.Sprintf("copies/%d/hub", from), "hub")
			f.lose("broker")
		case 4:
			step("the stream is lost")
			f.lose("broker")
		}
		if random.IntN(3) == 0 {
			f.clock += time.Duration(random.IntN(48)-12) * time.Hour
			step("the clock is %v ahead", f.clock)
		}
		step("start")
		f.start(lists)
		honest := f.honest()
		for range random.IntN(4) {
			change()
		}
		f.converged(hosts)
		honest()
	}
	for _, h := range hosts {
		if h.lost() != "" {
			t.Errorf("%s did not have %s: %s", h.name, always, h.lost())
		}
	}
	if s, err := f.hub.Fleet(t.Context()); err != nil || strings.Contains(strings.Join(s.Problems, ""), "entries are not those") {
		t.Errorf("%q, %v", s.Problems, err)
	}
}

// lose removes a directory of the fleet.
func (f *fleet) lose(name string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}
