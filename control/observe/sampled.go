package observe

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/stage"
	"weir/control/stage/sampler"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader"
)

const (
	// SampledWindow is for how long samples are kept. By those of ten seconds, some 30,000, a
	// flow with 1.25 % of the packets has 1 % or more with 99.9 %, and one with 0.8 % less:
	// 1 % ± 3.1 √(0.01 ⋅ 0.99 / n) is 1 % ± 0.18 % then.
	SampledWindow = 10 * time.Second

	sampledTarget = 3000 // records a second, of all CPUs
)

// Second is a second, or about, of sampled packets.
type Second struct {
	Begin, End     time.Time
	Packets, Bytes uint64 // that came in: exact
	Records        []sampler.Record
}

// Sampled has the packets that programs have sampled in the last seconds. The zero Sampled is
// ready. Its methods may be called concurrently, but for those of turns.
type Sampled struct {
	mu      sync.Mutex // guards the following
	seconds []*Second

	of      *sampler.Part // of the programs; nil: they do not sample
	present *Second       // in which they record
	reading *Second       // whose records have yet to be read
}

// Exchange ends an interval in which programs have counted packets, and returns it, nil if it goes on.
// It reports whether its records are to be read: [Sampled.Read] does it after [loader.Grace]. It is for
// turns.
func (s *Sampled) Exchange(now time.Time, of *sampler.Part, stats []*loader.Stats, packets, bytes uint64) (second *Second, records bool) {
	if s.of != of { // the former memory may be gone, with what it has not been read of
		s.of, s.present, s.reading = of, &Second{Begin: now}, nil
		return nil, false
	}
	if of == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seconds = nil
		return nil, false
	}
	second = s.present
	second.Packets, second.Bytes = second.Packets+packets, second.Bytes+bytes
	if s.reading != nil {
		return nil, false // the programs have no bank to go over to
	}
	second.End, s.present = now, &Second{Begin: now}
	if second.Packets == 0 {
		s.add(second)
		return second, false
	}
	rate := float64(second.Packets) / max(now.Sub(second.Begin).Seconds(), 1e-3)
	n := uint32(min(math.Ceil(rate/sampledTarget), 1<<24))
	of.Exchange(n)
	for _, each := range stats {
		sampler.Limit(each, n, rand.Uint32N)
	}
	s.reading = second
	return second, true
}

// Read reads what programs have recorded in an interval that is over. It is for turns.
func (s *Sampled) Read() {
	if s.reading != nil {
		s.reading.Records = s.of.Read()
		s.add(s.reading)
		s.reading = nil
	}
}

func (s *Sampled) add(second *Second) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What others have of the former ones stays.
	s.seconds = append(slices.DeleteFunc(slices.Clone(s.seconds), func(o *Second) bool {
		return second.End.Sub(o.End) >= SampledWindow || o.End.After(second.End)
	}), second)
}

// Seconds returns the last seconds, in order. They are not to be changed.
func (s *Sampled) Seconds() []*Second {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seconds
}

// sampledKeys say what makes a flow.
var sampledKeys = []struct {
	name string
	of   func(*sampler.Record) flood.Flow // addresses and ports that are not part of it are zero
	key  func(*flood.Flow) key.Key
}{
	{"src", func(r *sampler.Record) flood.Flow { return flood.Flow{Src: r.Src} }, func(f *flood.Flow) key.Key {
		a := unmapped(f.Src)
		return key.Source(netip.PrefixFrom(a, a.BitLen()))
	}},
	{"dst", func(r *sampler.Record) flood.Flow { return flood.Flow{Dst: r.Dst} }, func(f *flood.Flow) key.Key {
		a := unmapped(f.Dst)
		return key.Destination(netip.PrefixFrom(a, a.BitLen()))
	}},
	{"flow", func(r *sampler.Record) flood.Flow {
		f := r.Flow()
		if !key.HasPorts(f.Protocol) { // but types of ICMP
			f.SrcPort, f.DstPort = 0, 0
		}
		return f
	}, func(f *flood.Flow) key.Key {
		t := key.Tuple{Src: unmapped(f.Src), Dst: unmapped(f.Dst), Proto: f.Protocol, SrcPort: f.SrcPort, DstPort: f.DstPort}
		t.HasPorts = key.HasPorts(f.Protocol) && f.SrcPort|f.DstPort != 0
		v4, v6 := stage.Key("flow").Shapes()
		if !t.HasPorts {
			v4.Fields, v6.Fields = key.FieldProto, key.FieldProto|key.FieldV6
		}
		if !t.Src.Is4() {
			v4 = v6
		}
		k, _ := v4.Of(t)
		return k
	}},
}

func unmapped(a [16]byte) netip.Addr { return netip.AddrFrom16(a).Unmap() }

// sampledCount counts the sampled packets of a flow.
type sampledCount struct {
	flow           flood.Flow
	packets, bytes float64
	records        int
	dropped        float64
	reasons        uint64 // of its drops: bit i is verdict.Reason(i)
}

// Top returns the largest sources, destinations and flows of the last seconds, for those keys
// that no tracker has. drops says for which reasons packets are dropped.
func (s *Sampled) Top(trackers []api.Tracker, drops func(verdict.Reason) bool) (all []api.Tracker) {
	seconds := s.Seconds()
	var records int
	var packets, bytes, weights, squares float64
	var long float64
	for _, second := range seconds {
		long += second.End.Sub(second.Begin).Seconds()
		packets, bytes = packets+float64(second.Packets), bytes+float64(second.Bytes)
		for i := range second.Records {
			w := second.Records[i].Weight
			records, weights, squares = records+1, weights+w, squares+w*w
		}
	}
	if long == 0 {
		return nil
	}
	bounds := Bounds{Records: weights * weights / max(1, squares), Of: packets}
	for _, by := range sampledKeys {
		if slices.ContainsFunc(trackers, func(t api.Tracker) bool { return t.Key == by.name && (t.Unit == "packets" || t.Unit == "bytes") }) {
			continue
		}
		counts := make(map[flood.Flow]*sampledCount)
		for _, second := range seconds {
			for i := range second.Records {
				r := &second.Records[i]
				if !r.IP {
					continue
				}
				flow := by.of(r)
				c := counts[flow]
				if c == nil {
					c = &sampledCount{flow: flow}
					counts[flow] = c
				}
				c.records++
				c.packets += r.Weight
				c.bytes += r.Weight * float64(r.Frame)
				if reason := verdict.Reason(r.Reason); drops(reason) {
					c.dropped += r.Weight
					c.reasons |= 1 << reason
				}
			}
		}
		t := api.Tracker{Key: by.name, Unit: "packets", Interval: long, Packets: packets / long, Bytes: bytes / long, Sample: &api.Sample{Packets: records, OneIn: packets / max(1, float64(records))}}
		largest := ordered.Of(maps.Values(counts), func(a, b *sampledCount) int {
			return cmp.Or(cmp.Compare(b.packets, a.packets), slices.Compare(a.flow.Src[:], b.flow.Src[:]), slices.Compare(a.flow.Dst[:], b.flow.Dst[:]),
				cmp.Compare(a.flow.SrcPort, b.flow.SrcPort), cmp.Compare(a.flow.DstPort, b.flow.DstPort), cmp.Compare(a.flow.Protocol, b.flow.Protocol))
		})
		scale := packets / max(1, weights) / long // of a weight to a rate
		carried := 0.0
		for _, c := range largest[:min(len(largest), api.MaxTop)] {
			share := c.packets / max(1, weights)
			least, most := bounds.Of95(share)
			f := api.Flow{
				Key: stage.FlowName(by.key(&c.flow)), Packets: c.packets * scale, Bytes: c.bytes * scale, Share: share,
				LeastPackets: least * packets / long, MostPackets: most * packets / long, Dropped: new(c.dropped * scale),
			}
			for reason := range verdict.NumReasons {
				if c.reasons>>reason&1 != 0 {
					f.Reasons = append(f.Reasons, reason.String())
				}
			}
			carried += share
			t.Flows = append(t.Flows, f)
		}
		t.More = len(largest) - len(t.Flows)
		if carried < 1.0/3 && len(largest) > api.MaxTop {
			t.Spread = distinct(func(yield func(int) bool) {
				for _, c := range largest {
					if !yield(c.records) {
						return
					}
				}
			})
		}
		all = append(all, t)
	}
	return all
}

// distinct estimates of how many flows the traffic consists of, at least, by how often each of them
// was sampled (Chao, "Nonparametric estimation of the number of classes in a population", 1984).
func distinct(sampled iter.Seq[int]) float64 {
	var all, once, twice float64
	for n := range sampled {
		all++
		switch n {
		case 1:
			once++
		case 2:
			twice++
		}
	}
	return all + once*(once-1)/(2*(twice+1))
}

// Bounds says how sure a share is that was sampled.
type Bounds struct {
	Records float64 // how many there are, as if all had equal weights
	Of      float64 // packets
}

// Of95 returns the bounds between which a share of all packets is with 95 %, if it has this share of
// the records: Wilson's, with the correction for records that are a large part of all packets.
func (b Bounds) Of95(share float64) (least, most float64) {
	if b.Records == 0 {
		return 0, 1
	}
	return flood.Wilson(share, b.Records/max(0, 1-b.Records/max(1, b.Of)))
}
