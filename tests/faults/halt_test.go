package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// A daemon stops at a random instant between the exchange of a program in the kernel and the last pin of the maps
// and programs that it uses, in a start or a reload; then it goes on, or is killed. Listed packets are dropped all
// the time. Afterwards there are the pins that there are otherwise, and no packet is missing from the counters.
func TestHaltsAmongPins(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	random := seed.New(t)
	binary, err := spoilt()
	if err != nil {
		t.Fatal(err)
	}
	g, _ := ownPins(t)
	feed := g.file("feed", "10.0.0.1\n")
	// Programs use other memory in the other configuration.
	larger := 0
	configure := func() {
		larger = 1 - larger
		var more strings.Builder
		for i := range 70 * larger {
			fmt.Fprintf(&more, "  more%d: {}\n", i)
		}
		g.interfaces = fmt.Sprintf(`[{name: %s, netns: %s, egress: true, police: %dGbit/s}, {name: lo, netns: %s, hook: tc, egress: true}]`,
			g.B.Iface, g.B.Netns, 50<<larger, g.B.Netns)
		g.configure(fmt.Sprintf(`lists:
  feed: {sources: [{file: %s}]}
%sreplies: {action: pass, connections: %d}
collateral: {sources: %d}
first_seen: {key: flow, memory: %dKiB}
trackers: [{key: src, threshold: 50kpps, memory: %dKiB, action: limit}]
scans: [{key: src, distinct: ports, threshold: 64, memory: %dKiB}]
`, feed, &more, 1024<<larger, 1024<<larger, 64<<larger, 64<<larger, 256<<larger))
	}
	halts := filepath.Join(g.dir, "halts")
	arm := func(n int) { must.Write(t, halts, strconv.Itoa(n)) }
	armed := func() int {
		text, err := os.ReadFile(halts)
		n, bad := strconv.Atoi(string(text))
		if err := errors.Join(err, bad); err != nil {
			t.Fatal(err)
		}
		return n
	}
	run := func() *daemon {
		d := g.run(binary)
		d.Env = append(os.Environ(), "HALTS="+halts)
		d.start()
		return d
	}

	configure()
	arm(0)
	d := run()
	d.filtering()
	g.answers()
	s := g.stream("10.0.0.1", "10.0.0.2")
	names := sorted(g.allPins())
	restart := func() *daemon {
		d.kill()
		configure()
		return run()
	}
	// reload returns what says whether it has succeeded.
	reload := func() chan error {
		configure()
		done := make(chan error, 1)
		go func() { done <- g.post("/v1/reload") }()
		return done
	}
	const many = 1 << 20
	arm(many)
	d = restart()
	d.filtering()
	g.answers()
	inStart := many - armed()
	arm(many)
	if err := <-reload(); err != nil {
		t.Fatal(err)
	}
	inReload := many - armed()
	t.Logf("%d pins are renamed in a start, %d in a reload", inStart, inReload)
	renames := min(inStart, inReload) // a start after counters have grown renames fewer
	if renames < 20 {
		t.Error("so few that the test sees little")
	}
	sent := uint64(0) // by filters
	filters := func(when string) {
		t.Helper()
		g.filters(when, []string{"10.0.0.1"}, []string{"10.0.0.2"})
		sent++
	}

	at := make(map[string]int)
	for round := range long.Rounds(6, 16, 400) {
		inReloads, killed := round%2 == 0, random.IntN(3) > 0
		var done chan error
		if inReloads {
			arm(1 + random.IntN(renames))
			done = reload()
		} else {
			d.kill()
			arm(1 + random.IntN(renames))
			d = restart()
		}
		d.read = 0
		d.wait("halts before a pin is renamed")
		g.until("it has stopped", func() bool { return d.stopped() })
		pin := d.log()[d.read-1]
		pin = strings.Trim(pin[strings.LastIndex(pin, "/")+1:], `"}`)
		at[pin]++
		when := fmt.Sprintf("round %d, stopped before %s, in a reload: %v", round, pin, inReloads)
		filters(when)
		was := s.sent.Load()
		g.until("packets come", func() bool { return s.sent.Load() > was+50 })
		if killed {
			d.kill()
			filters(when + ", killed")
			d = run()
			d.filtering()
			if n := d.count("counters go on"); n != 4 { // in and out, of two interfaces
				t.Errorf("%s: %d programs were adopted:\n%s", when, n, strings.Join(d.log(), "\n"))
			}
		} else {
			d.signal(syscall.SIGCONT)
			if inReloads {
				if err := <-done; err != nil {
					t.Error(when, err)
				}
			} else {
				d.filtering()
			}
		}
		g.answers()
		g.again(names)
		if now := sorted(g.allPins()); !slices.Equal(now, names) {
			t.Errorf("%s, killed: %v: pins %q, want %q", when, killed, now, names)
		}
		filters(when + ", after")
	}
	s.end()
	t.Logf("stopped before %v", at)
	lost := s.sent.Load() - s.clean.Load() // on the wire
	for name, came := range map[string]uint64{"blocked": s.sent.Load(), "clean": s.clean.Load()} {
		if n := g.metric("weir_packets_total", g.B.Iface, `direction="in"`, fmt.Sprintf("reason=%q", name)); uint64(n)+lost < came+sent {
			t.Errorf("%v packets are counted as %s, of %d", n, name, came+sent)
		}
	}
	if n := *g.list("feed").Packets; n+lost < s.sent.Load()+sent {
		t.Errorf("%d packets are counted for the list, of %d", n, s.sent.Load()+sent)
	}
	d.stop()
}

// post makes a request without contents, and fails unless it succeeds.
func (g *ground) post(path string) error {
	client := http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", g.socket) },
		DisableKeepAlives: true,
	}}
	r, err := client.Post("http://weir"+path, "application/json", bytes.NewReader(nil))
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if text, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", r.Status, text)
	}
	return nil
}

// stopped reports whether a signal has stopped the process.
func (d *daemon) stopped() bool {
	stat := must.Read(d.t, fmt.Sprintf("/proc/%d/stat", d.Process.Pid))
	return bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T"))
}
