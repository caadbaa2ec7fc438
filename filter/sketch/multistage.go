package sketch

import "iter"

// Multistage is a Tracker on one CPU, over any number of intervals: two banks
// on the heap, one of which counts while the other is prepared, as the data
// plane and the control plane do together. It is not safe for concurrent use.
type Multistage struct {
	*Bank // of the present interval
	idle  *Bank

	threshold Threshold
	previous  uint64 // units in the last interval
}

// NewMultistage returns an empty filter at the start of its first interval. It
// fails if [NewBank] does.
func NewMultistage(t Tracker, threshold Threshold) (*Multistage, error) {
	m := &Multistage{threshold: threshold}
	for _, b := range []**Bank{&m.Bank, &m.idle} {
		var err error
		if *b, err = NewBank(t, make([]uint64, t.LineWords()), make([]uint64, t.FlowWords())); err != nil {
			return nil, err
		}
	}
	m.Admit(threshold.Admission(0, 1))
	return m, nil
}

// Heavy yields the flows in the memory whose estimates are heavy in the present
// interval so far, in no particular order.
func (m *Multistage) Heavy() iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		heavy := m.heavy()
		for f := range m.Flows() {
			if f.Estimate(m.Unit) >= heavy && !yield(f) {
				return
			}
		}
	}
}

func (m *Multistage) heavy() uint64 { return m.threshold.Heavy(m.Total(), m.previous) }

// Next begins the next interval and preserves the entries for which
// [Flow.Lasts] holds.
func (m *Multistage) Next() {
	next, heavy := m.idle, m.heavy()
	next.Reset()
	next.Admit(m.threshold.Admission(m.Total(), 1))
	for f := range m.Flows() {
		if f.Lasts(m.Unit, heavy) {
			next.Keep(f) // without room, the flow passes the sketch again
		}
	}
	m.previous = m.Total()
	m.Bank, m.idle = next, m.Bank
}
