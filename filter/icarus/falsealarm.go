package icarus

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/combin"
)

// MaxConfirm is the largest number of nodes in a row that Best and Choose
// consider.
const MaxConfirm = 4

// FalseAlarm is the exact probability that a packet which passes hops different
// nodes, with independent masks of k of size bits, is falsely reported at one
// of them at least, when confirm nodes in a row must find its filter unchanged.
//
// It follows the number of bits that are set, and the number of nodes in a row
// that changed nothing, from node to node: of a mask's k bits, a are new to a
// filter of j bits with the hypergeometric probability C(size − j, a) · C(j,
// k − a) / C(size, k). For confirm = 1 that is one minus the probability that
// every node sets a new bit. The false-positive rate of a single test would be
// the one of Christensen, Roginsky and Jimeno for k distinct positions; their
// product over the hops would not be exact, for the tests are not independent.
//
// It fails on sizes and masks that Mask refuses, on no hops, and unless 1 ≤
// confirm ≤ 255.
func FalseAlarm(size, k, hops, confirm int) (float64, error) {
	if err := check(size, k); err != nil {
		return 0, err
	}
	if hops < 1 || confirm < 1 || confirm > 255 {
		return 0, fmt.Errorf("icarus: %d hops, %d to confirm", hops, confirm)
	}
	return falseAlarm(size, k, hops, confirm), nil
}

func falseAlarm(size, k, hops, confirm int) float64 {
	step := transitions(size, k)
	// p[r][j] is the probability that no alarm was raised so far, j bits are
	// set, and the last r nodes changed nothing.
	p, next := table(confirm, size+1), table(confirm, size+1)
	p[0][0] = 1
	var alarm float64 // summed up itself: one minus the rest would lose small ones
	for range hops {
		for r := range next {
			clear(next[r])
		}
		for r := range p {
			for j, q := range p[r] {
				if q == 0 {
					continue
				}
				if r+1 < confirm {
					next[r+1][j] += q * step[j][0]
				} else {
					alarm += q * step[j][0]
				}
				for a := 1; a <= k && j+a <= size; a++ {
					next[0][j+a] += q * step[j][a]
				}
			}
		}
		p, next = next, p
	}
	return alarm
}

// transitions gives, for a filter with j of size bits set, the probability that
// a mask of k bits sets a new ones, as entry [j][a].
func transitions(size, k int) [][]float64 {
	all := combin.LogGeneralizedBinomial(float64(size), float64(k))
	step := table(size+1, k+1)
	for j := range step {
		for a := max(0, k-j); a <= min(k, size-j); a++ {
			step[j][a] = math.Exp(combin.LogGeneralizedBinomial(float64(size-j), float64(a)) +
				combin.LogGeneralizedBinomial(float64(j), float64(k-a)) - all)
		}
	}
	return step
}

func table(rows, columns int) [][]float64 {
	t, cells := make([][]float64, rows), make([]float64, rows*columns)
	for i := range t {
		t[i], cells = cells[:columns], cells[columns:]
	}
	return t
}

// Best is the k that makes false alarms least likely on a path of hops nodes,
// and their probability. It fails where FalseAlarm does.
func Best(size, hops, confirm int) (k int, falseAlarm float64, err error) {
	falseAlarm = math.Inf(1)
	for i := 1; i <= size/2; i++ {
		p, err := FalseAlarm(size, i, hops, confirm)
		if err != nil {
			return 0, 0, err
		}
		// Few bits collide for want of places, many for want of room, and in
		// between there is one minimum.
		if p > falseAlarm {
			break
		}
		k, falseAlarm = i, p
	}
	if k == 0 {
		return 0, 0, check(size, 1)
	}
	return k, falseAlarm, nil
}

// Geometry is a choice of parameters for a domain.
type Geometry struct {
	Size    int // m, bits of a packet's filter
	K       int // bits of a node's mask
	Confirm int // c, nodes in a row that must find the filter unchanged
}

// Choose gives the parameters for loop-free paths of up to hops nodes of which
// at most the fraction target may be reported: the least Confirm, at most
// MaxConfirm, and with it the smallest size. Detection at the first revisit is
// thus preferred to a small filter. It fails if no geometry attains the target.
func Choose(hops int, target float64) (g Geometry, falseAlarm float64, err error) {
	for confirm := 1; confirm <= MaxConfirm; confirm++ {
		for _, size := range Sizes {
			k, p, err := Best(size, hops, confirm)
			if err != nil {
				return Geometry{}, 0, err
			}
			if p <= target {
				return Geometry{size, k, confirm}, p, nil
			}
		}
	}
	return Geometry{}, 0, fmt.Errorf("icarus: no filter of up to %d bits keeps false alarms on %d hops under %g",
		Sizes[len(Sizes)-1], hops, target)
}
