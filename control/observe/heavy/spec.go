// Package heavy finds heavy flows with the data plane's trackers, interval by
// interval, and holds them back where it is told to.
package heavy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// Action is what becomes of a heavy flow.
type Action uint8

const (
	Tell  Action = iota // it is reported
	Limit               // what it sends above a rate is dropped
	Block               // all of it is dropped for a time
)

var actions = [...]string{"report", "limit", "block"}

func (a Action) String() string { return actions[a] }

// Spec says what a tracker counts, what is heavy, and what then happens.
type Spec struct {
	Key      string // src, dst, flow, src/BITS or dst/BITS
	Unit     sketch.Unit
	Interval time.Duration
	Rate     float64 // units a second that make a flow heavy; 0: the share alone
	Share    float64 // of all traffic in the interval; 0: the rate alone
	Action   Action
	Limit    float64       // units a second that a limited flow has left
	Burst    float64       // units that it may have at once; 0: a tenth of a second's
	For      time.Duration // how long a penalty lasts after the flow was heavy last
	Memory   int           // bytes of a bank; each CPU has two

	v4, v6  key.Shape
	capture bool // see ParseShare
}

// The defaults of a spec.
const (
	DefaultInterval = time.Second
	DefaultFor      = 10 * time.Second
	DefaultMemory   = 256 << 10
	defaultShare    = 0.01

	captureMemory = 16 << 20

	// With a share, no flow is heavy with fewer units a second: an idle host's
	// only flow is not.
	leastPackets = 100
	leastBytes   = 100_000

	// A penalty ends only when the flow has sent less than this share of what
	// made it heavy.
	hysteresis = 0.5
)

// Syntax is how a spec is written; shareSyntax that of ParseShare.
const (
	shareSyntax = "key=src|dst|flow|src/BITS|dst/BITS[,unit=packets|bytes][,share=SHARE][,memory=SIZE]"
	Syntax      = shareSyntax + "[,rate=UNITS/s][,interval=DURATION][,action=report|limit|block][,limit=UNITS/s][,burst=UNITS][,for=DURATION]"
)

// Parse reads a spec, such as "key=src,rate=10000/s,action=limit". What it does
// not say is: packets, a share of 1 % (unless a rate is given), an interval of
// 1 s, report, a limit of the rate that makes heavy, for 10 s, 256 KiB.
func Parse(text string) (Spec, error) {
	s := Spec{Interval: DefaultInterval, For: DefaultFor, Memory: DefaultMemory}
	seen := make(map[string]bool)
	for field := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(field, "=")
		if !ok || value == "" {
			return s, fmt.Errorf("tracker %q: %q is not NAME=VALUE, want %s", text, field, Syntax)
		}
		if seen[name] {
			return s, fmt.Errorf("tracker %q: %s is given twice", text, name)
		}
		seen[name] = true
		if err := s.set(name, value); err != nil {
			return s, fmt.Errorf("tracker %q: %w", text, err)
		}
	}
	if err := s.finish(seen); err != nil {
		return s, fmt.Errorf("tracker %q: %w", text, err)
	}
	return s, nil
}

func (s *Spec) set(name, value string) (err error) {
	switch name {
	case "key":
		s.Key = value
		s.v4, s.v6, err = parseKey(value)
	case "unit":
		switch value {
		case "packets":
			s.Unit = sketch.Packets
		case "bytes":
			s.Unit = sketch.Bytes
		default:
			err = fmt.Errorf("unit %q: want packets or bytes", value)
		}
	case "rate":
		s.Rate, err = parseRate(value)
	case "limit":
		s.Limit, err = parseRate(value)
	case "burst":
		if s.Burst, err = parseRate(value); err != nil {
			err = fmt.Errorf("burst %q: want at least 1, as in 2000 or 2k", value)
		}
	case "share":
		s.Share, err = parseShare(value)
	case "interval":
		s.Interval, err = parseDuration(value, 100*time.Millisecond, time.Minute)
	case "for":
		s.For, err = parseDuration(value, time.Second, 30*24*time.Hour)
	case "action":
		i := slices.Index(actions[:], value)
		if i < 0 {
			return fmt.Errorf("action %q: want report, limit or block", value)
		}
		s.Action = Action(i)
	case "memory":
		var n uint64
		if n, err = humanize.ParseBytes(value); err == nil && (n < 4<<10 || n > 1<<30) {
			err = fmt.Errorf("memory %q: want 4KiB to 1GiB", value)
		}
		s.Memory = int(n)
	default:
		err = fmt.Errorf("there is no %q, want %s", name, Syntax)
	}
	return err
}

// finish checks what the fields say together, and adds what they leave open.
func (s *Spec) finish(seen map[string]bool) error {
	if !seen["key"] {
		return fmt.Errorf("no key, want %s", Syntax)
	}
	if s.Rate == 0 && s.Share == 0 {
		s.Share = defaultShare
	}
	if (seen["limit"] || seen["burst"]) && s.Action != Limit {
		return fmt.Errorf("limit and burst are for action=limit, not %v", s.Action)
	}
	if seen["for"] && s.Action == Tell {
		return fmt.Errorf("for is for action=limit and block, not report")
	}
	if s.Action == Limit && s.Limit == 0 {
		if s.Rate == 0 {
			return fmt.Errorf("limit=UNITS/s is missing: a share alone says no rate")
		}
		s.Limit = s.Rate
	}
	if s.Limit > penalty.MaxRate {
		return fmt.Errorf("limit %g is above %g", s.Limit, float64(penalty.MaxRate))
	}
	return nil
}

// String is the spec as Parse reads it.
func (s Spec) String() string {
	f := []string{"key=" + s.Key, "unit=" + s.Unit.String()}
	if s.Rate > 0 {
		f = append(f, "rate="+decimal(s.Rate)+"/s")
	}
	if s.Share > 0 {
		f = append(f, "share="+decimal(s.Share))
	}
	f = append(f, "interval="+s.Interval.String(), "action="+s.Action.String())
	if s.Action == Limit {
		f = append(f, "limit="+decimal(s.Limit)+"/s")
		if s.Burst > 0 {
			f = append(f, "burst="+decimal(s.Burst))
		}
	}
	if s.Action != Tell {
		f = append(f, "for="+s.For.String())
	}
	return strings.Join(append(f, fmt.Sprintf("memory=%d", s.Memory)), ",")
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Limits is what makes a flow heavy, as a person says it: "10 k packets/s" or
// "1 % of packets".
func (s Spec) Limits() string {
	var t []string
	if s.Rate > 0 {
		t = append(t, fmt.Sprintf("%s %v/s", humanize.SIWithDigits(s.Rate, 3, ""), s.Unit))
	}
	if s.Share > 0 {
		t = append(t, fmt.Sprintf("%g %% of %v", 100*s.Share, s.Unit))
	}
	return strings.Join(t, " and ")
}

// Tracker is the data plane's part of it.
func (s Spec) Tracker() engine.Tracker {
	return engine.Tracker{
		Tracker:  sketch.Tracker{V4: s.v4, V6: s.v6, Unit: s.Unit, Geometry: sketch.PlanGeometry(s.Memory)},
		Punishes: s.Action != Tell,
	}
}

// ParseShare reads a spec for captures, which are one interval, however long:
// only key, unit, share and memory have a meaning there.
func ParseShare(text string) (Spec, error) {
	for field := range strings.SplitSeq(text, ",") {
		if name, _, _ := strings.Cut(field, "="); !slices.Contains([]string{"key", "unit", "share", "memory"}, name) {
			return Spec{}, fmt.Errorf("tracker %q: %q: want %s", text, name, shareSyntax)
		}
	}
	s, err := Parse(text)
	s.capture = true
	if !strings.Contains(text, "memory=") {
		s.Memory = captureMemory
	}
	return s, err
}

// Name is how a heavy flow is called: as in a list, but for a destination
// alone, which the tracker's key tells from a source.
func Name(k key.Key) string { return strings.TrimPrefix(k.String(), "> ") }

// Threshold is what makes a flow heavy in one interval.
func (s Spec) Threshold() sketch.Threshold {
	if s.capture {
		return sketch.Threshold{Share: s.Share}
	}
	units := s.Rate
	if s.Share > 0 && units == 0 {
		units = leastPackets
		if s.Unit == sketch.Bytes {
			units = leastBytes
		}
	}
	return sketch.Threshold{Units: uint64(units * s.Interval.Seconds()), Share: s.Share}
}

// penalty is what a heavy flow has to bear from now on.
func (s Spec) penalty(now time.Duration) penalty.Penalty {
	p := penalty.Penalty{Until: now + s.For}
	if s.Action == Limit {
		p.Rate, p.Burst = s.Limit, max(s.Limit/10, 1) // a tenth of a second
		if s.Unit == sketch.Bytes {
			p.Burst = max(p.Burst, 64<<10) // any one packet
		}
		if s.Burst > 0 {
			p.Burst = s.Burst
		}
	}
	return p
}

// parseKey gives the shapes of a key: "src/24" is a prefix of IPv4 sources, and
// of IPv6 ones the network that is as usual there, four times as long (up to
// /64, or an address).
func parseKey(text string) (v4, v6 key.Shape, err error) {
	if text == "flow" {
		const fields = key.FieldSrcPort | key.FieldDstPort | key.FieldProto
		return key.Shape{Fields: fields, SrcBits: 32, DstBits: 32},
			key.Shape{Fields: fields | key.FieldV6, SrcBits: 128, DstBits: 128}, nil
	}
	side, length, cut := strings.Cut(text, "/")
	bits4, bits6 := 32, 128
	if cut {
		n, err := strconv.Atoi(length)
		if err != nil || n < 1 || n > 128 {
			return v4, v6, fmt.Errorf("key %q: prefix length %q: want 1 to 32, or to 128 for IPv6 alone", text, length)
		}
		bits4, bits6 = min(n, 32), n
		if n <= 32 {
			bits6 = min(2*n, 64)
		}
		if n == 32 {
			bits6 = 128
		}
	}
	switch side {
	case "src":
		return key.Source(netip.PrefixFrom(netip.IPv4Unspecified(), bits4)).Shape,
			key.Source(netip.PrefixFrom(netip.IPv6Unspecified(), bits6)).Shape, nil
	case "dst":
		return key.Destination(netip.PrefixFrom(netip.IPv4Unspecified(), bits4)).Shape,
			key.Destination(netip.PrefixFrom(netip.IPv6Unspecified(), bits6)).Shape, nil
	}
	return v4, v6, fmt.Errorf("key %q: want src, dst, flow, src/BITS or dst/BITS", text)
}

// parseRate reads units a second: "10000", "10000/s", "10k/s", "1.5M/s".
func parseRate(text string) (float64, error) {
	v, unit, err := humanize.ParseSI(strings.TrimSuffix(text, "/s"))
	if err != nil || unit != "" || v < 1 {
		return 0, fmt.Errorf("rate %q: want at least 1/s, as in 10000/s or 10k/s", text)
	}
	return v, nil
}

// parseShare reads "0.001" or "0.1%".
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v > 0 && v <= 1) {
		return 0, fmt.Errorf("share %q: want more than 0 and up to 1, as in 0.001 or 0.1%%", text)
	}
	return v, nil
}

func parseDuration(text string, least, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < least || d > most {
		return 0, fmt.Errorf("duration %q: want %v to %v, as in 10s", text, least, most)
	}
	return d, nil
}
