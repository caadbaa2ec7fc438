package netns

import (
	"errors"
	"net"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/stage/connections"
	"weir/filter/conntrack"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/pins"
	"weir/tests/timed"
	"weir/tests/wait"
)

// What filtering outgoing packets costs a local TCP stream over veth, which hands down
// buffers of up to 64 KiB: with 100,000 entries, and with connections remembered. The
// stream runs with and without the program by turns, and each run is compared with its neighbours. It is
// of the CPU's time for a byte, which limits the stream and which other processes take less
// part in: both ends are in this process.
func TestEgressCost(t *testing.T) {
	long.Only(t, "a quarter of a minute on an idle machine")
	timed.Alone(t)
	const (
		pairs    = 25
		interval = 100 * time.Millisecond
		most     = 0.15 // the bar is 0.03, for an idle machine
	)
	l := lab.New(t)
	for e, a := range map[string]lab.End{"198.51.100.1/24": l.A, "198.51.100.2/24": l.B} {
		if out, err := exec.Command("ip", "-n", a.Netns, "addr", "add", e, "dev", a.Iface).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	var listener net.Listener
	var err error
	l.B.In(t, func() { listener, err = net.Listen("tcp4", "198.51.100.2:7") })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var received atomic.Uint64
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for b := make([]byte, 1<<18); ; {
					n, err := c.Read(b)
					received.Add(uint64(n))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	var e list.Entries
	for i := range 100_000 {
		e.V4 = append(e.V4, list.V4(10<<24+uint32(i), 32))
	}
	lists := []engine.List{{Name: "c2", Direction: engine.Out, Contents: e.Set()}}
	known, err := connections.NewKnown(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	for _, c := range []struct {
		name   string
		config engine.Config
	}{
		{"egress", engine.Config{Outgoing: true}},
		{"egress, replies pass", engine.Config{Outgoing: true, Shared: known.Shared, Parts: []engine.Part{&connections.RepliesPart{Replies: &conntrack.Replies{
			Opening: time.Minute, Established: time.Hour, UDP: time.Minute, Ephemeral: 32768,
		}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := build(t, lists, c.config)
			to := target(l.A)
			to.Out = true
			d := pins.New(t)
			filter := func() *loader.Attachment {
				a, err := pins.Attach(d, to, hooks.TC, nil, g.Out().Load)
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			first := filter() // knows the connection that is made now
			var conn net.Conn
			l.A.In(t, func() { conn, err = net.DialTimeout("tcp4", "198.51.100.2:7", wait.Patience) })
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() {
				for b := make([]byte, 1<<18); ; {
					if _, err := conn.Write(b); err != nil {
						return
					}
				}
			}()
			rate := func() (perSecond, perByte float64) {
				time.Sleep(interval / 5) // until it is steady
				began, from, spent := time.Now(), received.Load(), timed.Process(t)
				time.Sleep(interval)
				n := float64(received.Load() - from)
				return n / time.Since(began).Seconds(), float64(timed.Process(t)-spent) / n
			}
			off := func(a *loader.Attachment) {
				if err := errors.Join(a.Detach(), a.Close()); err != nil {
					t.Fatal(err)
				}
			}
			off(first)
			var ratios, rates []float64
			for i := range pairs {
				var with, without, perSecond float64
				for turn := range 2 {
					if (turn == 0) == (i%2 == 0) {
						a := filter()
						_, with = rate()
						if n := a.Stats().Reasons(nil)[verdict.Clean]; n.Packets == 0 || n.Bytes/n.Packets < 2000 { // segments are cut later
							t.Fatalf("%+v: not what is to be measured", n)
						}
						off(a)
					} else {
						perSecond, without = rate()
					}
				}
				ratios, rates = append(ratios, with/without), append(rates, perSecond)
			}
			slices.Sort(ratios)
			slices.Sort(rates)
			cost := ratios[pairs/2] - 1
			t.Logf("%.1f Gbit/s without; the median of %d ratios is %.3f (quartiles %.3f and %.3f): a cost of %.1f%%",
				rates[pairs/2]*8/1e9, pairs, ratios[pairs/2], ratios[pairs/4], ratios[3*pairs/4], 100*cost)
			// Where a quarter of the ratios show half of that or less, the machine decides nothing.
			if least := ratios[pairs/4] - 1; cost > most && least > most/2 {
				t.Errorf("a cost of %.1f%%, want %.0f%% at most", 100*cost, 100*most)
			}
		})
	}
}
