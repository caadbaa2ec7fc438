// Package tracker finds heavy hitters with the data plane's trackers, interval by
// interval, and limits or blocks them if the tracker's action says so.
//
// Trackers (filter/sketch) count packets or bytes of one key. The programs of all interfaces share
// their memory, penalties included (loader/counting.go), so that it does not grow with them; the
// pins of each have it. A process that finds programs in it which it does not replace takes the
// penalties over and counts elsewhere. Each CPU has two banks, each a conservative-update sketch
// and a flow memory: a flow whose estimate reaches the limit of admission is counted exactly from
// then on. While the memory has room to spare, a lower limit admits flows far below the threshold;
// each flow that finds no room raises that by 1/64, so that no traffic causes more than some
// hundred evictions in vain. At the end of an interval the control plane prepares the idle bank,
// exchanges the banks with a store for each interface, waits until no program can still write to
// the old one, and reads it, all in mapped memory. Penalties (bpf/penalty.h) are rate limits or
// blocks that expire by the kernel's clock: a dead control plane holds up no flow for good.
// Trackers and penalties outlive generations. If the trackers change, all count anew, with empty
// tables until the next tick: a reload then imposes the penalties again, and a restart with other
// trackers loses them.
//
// A bank's head says when it began to count, by the kernel's monotonic clock: it is written before
// the exchange, and the clock is read after the counts, so that they are never of a longer time
// than it seems, wherever the daemon is held up. It outlives the daemon, as the counts do. In an
// interval that became longer, thresholds are higher in proportion. What was counted for more than
// one and a half intervals, or two ticks of 100 ms above one, or for a time that is unknown, as
// after a version that does not record it, is discarded: the banks are exchanged, and no flow is
// punished or reported by it. So a reload, a restart, a stopped process or a slow machine makes no
// flow heavy that is below the threshold.
//
// Thresholds that are rates the programs enforce themselves (bpf/threshold.h, filter/penalty's
// Windows): whenever the exact count of a flow on a CPU passes a multiple of a step, a 64th of the
// threshold divided by the CPUs at most, the CPU adds as much to the flow's window, in a table
// that all CPUs share. What a window begins with does not count, and the threshold is higher by
// what CPUs may have kept back from before, so that a flow that is below the threshold in each
// interval has no penalty. A packet that stays within a step costs two instructions. The watcher
// writes thresholds and what programs must spare (threshold.go), and takes over the penalties that
// it finds: it reports and renews them, and has the programs of the other interfaces look for
// them, which they do not while there are none.
//
// An idle daemon wakes about once a second. Trackers are read each 100 ms only while there is
// something to see; otherwise, when the next interval ends (rest.go). For that, a bit in the rows
// of all CPUs asks the programs to wake it by a ring buffer (bpf/wake.h), where a flow enters the
// flow memory or passes a step of a threshold: no flow can be heavy before. Other packets do not
// even test the bit. Interfaces that have counted nothing keep their banks. What interfaces there
// are is asked for when the kernel has reported a change, and each ten seconds.
package tracker

import (
	"encoding"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

// Spec is a tracker: what it counts, which flows are heavy, and what happens to
// them. Use [DefaultSpec] for one with the defaults.
type Spec struct {
	// What makes a flow: src, dst, or flow (addresses, ports and protocol). A
	// prefix as in src/24 counts its sources together: of IPv6, those of a prefix
	// twice as long. Lengths above 32 are for IPv6; IPv4 then goes by address.
	Key stage.Key `yaml:"key,required"`

	// What is counted: packets or bytes. Default: as in threshold, otherwise packets.
	Unit quantity.Unit `yaml:"unit,omitempty"`

	// How long is counted at a time, from 100ms to 1m.
	Interval quantity.Duration `yaml:"interval"`

	// Above which a flow is heavy: a rate, as in 50kpps, 10Mbit/s or 10k/s; a share
	// of all that is counted, as in 0.1%; or both, as in 50kpps+0.1%. By a share
	// alone, no flow below 100 packets (100 kB) a second is heavy.
	Threshold Threshold `yaml:"threshold"`

	// report: nothing else. limit: let heavy hitters have no more than limit. block:
	// drop them. Packets that an allow list contains are spared.
	Action Action `yaml:"action"`

	// The rate that a rate-limited heavy hitter may have, on all interfaces together.
	// Default: the threshold's.
	Limit quantity.Rate `yaml:"limit,omitempty"`

	// Packets or bytes that a rate-limited heavy hitter may have at once, as in 2000
	// or 64k. Default: what limit allows in a second, and no less than 64 KiB.
	Burst quantity.Count `yaml:"burst,omitempty"`

	// How long a flow stays heavy, and rate-limited or blocked, after it was last above
	// half of the threshold.
	Duration quantity.Duration `yaml:"duration"`

	// Spare what would cut off this host, as lists do: no flow of it is blocked, and none is
	// rate-limited below 1000 packets or 1 MB a second.
	AntiLockout bool `yaml:"anti_lockout"`

	// Memory of a bank for flows; each CPU has two, in which all interfaces count.
	Memory quantity.Size `yaml:"memory"`

	distinct Distinct // what it counts as a scan detector
	least    uint64   // the scan detector's threshold
}

const (
	captureMemory = 16 << 20

	// By a share alone, no flow is heavy with fewer units a second: the only flow
	// of an idle host is not.
	leastPackets = 100
	leastBytes   = 100_000

	// A penalty ends only when the flow has sent less than this share of the units that
	// made it heavy.
	hysteresis = 0.5

	// leastBurst lets any one packet pass.
	leastBurst = 64 << 10
)

// DefaultMemory is the default of Spec.Memory.
const DefaultMemory = 256 << 10

// SetDefaults sets all fields but Key to their defaults.
func (s *Spec) SetDefaults() {
	*s = Spec{
		Key: s.Key, Interval: quantity.Duration(time.Second), Threshold: Threshold{Share: 0.01},
		Duration: quantity.Duration(time.Minute), Memory: DefaultMemory, AntiLockout: true,
	}
}

// DefaultSpec returns a tracker of a key with the defaults.
func DefaultSpec(k stage.Key) Spec {
	s := Spec{Key: k}
	s.SetDefaults()
	return s
}

// Validate returns what is wrong with a tracker as [quantity.FieldErrors].
func (s Spec) Validate() error {
	var errs quantity.FieldErrors
	if s.Key == "" {
		errs.Failf("", "key is missing")
	}
	quantity.Between(&errs, "interval", s.Interval, quantity.Duration(100*time.Millisecond), quantity.Duration(time.Minute))
	for _, f := range []struct {
		name string
		rate quantity.Rate
	}{{"threshold", s.Threshold.Rate}, {"limit", s.Limit}} {
		if u := f.rate.Unit; u != quantity.AnyUnit && (u == quantity.Packets) != (s.Counts() == sketch.Packets) {
			errs.Failf(f.name, "%v counts %v, but the tracker counts %v", f.rate, u, s.Counts())
		}
	}
	rate := s.Threshold.Rate.PerSecond()
	switch {
	case s.Threshold == Threshold{}:
		errs.Failf("threshold", "want more than 0")
	case rate > 0 && rate*s.Interval.Seconds() < 1:
		errs.Failf("threshold", "%v is less than one of the %v in an interval of %v", s.Threshold.Rate, s.Counts(), s.Interval)
	}
	limited := s.Action == Limit
	switch limit := s.limit(); {
	case !limited && (s.Limit != quantity.Rate{} || s.Burst != 0):
		errs.Failf("", "limit and burst go with action limit, not %v", s.Action)
	case limited && limit == 0:
		errs.Failf("", "action limit needs a limit, as in 1kpps: the threshold has no rate")
	case limited && (limit < 1 || limit > penalty.MaxRate):
		field := "limit"
		if s.Limit == (quantity.Rate{}) {
			field = "threshold"
		}
		errs.Failf(field, "a limit of %v is not between 1/s and %v", quantity.Rate{Value: limit}, quantity.Rate{Value: penalty.MaxRate})
	}
	quantity.Between(&errs, "duration", s.Duration, quantity.Duration(time.Second), quantity.Duration(30*24*time.Hour))
	quantity.Between(&errs, "memory", s.Memory, 4<<10, 1<<30)
	return errs.Err()
}

// Counts returns what the tracker counts: what Unit says, otherwise the unit of a
// rate, otherwise packets.
func (s Spec) Counts() sketch.Unit {
	if s.distinct != packets {
		return s.distinct.unit()
	}
	for _, u := range []quantity.Unit{s.Unit, s.Threshold.Rate.Unit, s.Limit.Unit} {
		switch u {
		case quantity.Packets:
			return sketch.Packets
		case quantity.Bytes, quantity.Bits:
			return sketch.Bytes
		}
	}
	return sketch.Packets
}

// CountsPairs reports whether the tracker is a scan detector's, which counts pairs.
func (s Spec) CountsPairs() bool { return s.distinct != packets }

// began describes what became of a flow above the threshold: "is a heavy hitter".
func (s Spec) began() string {
	switch {
	case !s.CountsPairs():
		return "is a heavy hitter"
	case s.ofSources():
		return fmt.Sprintf("scans: it has reached %v", s.Limits())
	case s.distinct == Ports:
		return fmt.Sprintf("is scanned: it was reached at %v", s.Limits())
	}
	return fmt.Sprintf("is scanned or flooded: it was reached from %v", s.Limits())
}

// ended describes what is no longer so: "is no longer a heavy hitter".
func (s Spec) ended() string {
	switch {
	case !s.CountsPairs():
		return "is no longer a heavy hitter"
	case s.ofSources():
		return "no longer scans"
	}
	return "is no longer scanned"
}

// ofSources reports whether flows are sources.
func (s Spec) ofSources() bool { return strings.HasPrefix(string(s.Key), "src") }

// Label identifies a tracker by its key and unit.
func (s Spec) Label() string { return string(s.Key) + " " + s.Counts().String() }

// limit is the rate of a rate-limited flow, in units a second.
func (s Spec) limit() float64 {
	if s.Limit != (quantity.Rate{}) {
		return s.Limit.PerSecond()
	}
	return s.Threshold.Rate.PerSecond()
}

// text is a field's value.
type text interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}

// boolean is true or false as text.
type boolean bool

func (b boolean) MarshalText() ([]byte, error) { return strconv.AppendBool(nil, bool(b)), nil }

func (b *boolean) UnmarshalText(text []byte) error {
	switch string(text) {
	case "true", "false":
		*b = string(text) == "true"
		return nil
	}
	return fmt.Errorf("%q: want true or false", text)
}

// field is a field of a Spec by its name in YAML and on the command line.
type field struct {
	name  string
	value text
}

func (s *Spec) fields() []field {
	return []field{
		{"key", &s.Key}, {"unit", &s.Unit}, {"interval", &s.Interval}, {"threshold", &s.Threshold}, {"action", &s.Action},
		{"limit", &s.Limit}, {"burst", &s.Burst}, {"duration", &s.Duration}, {"memory", &s.Memory}, {"anti_lockout", (*boolean)(&s.AntiLockout)},
	}
}

// Parse reads a tracker as the command line has it, such as
// "key=src,threshold=50kpps,action=limit,limit=1kpps,duration=1m", and validates it.
func Parse(text string) (Spec, error) {
	s := DefaultSpec("")
	err := s.parse(text, s.fields())
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		return Spec{}, fmt.Errorf("tracker %q: %w", text, err)
	}
	return s, nil
}

// ParseCapture reads a tracker for captures, which are one interval, however long:
// it has a key, a unit, a share as its threshold, and memory.
func ParseCapture(text string) (Spec, error) {
	s := DefaultSpec("")
	s.Memory = captureMemory
	all := s.fields()
	err := s.parse(text, []field{all[0], all[1], all[3], all[8]})
	if err == nil {
		err = s.Validate()
	}
	if err == nil && s.Threshold.Rate.Value > 0 {
		err = fmt.Errorf("threshold: %v: want a share, as in 0.1%%", s.Threshold)
	}
	if err != nil {
		return Spec{}, fmt.Errorf("tracker %q: %w", text, err)
	}
	return s, nil
}

// parse sets fields from NAME=VALUE pairs, separated by commas.
func (s *Spec) parse(text string, fields []field) error {
	if len(text) > len(fields)*2*quantity.MaxText {
		return fmt.Errorf("%d bytes are too many", len(text))
	}
	seen := make(map[string]bool)
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=VALUE, as in key=src", pair)
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			var names []string
			for _, f := range fields {
				names = append(names, f.name)
			}
			return fmt.Errorf("unknown name %q: want %s", name, strings.Join(names, ", "))
		}
		if seen[name] {
			return fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		if err := fields[i].value.UnmarshalText([]byte(value)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// String returns the tracker as [Parse] reads it.
func (s Spec) String() string {
	var pairs []string
	for _, f := range s.fields() {
		value, _ := f.value.MarshalText() // none of them fails
		switch {
		case f.name == "unit" && s.Unit == quantity.AnyUnit:
		case f.name == "limit" && s.Limit == quantity.Rate{}:
		case f.name == "burst" && s.Burst == 0:
		case f.name == "anti_lockout" && s.AntiLockout:
		default:
			pairs = append(pairs, f.name+"="+string(value))
		}
	}
	return strings.Join(pairs, ",")
}

// Counting returns how programs count for the tracker.
func (s Spec) Counting() Counting {
	v4, v6 := s.Key.Shapes()
	if s.distinct != packets {
		_, bank := verdict.DivideScanMemory(int(s.Memory))
		// Exempt packets are no scan.
		return Counting{
			Tracker:  sketch.Tracker{V4: v4, V6: v6, Unit: s.Counts(), Geometry: sketch.PlanGeometry(bank)},
			Punishes: s.Action != ReportOnly, Unexempt: true, Pairs: s.pairs(),
		}
	}
	return Counting{
		Tracker:  sketch.Tracker{V4: v4, V6: v6, Unit: s.Counts(), Geometry: sketch.PlanGeometry(int(s.Memory)).WithCold()},
		Punishes: s.Action != ReportOnly,
	}
}

// Limits describes what makes a flow heavy: "10kpps", or "10kpps and 1% of packets". With a
// share alone, the rate is the least of a heavy hitter.
func (s Spec) Limits() string {
	if s.distinct != packets {
		return fmt.Sprintf("%d %v in %v", s.least, s.distinct, s.Interval)
	}
	var parts []string
	if r := s.Threshold.Rate; r.Value > 0 || s.Threshold.Share > 0 {
		if r.Value == 0 {
			r.Value = s.leastRate()
		}
		if r.Unit == quantity.AnyUnit {
			r.Unit = map[sketch.Unit]quantity.Unit{sketch.Packets: quantity.Packets, sketch.Bytes: quantity.Bytes}[s.Counts()]
		}
		parts = append(parts, r.String())
	}
	if s.Threshold.Share > 0 {
		parts = append(parts, fmt.Sprintf("%v of %v", s.Threshold.Share, s.Counts()))
	}
	return strings.Join(parts, " and ")
}

// threshold returns the limit above which a flow is heavy in an interval or, if that is
// longer, in a time.
func (s Spec) threshold(over time.Duration) sketch.Threshold {
	t := s.nominal()
	if i := time.Duration(s.Interval); over > i {
		t.Units = uint64(math.Ceil(float64(t.Units) * float64(over) / float64(i)))
	}
	return t
}

// nominal returns the limit above which a flow is heavy in an interval of the nominal length.
func (s Spec) nominal() sketch.Threshold {
	if s.distinct != packets {
		return sketch.Threshold{Units: s.least}
	}
	units, share := s.Threshold.Rate.PerSecond(), float64(s.Threshold.Share)
	if units == 0 && share > 0 {
		units = s.leastRate()
	}
	return sketch.Threshold{Units: uint64(units * s.Interval.Seconds()), Share: share}
}

// leastRate is the rate in units a second below which no flow is heavy by a share alone.
func (s Spec) leastRate() float64 {
	if s.Counts() == sketch.Bytes {
		return leastBytes
	}
	return leastPackets
}

// penalty is the penalty of a flow that is heavy now.
func (s Spec) penalty(now time.Duration) penalty.Penalty {
	p := penalty.Penalty{Until: now + time.Duration(s.Duration)}
	if s.Action == Limit {
		p.Rate, p.Burst = s.limit(), s.limit()
		if s.Counts() == sketch.Bytes {
			p.Burst = max(p.Burst, leastBurst)
		}
		if s.Burst > 0 {
			p.Burst = float64(s.Burst)
		}
	}
	return p
}
