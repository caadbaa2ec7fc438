package netns

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/observe/heavy"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// flooders sends from 50 sources at known, constant rates.
type flooders struct {
	sources []netip.Addr
	rates   []float64 // packets a second
	sent    []atomic.Uint64
	done    atomic.Bool
	ended   chan struct{}
}

// startFlooders begins to send to a UDP port.
func startFlooders(t *testing.T, l *lab.Lab, port uint16) *flooders {
	t.Helper()
	const n = 50
	f := &flooders{sent: make([]atomic.Uint64, n), ended: make(chan struct{})}
	var frames [][]byte
	for i := range n {
		src := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		f.sources, f.rates = append(f.sources, src), append(f.rates, float64(40+8*i))
		frames = append(frames, frameOf(key.Tuple{Src: src, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: port}))
	}
	tx := l.A.Sender(t)
	go func() {
		defer close(f.ended)
		for began := time.Now(); !f.done.Load(); time.Sleep(time.Millisecond) {
			for i, frame := range frames {
				for float64(f.sent[i].Load()) < time.Since(began).Seconds()*f.rates[i] {
					if err := tx.Send(frame); err != nil {
						t.Error(err)
						return
					}
					f.sent[i].Add(1)
				}
			}
		}
	}()
	t.Cleanup(f.stop)
	return f
}

func (f *flooders) stop() {
	f.done.Store(true)
	<-f.ended
}

// of returns a source's number.
func (f *flooders) of(t *testing.T, source string) int {
	t.Helper()
	i := slices.Index(f.sources, netip.MustParseAddr(source))
	if i < 0 {
		t.Fatalf("%s sends nothing", source)
	}
	return i
}

// A flood from 50 sources at known rates, half of them listed: the rates of the top
// 20 and more are right, below and above the threshold, what is dropped is apart, and
// drops names sources, entries, lists and reasons. Failsafe packets are counted, too.
func TestTopOfAFlood(t *testing.T) {
	lab.Root(t)
	for _, test := range []struct {
		name    string
		monitor bool
		port    uint16 // 53 is a failsafe one
	}{{"enforced", false, 9}, {"monitored", true, 9}, {"failsafe", false, 53}} {
		t.Run(test.name, func(t *testing.T) {
			l := lab.New(t)
			c := configuration(t, target(l.B))
			c.Monitor = test.monitor
			c.Failsafe.Ports = []verdict.FailsafePort{{Proto: 17, Port: 53}}
			c.Trackers = nil
			for _, text := range []string{"key=src,threshold=300pps", "key=flow,threshold=10kpps"} {
				spec, err := heavy.Parse(text)
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
			f := startFlooders(t, l, test.port)
			time.Sleep(3 * time.Second) // the first interval estimates
			const looks = 6
			sums, dropped := make([]float64, len(f.sources)), make([]float64, len(f.sources))
			for range looks {
				time.Sleep(time.Second)
				top := d.Top()
				if top == nil || len(top.Trackers) != 2 || len(top.Trackers[0].Flows) != len(f.sources) {
					t.Fatalf("weir top would show %+v", top)
				}
				for n, flow := range top.Trackers[0].Flows {
					i := f.of(t, flow.Key)
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
					list, _ := listed(f.of(t, src))
					if flow.Dropped == nil || (*flow.Dropped > 0) != (list != "") {
						t.Errorf("flow %+v of list %q", flow, list)
					}
				}
				if top.Monitor != test.monitor {
					t.Errorf("monitor is %t", top.Monitor)
				}
			}
			above := 0
			for i, rate := range f.rates {
				if got := sums[i] / looks; math.Abs(got-rate) > rate/10 {
					t.Errorf("%v sends %.0f packets a second, and %.0f are shown", f.sources[i], rate, got)
				}
				want := 0.0
				if list, _ := listed(i); list != "" {
					want = rate
				}
				if got := dropped[i] / looks; math.Abs(got-want) > rate/10 {
					t.Errorf("of %v, %.0f packets a second are shown as dropped, want %.0f", f.sources[i], got, want)
				}
				if rate > 300 {
					above++
				}
			}
			if above == 0 || above == len(f.rates) {
				t.Fatalf("%d above the threshold", above)
			}
			f.stop()
			time.Sleep(2500 * time.Millisecond) // until the last interval is over
			want := map[string]map[string]uint64{}
			for i := range f.sources {
				list, entry := listed(i)
				if list == "" {
					continue
				}
				for by, k := range map[string]string{
					api.BySource: f.sources[i].String(), api.ByEntry: entry, api.ByList: list, api.ByReason: verdict.Blocked.String(),
				} {
					if want[by] == nil {
						want[by] = map[string]uint64{}
					}
					want[by][k] += f.sent[i].Load()
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
