package daemon

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir/control/config"
	"weir/control/metrics"
	"weir/control/quantity"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/recent"
	"weir/filter/sfb"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// grows returns the counters of a snapshot that grow by the number of packets of new flows
// of a listed source, by name.
func grows(s metrics.Snapshot) map[string]uint64 {
	all := make(map[string]uint64)
	for _, i := range s.Interfaces {
		for _, c := range i.Counts {
			all["packets"] += c.Packets
		}
		for _, c := range i.Stages {
			if c.Name == "weir_policed_packets_total" && c.Of == "passed" {
				all["policed"] = uint64(c.Value)
			}
			if c.Name == "weir_first_seen_flows_total" {
				all["first seen"] += uint64(c.Value)
			}
		}
	}
	for _, c := range s.Hits {
		all["hits"] += c.Packets
	}
	for _, c := range s.Stages {
		if c.Name == "weir_digest_packets_total" {
			all["digests"] += uint64(c.Value)
		}
	}
	return all
}

// Counters go on through reloads that give programs other memory to count in.
func TestCountersGoOnInOtherMemory(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	r.change(func(c *config.Config) {
		p := &c.Interfaces[0].Police
		p.SetDefaults()
		p.Rate = quantity.Rate{Value: sfb.MaxPacketRate / 8, Unit: quantity.Packets}
		c.FirstSeen.SetDefaults()
		c.FirstSeen.Key = "dst"
		c.Trackers, c.Scans = []tracker.Spec{tracker.DefaultSpec("src")}, []tracker.Scan{tracker.DefaultScan("src")}
		c.Digest.SetDefaults()
		c.Digest.Rate = quantity.Rate{Value: 1000, Unit: quantity.Packets}
	})
	d := begin(t, r)
	var network uint16
	flows := func(n uint64, source string) {
		for range n {
			network++
			dst := netip.AddrFrom4([4]byte{203, 0, byte(network >> 8), byte(network)})
			sendFrame(t, l, 1, packet.Frame(key.Tuple{Src: netip.MustParseAddr(source), Dst: dst, Proto: 17, HasPorts: true, SrcPort: network, DstPort: 53}))
		}
	}
	// Of each source, new flows.
	phase := func(name string, n uint64) {
		t.Helper()
		before := grows(d.readings.Metrics())
		flows(n, firstSource)
		flows(n, cleanSource)
		want := map[string]uint64{"packets": 2 * n, "policed": n, "first seen": 2 * n, "hits": n, "digests": n}
		const others = 10 // packets that the kernel sends
		var now map[string]uint64
		met := func() bool {
			now = grows(d.readings.Metrics())
			for counter, n := range want {
				if grown := now[counter] - before[counter]; grown < n || grown > n+others {
					return false
				}
			}
			return true
		}
		for deadline := wait.Deadline(); !met(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v, before %v, want growth %v", name, now, before, want)
			}
		}
	}
	for _, setting := range []struct {
		name   string
		change func(*config.Config)
	}{
		{"first_seen.key", func(c *config.Config) { c.FirstSeen.Key = "flow" }},
		{"first_seen.memory", func(c *config.Config) { c.FirstSeen.Memory *= 2 }},
		{"police.rate", func(c *config.Config) { c.Interfaces[0].Police.Rate.Value *= 2 }},
		{"police.depth", func(c *config.Config) { c.Interfaces[0].Police.Depth *= 2 }},
		{"police.rehash", func(c *config.Config) { c.Interfaces[0].Police.Rehash *= 2 }},
		{"police.key", func(c *config.Config) { c.Interfaces[0].Police.Key = "src" }},
		{"police.controller", func(c *config.Config) { c.Interfaces[0].Police.Controller = sfb.Bucket }},
		{"trackers.memory", func(c *config.Config) { c.Trackers[0].Memory *= 2 }},
		{"another tracker", func(c *config.Config) { c.Trackers = append(c.Trackers, tracker.DefaultSpec("dst")) }},
		{"antiLockout.memory", func(c *config.Config) { c.Scans[0].Memory *= 2 }},
		{"no scans", func(c *config.Config) { c.Scans = nil }},
		{"digest.rate", func(c *config.Config) { c.Digest.Rate.Value *= 4 }},
		{"inner", func(c *config.Config) { c.Inner = true }},
		{"more lists than there are counters for", func(c *config.Config) {
			for i := range 70 {
				if _, err := c.AddFile(feedFile(t, fmt.Sprintf("list%d.txt", i), fmt.Sprintf("192.0.2.%d\n", i)), config.Block); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"first_seen.filter", func(c *config.Config) { c.FirstSeen.Filter = recent.Stable; c.FirstSeen.Memory *= 2 }},
	} {
		phase("before "+setting.name, 60)
		r.change(setting.change)
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatalf("%s: %v", setting.name, err)
		}
		phase("after "+setting.name, 20)
	}
}
