package learn

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"weir/control/capture"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	frame "weir/filter/packet"
	"weir/tests/data"
	"weir/tests/long"
	"weir/tests/seed"
)

// delays are from the first packet that is dropped of a source to its weight: of a learner that
// looks between two packets, at the median of an idle host, and on a busy one.
var delays = [3]time.Duration{0, 4 * time.Millisecond, 150 * time.Millisecond}

// On captures of real traffic: weights that were learned from the first half prevent most of
// the mistakes in the second half, in which learning goes on, against a filter of as much memory
// without weights. The packets of a source that the filter passes are dropped until it has its
// weight, which are as many as predicted by the captures' own times. Where all packets have
// sources of their own, weights win nothing and lose next to nothing.
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
			sources, packets := packetsOf(t, name)
			half := len(packets) / 2
			delays := delays[:]
			if packets[len(packets)-1].at == 0 {
				delays = delays[:1] // the capture has no times
			}
			first := make([]time.Duration, len(sources))
			for i := range first {
				first[i] = -1
			}
			// Packets of the second half of each source before a delay has passed, the first one always.
			early := make([][3]float64, len(sources))
			var fresh, all, with [3]float64
			for i, p := range packets {
				for j, delay := range delays {
					if i >= half && (first[p.source] < 0 || p.at < first[p.source]+delay) {
						early[p.source][j]++
					}
				}
				if first[p.source] < 0 {
					first[p.source] = p.at
				}
			}
			s, _ := newSet(t, 0, 20_000, 10, 1)
			rate := s.FalsePositiveRate(s.Len())
			sets := 60
			for j := range delays {
				var squares float64
				for _, e := range early {
					all[j] += e[j]
					squares += e[j] * e[j]
					if e[j] > 0 {
						fresh[j]++
					}
				}
				// Of which a standard deviation is 4 %: sources that are dropped bring all their early packets.
				sets = max(sets, int(squares/(all[j]*all[j])/(rate*0.04*0.04))+1)
			}
			var without float64
			for range sets {
				secret := r.Uint64()
				for j, delay := range delays {
					s, _ := newSet(t, secret, 20_000, 10, 1)
					lost, all := replay(t, s, sources, packets, half, delay)
					with[j] += lost
					if j == 0 {
						without += all
					}
				}
			}
			n := float64(sets * (len(packets) - half))
			without /= n
			// Of ten million entries, the table would have 0.02 % of the memory.
			lines := uint32(10_000_000*10/fpr.LineBits) + 1
			cost := fpr.BestCascade(10_000_000, lines, fpr.MaxFurther).Rate(10_000_000) /
				fpr.BestCascade(10_000_000, lines+s.HotBuckets, fpr.MaxFurther).Rate(10_000_000)
			t.Logf("%d packets in %v, of %d sources, %g of them new in the second half; %d filters; dropped by mistake without weights %.3g (planned %.3g)",
				len(packets), packets[len(packets)-1].at, len(sources), fresh[0], sets, without, rate)
			for j, delay := range delays {
				counted, predicted := with[j]/n, rate*all[j]/float64(len(packets)-half)
				t.Logf("weights after %v: predicted %.3g, counted %.3g, %.1f times fewer than planned at equal memory; %.1f packets of a source before its weight",
					delay, predicted, counted, rate/counted/cost, all[j]/fresh[j])
				if off := counted / predicted; math.Abs(off-1) > 0.15 {
					t.Errorf("after %v: predicted %.4g, counted %.4g", delay, predicted, counted)
				}
			}
			won := without / (with[0] / n) / cost
			if least > 1 {
				won = rate / (with[0] / n) / cost // few sources send most of the packets: those that pass by chance decide what is counted
			}
			if won < least {
				t.Errorf("%.2f times fewer, want %v", won, least)
			}
		})
	}
}

// replay returns how many packets of the second half of a capture a set drops, each source of
// which has its weight a delay after its first packet that was dropped, and how many without
// weights.
func replay(t *testing.T, s *membership.Set, sources []key.Key, packets []arrival, half int, delay time.Duration) (lost, without float64) {
	t.Helper()
	l := New(Config{})
	follow(t, l, s, 0)
	passes := make([]bool, len(sources)) // a packet of others changes nothing
	for i, k := range sources {
		passes[i] = s.Passes(k)
	}
	var waiting []arrival // sources that were dropped, when they are due
	for i, p := range packets {
		for len(waiting) > 0 && waiting[0].at <= p.at {
			mistake(t, l, sources[waiting[0].source], 1, waiting[0].at)
			waiting = waiting[1:]
		}
		if !passes[p.source] {
			continue
		}
		if i >= half {
			without++
		}
		if !dropped(s, sources[p.source]) {
			continue
		}
		if i >= half {
			lost++
		}
		waiting = append(waiting, arrival{p.source, p.at + delay})
	}
	return lost, without
}

// arrival is a packet of a capture.
type arrival struct {
	source int           // which of the capture
	at     time.Duration // since the first packet, and not before the packet in front
}

// packetsOf returns the sources of a capture, and its packets: of IPv6, a source is one of IPv4
// that stands for it.
func packetsOf(t *testing.T, name string) (sources []key.Key, packets []arrival) {
	t.Helper()
	numbers := make(map[netip.Addr]int)
	data.Captures(t, func(path string, r *capture.Reader) {
		if path != "pcap/"+name {
			return
		}
		var began time.Time
		var at time.Duration
		for p, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			if began.IsZero() {
				began = p.Time
			}
			at = max(at, p.Time.Sub(began))
			parsed, _ := frame.Parse(p.Data)
			if !parsed.Src.IsValid() {
				continue
			}
			n, ok := numbers[parsed.Src]
			if !ok {
				n = len(sources)
				numbers[parsed.Src] = n
				sources = append(sources, source(int(hash.Nth(uint64(n), 0)>>33)))
			}
			packets = append(packets, arrival{n, at})
		}
	})
	if packets == nil {
		t.Skipf("no capture %s", name)
	}
	return sources, packets
}
