package icarus

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/combin"
)

// MaxConfirm is the maximum number of consecutive nodes that [Choose]
// considers.
const MaxConfirm = 4

// FalseAlarm returns the exact probability that a packet is falsely reported by
// at least one of hops different nodes, with independent masks of k of size
// bits, if confirm consecutive nodes must find its filter unchanged.
//
// It tracks the number of set bits, and the number of consecutive nodes that
// changed nothing, from node to node: of a mask's k bits, a are new to a filter
// of j bits with the hypergeometric probability C(size − j, a) · C(j, k − a) /
// C(size, k). For confirm = 1 the result is one minus the probability that
// every node sets a new bit. The false-positive rate of a single test would be
// that of Christensen, Roginsky and Jimeno for k distinct positions; a product
// of those over the hops would not be exact, since the tests are not
// independent.
//
// It fails if [Mask] would for size and k, if hops is below 1, and unless 1 ≤
// confirm ≤ 255.
func FalseAlarm(size, k, hops, confirm int) (float64, error) {
	if err := check(size, k); err != nil {
		return 0, err
	}
	if hops < 1 || confirm < 1 || confirm > 255 {
		return 0, fmt.Errorf("icarus: invalid path: %d hops, %d to confirm", hops, confirm)
	}
	return falseAlarm(size, k, hops, confirm), nil
}

func falseAlarm(size, k, hops, confirm int) float64 {
	step := transitions(size, k)
	// p[r][j] is the probability that no alarm has been raised so far, j bits
	// are set, and the last r nodes changed nothing.
	p, next := table(confirm, size+1), table(confirm, size+1)
	p[0][0] = 1
	var alarm float64 // summed directly: one minus the rest would lose small values
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

// transitions returns, for a filter with j of size bits set, the probability
// that a mask of k bits sets a new ones, as entry [j][a].
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

// Best returns the k that makes false alarms least likely on a path of hops
// nodes, and their probability. It fails if FalseAlarm does.
func Best(size, hops, confirm int) (k int, falseAlarm float64, err error) {
	falseAlarm = math.Inf(1)
	for i := 1; i <= size/2; i++ {
		p, err := FalseAlarm(size, i, hops, confirm)
		if err != nil {
			return 0, 0, err
		}
		// Few bits have few values to choose from, many fill the filter, and
		// there is one minimum in between.
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
	Confirm int // c, consecutive nodes that must find the filter unchanged
}

// Choose returns the parameters for loop-free paths of up to hops nodes of
// which at most the fraction target may be reported: the least Confirm, at most
// MaxConfirm, and with it the smallest size. Early detection thus takes
// precedence over a small filter. It fails if no geometry attains the target.
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
	return Geometry{}, 0, fmt.Errorf("icarus: no filter of up to %d bits keeps false alarms on %d hops below %g",
		Sizes[len(Sizes)-1], hops, target)
}
