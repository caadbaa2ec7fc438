package sfb

import (
	"fmt"
	"math"
	"time"

	"weir/filter/hash"
)

// Geometry and clock of a [Policer], the same as in bpf/police.h.
const (
	PolicerLevels = 4
	PolicerBins   = 256 // of a level
	policerAll    = PolicerLevels * PolicerBins
	slices        = 16
	slice         = policerAll / slices

	PolicerTick = 10 * time.Millisecond
	tick        = uint64(PolicerTick)
	step        = tick / slices
	idle        = 8

	costShift = 16
	unitShift = 8

	one  = 1 << 16
	half = one / 2

	boxRise = 4
	boxAt   = 200
	boxMax  = 255

	blueRise    = 66
	blueFall    = 655
	blueFull    = uint64(30 * time.Millisecond)
	blueBacklog = uint64(5 * time.Millisecond)
	blueShare   = 8 // bins' rates are this part of the limit
)

// Controller is the rule by which a [Policer] sets probabilities.
type Controller uint8

const (
	// Fair marks and drops what a flow sends above a fair rate, which is steered so that
	// the bucket is almost full (approximate fair dropping by Pan and others), and
	// penalises flows for which that means one half of their packets for half a second.
	Fair Controller = iota
	// Blue is the paper's rule, on virtual queues.
	Blue
	// Bucket is a token bucket alone.
	Bucket
)

var controllerNames = []string{"fair", "blue", "bucket"}

// String returns the controller's name in configurations.
func (c Controller) String() string {
	if int(c) < len(controllerNames) {
		return controllerNames[c]
	}
	return fmt.Sprintf("controller %d", uint8(c))
}

// MarshalText returns the name.
func (c Controller) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText sets the controller by its name.
func (c *Controller) UnmarshalText(text []byte) error {
	for i, name := range controllerNames {
		if name == string(text) {
			*c = Controller(i)
			return nil
		}
	}
	return fmt.Errorf("unknown controller %q: want fair, blue or bucket", text)
}

// Outcome is a policer's decision on a packet.
type Outcome uint8

const (
	Admitted       Outcome = iota
	AdmittedMarked         // passed, with a mark of congestion
	DroppedEarly           // dropped by its probability
	DroppedBoxed           // dropped in the penalty box
	DroppedOver            // dropped by the bucket
	NumOutcomes
)

// Dropped reports whether the packet is dropped.
func (o Outcome) Dropped() bool { return o >= DroppedEarly }

// String returns the outcome's name in commands, metrics and JSON.
func (o Outcome) String() string {
	if names := [...]string{"passed", "marked", "early", "boxed", "over"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Limits are the constants of a [Policer]. Units are bytes or packets; times are in
// nanoseconds.
type Limits struct {
	Controller Controller
	Packets    bool   // the unit; otherwise bytes
	Cost       uint64 // of a unit, in ns / 2^16
	BinCost    uint64 // the same in a bin of Blue
	Depth      uint64 // of the bucket
	Limit      uint64 // units in a tick, times 2^8
	Target     uint64 // for the units that the bucket lacks, in the same
	Gap        uint64 // between two packets out of the penalty box
	Lifetime   uint64 // of a hash function
	Chunk      uint32 // units of credit that a CPU takes at a time
}

// Bounds of the rates that [Plan] accepts, in units a second.
const (
	MinPacketRate = 100
	MaxPacketRate = 1e9
	MinByteRate   = 1e6 / 8
	MaxByteRate   = 100e9 / 8
	MinDepth      = 5 * time.Millisecond
	MaxDepth      = 200 * time.Millisecond
	MinLifetime   = time.Second
)

// Plan returns the constants for a rate, in units a second, with a bucket of this
// depth and hash functions of this lifetime.
func Plan(c Controller, rate float64, packets bool, depth, lifetime time.Duration) (Limits, error) {
	least, most, frame := float64(MinByteRate), float64(MaxByteRate), 1500.0
	if packets {
		least, most, frame = MinPacketRate, MaxPacketRate, 1
	}
	switch {
	case !(rate >= least && rate <= most):
		return Limits{}, fmt.Errorf("sfb: rate %g: not in %g … %g units a second", rate, least, most)
	case depth < MinDepth || depth > MaxDepth:
		return Limits{}, fmt.Errorf("sfb: depth %v: not in %v … %v", depth, MinDepth, MaxDepth)
	case lifetime < MinLifetime:
		return Limits{}, fmt.Errorf("sfb: lifetime %v: less than %v", lifetime, MinLifetime)
	}
	limit := rate * PolicerTick.Seconds() * (1 << unitShift)
	each := 1e9 / rate // ns
	return Limits{
		Controller: c, Packets: packets,
		Cost:    uint64(math.Round(each * (1 << costShift))),
		BinCost: uint64(math.Round(each * blueShare * (1 << costShift))),
		Depth:   uint64(depth),
		Limit:   uint64(limit),
		// What the bucket lacks delays nothing: half leaves as much room for bursts as there is
		// in reserve for pauses.
		Target:   uint64(limit * float64(depth/2) / float64(PolicerTick)),
		Gap:      uint64(max(100e6, frame*each*256)), // ten packets a second, or 0.4 % of the rate
		Lifetime: uint64(lifetime),
		// Eight frames, but no more than a millisecond's worth: what is not used is a burst.
		// Fast links have up to 64, a tenth of a millisecond's worth: the bucket is shared,
		// and CPUs wait for it.
		Chunk: uint32(max(frame, min(8*frame, rate/1000), min(64*frame, rate/10_000))),
	}, nil
}

// PolicerState is the state that all CPUs share. Times are in nanoseconds, rates in units in a
// tick, times 2^8.
type PolicerState struct {
	Next      uint64 // when the next slice is due
	Epoch     uint64 // number of the hash function
	Full      uint64 // when the bucket is full again
	Release   uint64 // when the next packet leaves the penalty box
	Slice     uint64 // the next one
	Fair      uint64 // rate that each flow may have
	Queue     uint64 // what the bucket lacked at the last tick
	Ticked    uint64
	Moves     uint64 // when the hash function changes
	Suspended uint64 // 1: so many bins would be in the penalty box that none is

	Probability [policerAll]uint32
	Slices      [slices]PolicerSlice
	Bins        [policerAll]PolicerBin
}

// PolicerSlice is the state of some of the bins.
type PolicerSlice struct {
	At    uint64 // when it was updated
	Epoch uint64 // in which
	Boxed uint64 // bins that are in the penalty box, or would be if they were not suspended
}

// PolicerBin is the state of a bin.
type PolicerBin struct {
	Seen  uint64 // units; under Blue, when the virtual queue is empty
	Rate  uint64 // averaged
	Level uint64 // of its integrator
}

// PolicerCPU is the state of one CPU.
type PolicerCPU struct {
	Credit   uint64 // units
	Random   uint64 // not 0
	Outcomes [NumOutcomes]PolicerCount
	Arrived  [policerAll]uint64 // units
}

// PolicerCount is a number of packets and of the bytes in them.
type PolicerCount struct{ Packets, Bytes uint64 }

// Policer limits what arrives to a rate, which flows share fairly, and limits flows
// that do not respond to almost nothing. It is the twin of bpf/police.h, and not safe for
// concurrent use.
type Policer struct {
	Limits
	State *PolicerState
	CPUs  []PolicerCPU
}

// NewPolicer returns a policer for as many CPUs as there are seeds of random numbers.
func NewPolicer(l Limits, seeds ...uint64) *Policer {
	p := &Policer{Limits: l, State: new(PolicerState), CPUs: make([]PolicerCPU, len(seeds))}
	for i, seed := range seeds {
		p.CPUs[i].Random = seed | 1
	}
	return p
}

// FairRate returns a rate of a [PolicerState] in units a second.
func FairRate(perTick uint64) float64 {
	return float64(perTick) / (1 << unitShift) / PolicerTick.Seconds()
}

// Admit decides on a packet of the flow with hash h that arrives at a CPU, of this
// length in bytes, at a time in nanoseconds. canMark says that the packet can be marked.
func (p *Policer) Admit(cpu int, h uint64, length uint32, canMark bool, now uint64) Outcome {
	s, c := p.State, &p.CPUs[cpu]
	if p.Controller != Bucket {
		for i := 0; i < slices && isDue(s.Next, now); i++ {
			p.turn(now)
		}
	}
	units := length
	if p.Packets {
		units = 1
	}
	o := p.judge(c, h, units, canMark, now)
	c.Outcomes[o].Packets++
	c.Outcomes[o].Bytes += uint64(length)
	return o
}

func isDue(time, now uint64) bool { return int64(now-time) >= 0 }

func (p *Policer) judge(c *PolicerCPU, h uint64, units uint32, canMark bool, now uint64) Outcome {
	s, marked := p.State, false
	if p.Controller != Bucket {
		switch least := p.least(c, h, units, now); {
		case least >= one:
			if !isDue(s.Release, now) {
				return DroppedBoxed
			}
			s.Release = now + p.Gap
		case least > 0:
			r := c.random()
			if r+one < 2*least {
				return DroppedEarly
			}
			if r < least {
				if !canMark {
					return DroppedEarly
				}
				marked = true
			}
		}
	}
	switch {
	case !p.pay(c, units, now):
		return DroppedOver
	case marked:
		return AdmittedMarked
	}
	return Admitted
}

// least counts a packet in its bins, and returns the least of their probabilities.
func (p *Policer) least(c *PolicerCPU, h uint64, units uint32, now uint64) uint32 {
	least, z := uint32(one), hash.Nth(h, p.State.Epoch)
	for level := range PolicerLevels {
		bin := level*PolicerBins + int(z>>(8*level)%PolicerBins)
		if p.Controller == Blue {
			least = min(least, p.blue(bin, units, now))
			continue
		}
		c.Arrived[bin] += uint64(units)
		least = min(least, p.State.Probability[bin])
	}
	return least
}

// blue applies the paper's rule to a bin.
func (p *Policer) blue(bin int, units uint32, now uint64) uint32 {
	s := p.State
	empty, prob := s.Bins[bin].Seen, s.Probability[bin]
	if isDue(empty, now) {
		empty = now
		prob -= min(prob, blueFall)
	} else if isDue(now+blueFull, empty) && isDue(now+blueBacklog, s.Full) {
		prob = min(prob+blueRise, one)
	}
	empty += uint64(units) * p.BinCost >> costShift
	if isDue(now+2*blueFull, empty) {
		empty = now + 2*blueFull
	}
	s.Bins[bin].Seen, s.Probability[bin] = empty, prob
	return prob
}

func (p *Policer) pay(c *PolicerCPU, units uint32, now uint64) bool {
	s := p.State
	if c.Credit < uint64(units) {
		take := uint64(max(units, p.Chunk))
		cost := take * p.Cost >> costShift
		if int64(s.Full-now) > int64(p.Depth) {
			return false
		}
		if isDue(s.Full, now) {
			s.Full = now
		}
		s.Full += cost
		c.Credit += take
	}
	c.Credit -= uint64(units)
	return true
}

func (c *PolicerCPU) random() uint32 {
	c.Random ^= c.Random << 13
	c.Random ^= c.Random >> 7
	c.Random ^= c.Random << 17
	return uint32(c.Random >> 48)
}

// turn updates the slice of bins that is due. Two CPUs may do so at once. The second may have
// the older time: then it does nothing, or averages a rate twice.
func (p *Policer) turn(now uint64) {
	s := p.State
	n := s.Slice % slices
	s.Slice = n + 1
	if isDue(s.Next+tick, now) {
		s.Next = now - tick + step
	}
	s.Next += step
	if n == 0 {
		p.steer(now)
	}
	of := &s.Slices[n]
	elapsed := now - of.At
	if !isDue(of.At+tick/2, now) {
		return
	}
	of.At = now
	ticks := uint64(0)
	if of.Epoch == s.Epoch {
		if p.Controller == Blue {
			return
		}
		ticks = min((elapsed+tick/2)/tick, idle)
	}
	of.Epoch = s.Epoch
	of.Boxed = 0
	for bin := n * slice; bin < (n+1)*slice; bin++ {
		if p.update(int(bin), elapsed>>10, ticks) {
			of.Boxed++
		}
	}
}

// kept is the share of a rate, of 256, that remains after as many ticks: three quarters
// in each.
var kept = [1 + idle]uint64{0, 192, 144, 108, 81, 61, 46, 35}

// steer sets the fair rate so that the bucket lacks what it should.
func (p *Policer) steer(now uint64) {
	s := p.State
	elapsed := now - s.Ticked
	if !isDue(s.Ticked+tick/2, now) {
		return
	}
	s.Ticked = now
	var queue, boxed uint64
	if !isDue(s.Full, now) {
		queue = (s.Full - now) * p.Limit / tick
	}
	fair := int64(s.Fair)
	fair -= (461*int64(queue-p.Target) - 435*int64(s.Queue-p.Target)) >> 12
	if queue == 0 {
		fair += fair>>8 + 1
	}
	fair = max(fair, int64(p.Limit>>12)+1)
	if fair > int64(p.Limit) || elapsed >= idle*tick {
		fair = int64(p.Limit)
	}
	s.Fair, s.Queue = uint64(fair), queue
	for i := range s.Slices {
		boxed += s.Slices[i].Boxed
	}
	s.Suspended = 0
	if boxed > policerAll/4 {
		s.Suspended = 1
	}
	if isDue(s.Moves, now) {
		s.Moves = now + p.Lifetime
		s.Epoch++
	}
}

// update updates a bin, and reports whether it belongs into the penalty box.
func (p *Policer) update(bin int, microseconds, ticks uint64) bool {
	s := p.State
	b := &s.Bins[bin]
	var sum uint64
	for i := range p.CPUs {
		sum += p.CPUs[i].Arrived[bin]
	}
	arrived := sum - b.Seen
	if int64(arrived) < 0 && ticks > 0 { // another CPU has seen more meanwhile
		arrived = 0
	} else {
		b.Seen = sum
	}
	if ticks == 0 {
		b.Rate, b.Level, s.Probability[bin] = 0, 0, 0
		return false
	}
	keep := kept[ticks]
	b.Rate = (b.Rate*keep + arrived*(tick>>10<<unitShift)/microseconds*(256-keep)) >> 8
	var prob uint64
	last := s.Probability[bin]
	if b.Rate > s.Fair {
		prob = one - 1 - s.Fair*(one-1)/b.Rate
	}
	if prob >= half {
		b.Level = min(b.Level+boxRise*ticks, boxMax)
	} else if prob == 0 || last < one {
		b.Level -= min(b.Level, ticks)
	}
	s.Probability[bin] = uint32(prob)
	if b.Level < boxAt {
		return false
	}
	if s.Suspended == 0 {
		s.Probability[bin] = one
	}
	return true
}
