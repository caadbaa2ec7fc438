package sketch

import "math"

// Threshold says what makes a flow heavy in an interval: at least Units, in the
// tracker's unit, and at least Share of all that was counted. Either may be 0.
//
// With a share, Units should still be more than noise: it is what keeps flows
// out of the memory at the start of the first interval, when all traffic is a
// handful of packets, and on an idle link for good.
type Threshold struct {
	Units uint64
	Share float64 // 0…1
}

// A share is taken of no less than this part of what the previous interval
// counted: see Units for the reason.
const ofPrevious = 1. / 16

// Heavy is the number of units that make a flow heavy in an interval in which
// total were counted, and previous in the one before.
func (t Threshold) Heavy(total, previous uint64) uint64 {
	return max(1, t.floor(previous), uint64(math.Ceil(t.Share*float64(total))))
}

func (t Threshold) floor(previous uint64) uint64 {
	return max(t.Units, uint64(t.Share*float64(previous)*ofPrevious))
}

// Admission is what Bank.Admit needs for no heavy flow to be missed, wherever
// its packets are counted among so many banks (CPUs, times interfaces).
//
// Of a flow of F units, one of C banks has F/C or more: without a share, a
// limit of at most F/C will do. It is half of F even for a single bank, since
// what a flow had before it entered is all that can be wrong.
//
// With a share s of N, the limit in a bank that counted N_c is the larger of a
// and s/2·N_c. A flow that reaches it in no bank has less than the sum of all
// these limits, hence less than C·a + s/2·N. A heavy flow has F and s·N or more,
// so at least their mean, F/2 + s/2·N: an a of at most F/2/C will do. Limits
// were lower when the flow's last packet came in than they are at the end, so
// that it entered by then.
func (t Threshold) Admission(previous uint64, banks int) (floor uint64, share float64) {
	f := t.floor(previous)
	if t.Share == 0 {
		return f / uint64(max(2, banks)), 0
	}
	return f / 2 / uint64(max(1, banks)), t.Share / 2
}
