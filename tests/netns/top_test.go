package netns

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/timed"
	"weir/tests/wait"
)

// A flood from 50 sources at known rates, half of them listed: the rates of the top
// 20 and more are right, below and above the threshold, what is dropped is apart, and
// drops names sources, entries, lists and reasons. Failsafe packets are counted, too.
func TestTopOfAFlood(t *testing.T) {
	lab.Root(t)
	timed.Alone(t)
	t.Parallel() // it waits most of the time
	for _, test := range []struct {
		name    string
		monitor bool
		port    uint16 // 53 is a failsafe one
	}{{"enforced", false, 9}, {"monitored", true, 9}, {"failsafe", false, 53}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := lab.New(t)
			c := configuration(t, target(l.B))
			c.Monitor = test.monitor
			c.Failsafe.Ports = []verdict.FailsafePort{{Proto: 17, Port: 53}}
			c.Trackers = nil
			for _, text := range []string{"key=src,threshold=300pps", "key=flow,threshold=10kpps"} {
				spec, err := tracker.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				c.Trackers = append(c.Trackers, spec)
			}
			addList(t, c, config.Block, "scanners.txt", "198.51.100.0/28\n")
			addList(t, c, config.Block, "bots.txt", "198.51.100.30\n198.51.100.31\n198.51.100.47\n")
			listed := func(i int) (list, entry string) {
				switch {
				case test.port == 53:
				case i < 16:
					return "scanners", "198.51.100.0/28"
				case i == 30 || i == 31 || i == 47:
					return "bots", fmt.Sprintf("198.51.100.%d", i)
				}
				return "", ""
			}
			d := serve(t, c)
			f := l.A.StartFlood(t, 1, func(src netip.Addr) []byte {
				return frameOf(key.Tuple{Src: src, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: test.port})
			})
			time.Sleep(3 * time.Second) // the first interval estimates
			looks := long.Or(2, 6)
			sums, dropped := make([]float64, len(f.Sources)), make([]float64, len(f.Sources))
			for range looks {
				time.Sleep(time.Second)
				top := d.Top()
				if top == nil || len(top.Trackers) != 2 || len(top.Trackers[0].Flows) != len(f.Sources) {
					t.Fatalf("weir top would show %+v", top)
				}
				for n, flow := range top.Trackers[0].Flows {
					i := f.Index(t, flow.Key)
					sums[i] += flow.Packets
					if flow.Dropped == nil {
						t.Fatalf("it is unknown how much of %+v is dropped", flow)
					}
					dropped[i] += *flow.Dropped
					if flow.LeastPackets > flow.Packets || flow.Estimate != (flow.LeastPackets < flow.Packets) {
						t.Errorf("bounds of %+v", flow)
					}
					if list, _ := listed(i); list != "" && !slices.Equal(flow.Lists, []string{list}) {
						t.Errorf("source %d, of list %s: %+v", n, list, flow)
					}
				}
				for _, flow := range top.Trackers[1].Flows {
					src, _, _ := strings.Cut(strings.TrimPrefix(flow.Key, "udp "), ":")
					list, _ := listed(f.Index(t, src))
					if flow.Dropped == nil || (*flow.Dropped > 0) != (list != "") {
						t.Errorf("flow %+v of list %q", flow, list)
					}
				}
				if top.Monitor != test.monitor {
					t.Errorf("monitor is %t", top.Monitor)
				}
			}
			above := 0
			for i, rate := range f.Rates {
				if got := sums[i] / float64(looks); math.Abs(got-rate) > rate/10 {
					t.Errorf("%v sends %.0f packets a second, and %.0f are shown", f.Sources[i], rate, got)
				}
				want := 0.0
				if list, _ := listed(i); list != "" {
					want = rate
				}
				if got := dropped[i] / float64(looks); math.Abs(got-want) > rate/10 {
					t.Errorf("of %v, %.0f packets a second are shown as dropped, want %.0f", f.Sources[i], got, want)
				}
				if rate > 300 {
					above++
				}
			}
			if above == 0 || above == len(f.Rates) {
				t.Fatalf("%d above the threshold", above)
			}
			f.Stop()
			time.Sleep(2500 * time.Millisecond) // until the last interval is over
			want := map[string]map[string]uint64{}
			for i := range f.Sources {
				list, entry := listed(i)
				if list == "" {
					continue
				}
				for by, k := range map[string]string{
					api.BySource: f.Sources[i].String(), api.ByEntry: entry, api.ByList: list, api.ByReason: verdict.Blocked.String(),
				} {
					if want[by] == nil {
						want[by] = map[string]uint64{}
					}
					want[by][k] += f.Sent(i)
				}
			}
			for _, by := range []string{api.BySource, api.ByEntry, api.ByList, api.ByReason} {
				got, err := d.Drops(t.Context(), api.DropsQuestion{By: by, Last: time.Hour, Limit: 100})
				if err != nil {
					t.Fatal(err)
				}
				if got.Monitor != test.monitor || len(got.Drops) != len(want[by]) {
					t.Errorf("by %s: %+v, want %v", by, got, want[by])
				}
				for _, row := range got.Drops {
					if n := want[by][row.Key]; math.Abs(float64(row.Packets)-float64(n)) > float64(n)/10 {
						t.Errorf("by %s: %+v, want %d packets", by, row, n)
					}
				}
			}
		})
	}
}

// In a flood of forged sources the host's own clients are above the threshold, and the largest.
// weir says that none stands out, and about how many sources there are.
func TestForgedFlood(t *testing.T) {
	lab.Root(t)
	t.Parallel() // it waits most of the time
	l := lab.New(t)
	c := configuration(t, target(l.B))
	spec, err := tracker.Parse("key=src,threshold=1%")
	if err != nil {
		t.Fatal(err)
	}
	c.Trackers = []tracker.Spec{spec}
	d := serve(t, c)
	const clients = 4
	tx := l.A.Sender(t)
	random := seed.New(t)
	send := func(src netip.Addr, sport uint16) {
		if err := tx.SendAll(frameOf(key.Tuple{Src: src, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 6, HasPorts: true, SrcPort: sport, DstPort: 443})); err != nil {
			t.Fatal(err)
		}
	}
	wait.For(t, "none stands out", func() bool {
		for i := range 5 * clients { // five percent each; below 100 packets a second none is heavy
			send(netip.AddrFrom4([4]byte{192, 0, 2, byte(i % clients)}), 4000)
		}
		for range 20 * clients {
			n := random.Uint32()
			send(netip.AddrFrom4([4]byte{byte(1 + n>>24%100), byte(n >> 16), byte(n >> 8), byte(n)}), uint16(n))
		}
		top := d.Top()
		return top != nil && len(top.Trackers) == 1 && top.Trackers[0].Heavy >= clients && top.Trackers[0].Scattered() != ""
	})
	// Nearly each forged packet is of another source.
	of := d.Top().Trackers[0]
	if forged := 0.8 * of.Packets * of.Interval; of.Spread < forged/2 || of.Spread > 2*forged {
		t.Errorf("about %.0f sources, of %.0f forged packets", of.Spread, forged)
	}
}
