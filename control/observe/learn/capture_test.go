package learn

import (
	"fmt"
	"math"
	"testing"
	"time"

	"weir/control/capture"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
	frame "weir/filter/packet"
	"weir/tests/data"
	"weir/tests/long"
	"weir/tests/seed"
)

// On captures of real traffic: weights that were learned from the first half prevent most of
// the mistakes in the second half, in which learning goes on, against a filter of as much memory
// without weights. As many are predicted as sources are new there: each that the filter passes
// is dropped once. Where all packets have sources of their own, weights win nothing and lose
// next to nothing.
func TestCaptures(t *testing.T) {
	long.Seconds(t)
	r := seed.New(t)
	for name, least := range map[string]float64{
		"mix-dev.pcap.zst":                 30,
		"tls2.pcap.gz":                     30,
		"sanitized4k.pcap.gz":              3,
		"pkt.TCP.synflood.spoofed.pcap.gz": 1 / 1.02,
	} {
		t.Run(name, func(t *testing.T) {
			packets := packetsOf(t, name)
			half := len(packets) / 2
			known := make(map[key.Key]bool)
			fresh := 0 // sources with their first packet in the second half
			for i, k := range packets {
				if !known[k] && i >= half {
					fresh++
				}
				known[k] = true
			}
			s, _ := newSet(t, 0, 20_000, 10, 1)
			rate := s.FalsePositiveRate(s.Len())
			predicted := rate * float64(fresh) / float64(len(packets)-half)
			sets := max(60, int(250/(rate*float64(fresh+1)))+1) // for 250 mistakes or so
			var with, without float64
			for range min(sets, 3000) {
				s, _ := newSet(t, r.Uint64(), 20_000, 10, 1)
				l := New(Config{})
				follow(t, l, s, 0)
				// Sources that pass, once for each: a packet of others changes nothing.
				passes := make(map[key.Key]bool)
				for k := range known {
					if s.Passes(k) {
						passes[k] = true
					}
				}
				for i, k := range packets {
					if !passes[k] {
						continue
					}
					if i >= half {
						without++
					}
					if !dropped(s, k) {
						continue
					}
					if i >= half {
						with++
					}
					mistake(t, l, k, 1, time.Duration(i)*time.Millisecond)
				}
			}
			n := float64(min(sets, 3000) * (len(packets) - half))
			with, without = with/n, without/n
			// Of ten million entries, the table would have 0.02 % of the memory.
			lines := uint32(10_000_000*10/fpr.LineBits) + 1
			cost := fpr.BestCascade(10_000_000, lines, fpr.MaxFurther).Rate(10_000_000) /
				fpr.BestCascade(10_000_000, lines+s.HotBuckets, fpr.MaxFurther).Rate(10_000_000)
			t.Logf("%d packets of %d sources, %d of them new in the second half; dropped by mistake without weights %.3g (planned %.3g), with them %.3g (predicted %.3g): %.1f times fewer than planned at equal memory",
				len(packets), len(known), fresh, without, rate, with, predicted, rate/with/cost)
			won := without / with / cost
			if least > 1 {
				won = rate / with / cost // few sources send most of the packets: those that pass by chance decide what is counted
			}
			if won < least {
				t.Errorf("%.2f times fewer, want %v", won, least)
			}
			if off := with / predicted; math.Abs(off-1) > 0.2 {
				t.Errorf("predicted %.4g, counted %.4g", predicted, with)
			}
		})
	}
}

// packetsOf returns the source of each packet of a capture: of IPv6 one of IPv4 that stands for
// it.
func packetsOf(t *testing.T, name string) (packets []key.Key) {
	t.Helper()
	numbers := make(map[string]int)
	data.Captures(t, func(path string, r *capture.Reader) {
		if path != "pcap/"+name {
			return
		}
		for p, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			parsed, _ := frame.Parse(p.Data)
			if !parsed.Src.IsValid() {
				continue
			}
			id := fmt.Sprint(parsed.Src)
			if _, ok := numbers[id]; !ok {
				numbers[id] = int(hash.Nth(uint64(len(numbers)), 0) >> 33)
			}
			packets = append(packets, source(numbers[id]))
		}
	})
	if packets == nil {
		t.Skipf("no capture %s", name)
	}
	return packets
}
