package faults

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/long"
	"weir/tests/seed"
)

// Pins are removed, or their file system is mounted anew, at random moments of starts with all that keeps state in
// the kernel, after the daemon was killed or stopped. Each start succeeds, pins everything again and filters; where
// listed packets passed, its log says that the program was gone, or that pins were lost. In monitor mode, which a
// command has switched on before, it drops nothing.
func TestPinsVanishInStarts(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	random := seed.New(t)
	g, dir := ownPins(t)
	g.interfaces = strings.Replace(g.interfaces, "egress: true}", "egress: true, police: 10Gbit/s}", 1)
	g.configure("lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n10.0.0.3\n") + `}]}, ours: {action: allow, entries: [10.0.0.3]}}
replies: pass
inner: true
collateral: {sources: 1024}
first_seen: {key: flow, memory: 64KiB}
trackers: [{key: src, threshold: 50kpps, action: limit}, {key: dst, threshold: 10Mbit/s}]
scans: [{key: src, distinct: ports, threshold: 64, window: 10s}]
`)
	d := g.begin()
	s := g.stream("10.0.0.1", "10.0.0.2")
	s.lossy = true
	names := sorted(g.allPins())
	took := time.Second
	var removed, remounted, rounds, gaps, monitored int
	for range long.Rounds(4, 8, 100) {
		monitor := random.IntN(4) == 0
		if monitor {
			monitored++
			g.ask(0, "monitor", "on", "--for", "1h")
		}
		was := s.passed.Load()
		if random.IntN(2) == 0 {
			d.kill()
		} else {
			d.stop()
		}
		d = g.run("weir")
		began := time.Now()
		d.start()
		time.Sleep(rand.N(took))
		var err error
		if random.IntN(2) == 0 {
			removed++
			err = os.RemoveAll(g.pins)
		} else {
			remounted++
			d.signal(syscall.SIGSTOP) // here it cannot mount one itself, as it does at the usual place
			err = unix.Unmount(dir, unix.MNT_DETACH)
			g.mountPins(dir)
			d.signal(syscall.SIGCONT)
		}
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) { // a pin came meanwhile
			t.Fatal(err)
		}
		d.filtering()
		took = time.Since(began)
		g.answers()
		g.again(names)
		rounds++
		if monitor {
			g.filters("in monitor mode", nil, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"})
			g.ask(0, "monitor", "off")
		}
		g.filters("after a start", []string{"10.0.0.1"}, []string{"10.0.0.2", "10.0.0.3"})
		if n := s.passed.Load() - was; n > 0 && !monitor {
			gaps++
			text := strings.Join(d.log(), "\n")
			t.Logf("%d listed packets passed in a start of %v", n, took)
			if !strings.Contains(text, "attached anew") && !strings.Contains(text, "the program of the last daemon was gone") {
				t.Errorf("%d listed packets passed, and the log does not say why:\n%s", n, text)
			}
		}
	}
	d.stop()
	s.end()
	t.Logf("%d starts, %d in monitor mode, pins removed in %d and mounted anew in %d: listed packets passed in %d of the others", rounds, monitored, removed, remounted, gaps)
}
