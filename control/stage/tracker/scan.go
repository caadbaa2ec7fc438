package tracker

import (
	"fmt"
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/key"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

// Scan is a tracker that counts distinct ports or addresses instead of packets: of
// sources it finds scans, of destinations those that many sources reach. Only packets
// that may begin a conversation count: TCP with SYN alone, UDP to ports from which
// hosts do not connect, and ICMP echo requests. Use [DefaultScan] for one with the
// defaults.
type Scan struct {
	// Who is watched: src, dst, or a prefix as in src/24, as in trackers.
	Key stage.Key `yaml:"key,required"`

	// What is counted. addresses: those that a source reaches, or that reach a
	// destination. ports: the same with protocol and destination port.
	Distinct Distinct `yaml:"distinct"`

	// From how many on in a window it is reported, and limited or blocked.
	Threshold quantity.Count `yaml:"threshold"`

	// How long is counted at a time, from 1s to 1m. In a flood it is shorter: see memory.
	Window quantity.Duration `yaml:"window"`

	// report: nothing else. limit: let it have no more than limit. block: drop its
	// packets. Sources can be forged, so block goes with an allow list.
	Action Action `yaml:"action"`

	// The rate of packets that it may have when it is rate-limited.
	Limit quantity.Rate `yaml:"limit,omitempty"`

	// How long the action lasts after it was last above half of the threshold.
	Duration quantity.Duration `yaml:"duration"`

	// Spare what would cut off this host, as lists do: none of it is blocked, nor
	// rate-limited below 1000 packets a second.
	AntiLockout bool `yaml:"anti_lockout"`

	// Memory of a window, of which there are two. Three quarters of it remember pairs of
	// source and destination, about 1.8 of them a byte, until the window ends early. The
	// rest, which each CPU has, counts.
	Memory quantity.Size `yaml:"memory"`
}

// DefaultScanMemory is the default of Scan.Memory.
const DefaultScanMemory = 512 << 10

// SetDefaults sets all fields but Key to their defaults.
func (g *Scan) SetDefaults() {
	*g = Scan{
		Key: g.Key, Distinct: Ports, Threshold: 64, Window: quantity.Duration(10 * time.Second),
		Duration: quantity.Duration(time.Minute), Memory: DefaultScanMemory, AntiLockout: true,
	}
}

// DefaultScan returns a scan detector of a key with the defaults.
func DefaultScan(k stage.Key) Scan {
	g := Scan{Key: k}
	g.SetDefaults()
	return g
}

// Validate returns what is wrong with a scan detector as [quantity.FieldErrors].
func (g Scan) Validate() error {
	var errs quantity.FieldErrors
	switch g.Key {
	case "":
		errs.Failf("", "key is missing")
	case "flow":
		errs.Failf("key", "a flow has one port: want src, dst, or a prefix as in src/24")
	}
	quantity.Between(&errs, "threshold", g.Threshold, verdict.MinScanThreshold, verdict.MaxScanThreshold)
	quantity.Between(&errs, "window", g.Window, quantity.Duration(time.Second), quantity.Duration(time.Minute))
	switch limit := g.Limit; {
	case g.Action != Limit && limit != quantity.Rate{}:
		errs.Failf("limit", "it goes with action limit, not %v", g.Action)
	case g.Action == Limit && limit.Unit != quantity.Packets:
		errs.Failf("limit", "want packets a second, as in 10pps")
	case g.Action == Limit && limit.Value < 1:
		errs.Failf("limit", "%v is less than 1pps", limit)
	}
	quantity.Between(&errs, "duration", g.Duration, quantity.Duration(time.Second), quantity.Duration(30*24*time.Hour))
	quantity.Between(&errs, "memory", g.Memory, verdict.MinScanMemory, verdict.MaxScanMemory)
	return errs.Err()
}

// Spec returns the scan detector as a tracker, whose units are pairs.
func (g Scan) Spec() Spec {
	rate := float64(g.Threshold) / g.Window.Seconds()
	return Spec{
		Key: g.Key, Interval: g.Window, Threshold: Threshold{Rate: quantity.Rate{Value: rate}},
		Action: g.Action, Limit: g.Limit, Duration: g.Duration,
		AntiLockout: g.AntiLockout, Memory: g.Memory, distinct: g.Distinct, least: uint64(g.Threshold),
	}
}

// String describes the scan detector.
func (g Scan) String() string {
	return fmt.Sprintf("%s reaching %d %v in %v", g.Key, uint64(g.Threshold), g.Distinct, g.Window)
}

// Distinct is the unit that a scan detector counts.
type Distinct uint8

const (
	packets   Distinct = iota // a tracker of packets
	Ports                     // addresses with protocol and destination port
	Addresses                 // the other addresses
)

var distincts = [...]string{Ports: "ports", Addresses: "addresses"}

func (d Distinct) String() string { return distincts[d] }

// MarshalText returns what is counted.
func (d Distinct) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what is counted.
func (d *Distinct) UnmarshalText(text []byte) error {
	i := slices.Index(distincts[:], string(text))
	if i < int(Ports) {
		return fmt.Errorf("unknown kind %q: want ports or addresses", text)
	}
	*d = Distinct(i)
	return nil
}

// unit returns the unit of a scan detector's counts.
func (d Distinct) unit() sketch.Unit {
	if d == Addresses {
		return sketch.Addresses
	}
	return sketch.Ports
}

// pairs returns the part of a scan detector's memory that remembers pairs, and what they are.
func (s Spec) pairs() *Pairs {
	lines, _ := verdict.DivideScanMemory(int(s.Memory))
	p := &Pairs{Lines: lines, Ephemeral: engine.EphemeralPort()}
	p.V4, p.V6 = s.Key.Shapes()
	for _, side := range []*key.Shape{&p.V4, &p.V6} {
		if side.SrcBits == 0 {
			side.SrcBits = uint8(side.MaxBits())
		} else {
			side.DstBits = uint8(side.MaxBits())
		}
		if s.distinct == Ports {
			side.Fields |= key.FieldProto | key.FieldDstPort
		}
	}
	return p
}

// full reports whether a scan detector's filter has remembered so much that it would miss more. Its
// sketches have counted each pair once.
func (t *tracker) full(i int, on interfaces) bool {
	return t.distinct != packets && total(on.active(i)) >= verdict.ScanPairs(t.pairs().Lines)
}
