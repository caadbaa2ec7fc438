package sketch

import "math"

// Threshold defines a heavy hitter: one that has at least Units, in the tracker's
// unit, and at least Share of the total in an interval. Either may be 0.
//
// With a share, Units should still be above noise: it keeps flows out of the
// memory at the start of the first interval, when the total is a handful of
// packets, and on an idle link.
type Threshold struct {
	Units uint64
	Share float64 // 0…1
}

// A share applies to at least this fraction of the previous interval's total,
// for the same reason as Units.
const ofPrevious = 1. / 16

// Heavy returns the number of units from which a flow is heavy, given the
// totals of this interval and of the previous one.
func (t Threshold) Heavy(total, previous uint64) uint64 {
	return max(1, t.floor(previous), uint64(math.Ceil(t.Share*float64(total))))
}

func (t Threshold) floor(previous uint64) uint64 {
	return max(t.Units, uint64(t.Share*float64(previous)*ofPrevious))
}

// Admission returns the arguments of [Bank.Admit] with which no heavy hitter is
// missed, however its packets are spread over the given number of banks (CPUs
// times interfaces).
//
// One of C banks sees at least F/C of a flow of F units: without a share, a
// limit of at most F/C suffices. Even for a single bank it is half of F, since
// only the part before a flow's entry can be wrong.
//
// With a share s of N, the limit in a bank that counted N_c is the larger of a
// and s/2·N_c. A flow that reaches it in no bank has less than the sum of all
// these limits, hence less than C·a + s/2·N. A heavy hitter has at least F and at
// least s·N, hence at least their mean, F/2 + s/2·N: an a of at most F/2/C
// suffices. Limits were lower when the flow's last packet arrived than they are
// at the end, so it had entered by then.
func (t Threshold) Admission(previous uint64, banks int) (floor uint64, share float64) {
	f := t.floor(previous)
	if t.Share == 0 {
		return f / uint64(max(2, banks)), 0
	}
	return f / 2 / uint64(max(1, banks)), t.Share / 2
}
