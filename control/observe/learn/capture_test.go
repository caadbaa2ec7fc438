package learn

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"weir/control/capture"
	"weir/filter/hash"
	"weir/filter/key"
	frame "weir/filter/packet"
	"weir/tests/data"
)

// On captures of real traffic, weights for the hottest sources prevent most false
// positives, weighted by packets, and the rate is as predicted: the mean over filters
// under different secrets.
func TestCaptures(t *testing.T) {
	six := key.Shape{Fields: v6, SrcBits: 128}
	for name, c := range map[string]struct {
		hot   int     // elements whose weights are known
		least float64 // times that the rate is lower
	}{
		"mix-dev.pcap.zst":    {600, 8},
		"sanitized4k.pcap.gz": {256, 3},
	} {
		t.Run(name, func(t *testing.T) {
			packets, total := sourcesOf(t, name)
			i := Interval{Length: time.Second, Packets: total}
			for _, k := range slices.SortedFunc(maps.Keys(packets), key.Key.Compare) {
				i.Flows = append(i.Flows, Flow{k, packets[k]})
			}
			const entries, filters = 10_000, 200 // of each family, all of IPv4
			var predicted, uniform, with, without float64
			for n := range uint64(filters) {
				s := filledSet(t, hash.Nth(2, n), 2*entries-2, entries, 8, c.hot, src32, six)
				plain := lookUp(s.Lookup, packets)
				w := New(Config{Elements: c.hot, Trackers: []key.Shape{src32, six}}).Learn(i, s)
				if _, err := Publish(s, w, func() {}); err != nil {
					t.Fatal(err)
				}
				predicted, uniform = w.Predicted, w.Uniform
				without += plain / float64(total) / filters
				with += lookUp(s.Lookup, packets) / float64(total) / filters
			}
			t.Logf("%d packets of %d sources, %d of them hot: without weights predicted %.3g, measured %.3g; with %.3g, %.3g: %.1f times lower",
				total, len(packets), c.hot, uniform, without, predicted, with, without/with)
			if uniform < c.least*predicted || without < c.least*with {
				t.Errorf("%.1f times lower as predicted, %.1f as measured, want %v", uniform/predicted, without/with, c.least)
			}
			if math.Abs(with/predicted-1) > 0.1 {
				t.Errorf("predicted %.4g, measured %.4g", predicted, with)
			}
		})
	}
}

// lookUp returns how many packets are found in a set that has none of their sources.
func lookUp(find func(key.Key) (int, bool), packets map[key.Key]uint64) (found float64) {
	for k, n := range packets {
		if _, ok := find(k); ok {
			found += float64(n)
		}
	}
	return found
}

// sourcesOf returns the number of packets from each source of a capture, and of all.
func sourcesOf(t *testing.T, name string) (packets map[key.Key]uint64, total uint64) {
	t.Helper()
	packets = make(map[key.Key]uint64)
	found := false
	six := key.Shape{Fields: v6, SrcBits: 128}
	data.Captures(t, func(path string, r *capture.Reader) {
		if path != "pcap/"+name {
			return
		}
		found = true
		for p, err := range r.All() {
			if err != nil {
				t.Fatal(err)
			}
			parsed, _ := frame.Parse(p.Data)
			if !parsed.Src.IsValid() {
				continue
			}
			shape := src32
			if parsed.Src.Is6() {
				shape = six
			}
			k, _ := shape.Of(parsed.Tuple)
			packets[k]++
			total++
		}
	})
	if !found {
		t.Skipf("no capture %s", name)
	}
	return packets, total
}
