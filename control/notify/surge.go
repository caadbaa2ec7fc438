package notify

import (
	"time"

	"weir/control/quantity"
)

// SurgeSpec says when packets that are dropped, or that arrive, are a surge. It begins when their
// rate has been as high for three seconds, and ends when it has been below half of that for ten.
type SurgeSpec struct {
	// A surge begins at this rate of dropped packets, whatever is usual. Default: only
	// times decides.
	Rate quantity.Rate `yaml:"rate,omitempty"`

	// A surge begins at this multiple of the usual rate, the average of some five
	// minutes before, but not below 1kpps. 0: only rate decides, and packets that arrive are
	// never a surge.
	Times float64 `yaml:"times" min:"0" max:"1000000"`
}

// DefaultTimes is the default of SurgeSpec.Times.
const DefaultTimes = 10

// SetDefaults sets the defaults.
func (s *SurgeSpec) SetDefaults() { s.Times = DefaultTimes }

// Validate returns what is wrong with a SurgeSpec, as [quantity.FieldErrors].
func (s SurgeSpec) Validate() error {
	var errs quantity.FieldErrors
	if s.Rate.Unit == quantity.Bytes || s.Rate.Unit == quantity.Bits {
		errs.Failf("rate", "%v: want packets a second, as in 50kpps", s.Rate)
	}
	return errs.Err()
}

const (
	// leastSurge is the rate below which a multiple of the average is no surge: a
	// host that drops a packet an hour is no patient at ten.
	leastSurge = 1000

	// beginAfter and endAfter are for how many seconds the rate must stay.
	beginAfter = 3
	endAfter   = 10

	// averageOver is the time constant of the average.
	averageOver = 5 * time.Minute
)

// Meter finds surges in a rate that it is given each second.
type Meter struct {
	SurgeSpec
	samples   float64 // up to averageOver in seconds
	average   float64 // not of a surge
	threshold float64 // of the surge; 0: there is none
	seconds   int     // for which the rate has been over the threshold, in a surge under half of it
}

// Observe takes a rate, in packets a second. It returns an event when a surge begins
// or ends, nil otherwise.
func (m *Meter) Observe(rate float64) (State, *DropsEvent) {
	if m.threshold > 0 {
		if rate >= m.threshold/2 {
			m.seconds = 0
			return "", nil
		}
		if m.seconds++; m.seconds < endAfter {
			return "", nil
		}
		ended := &DropsEvent{Rate: rate, Average: m.average, Threshold: m.threshold}
		m.threshold, m.seconds = 0, 0
		return End, ended
	}
	threshold := m.begins()
	if threshold == 0 || rate < threshold {
		m.seconds = 0
		m.learn(rate)
		return "", nil
	}
	if m.seconds++; m.seconds < beginAfter {
		return "", nil
	}
	m.threshold, m.seconds = threshold, 0
	return Begin, &DropsEvent{Rate: rate, Average: m.average, Threshold: threshold}
}

// begins returns the rate from which on there is a surge, 0 for none.
func (m *Meter) begins() float64 {
	var least float64
	if m.Times > 0 && m.samples > 0 { // what was there before the first sample is unknown
		least = max(m.Times*m.average, leastSurge)
	}
	if r := m.Rate.PerSecond(); r > 0 && (least == 0 || r < least) {
		least = r
	}
	return least
}

// learn takes a rate into the average, which is the mean of all until there are enough.
func (m *Meter) learn(rate float64) {
	m.samples = min(m.samples+1, averageOver.Seconds())
	m.average += (rate - m.average) / m.samples
}
