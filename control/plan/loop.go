package plan

import (
	"fmt"

	"weir/control/plan/curve"
	"weir/filter/icarus"
)

// Loop is a planned loop filter, carried in packets.
type Loop struct {
	K          int     `json:"k"`           // bits of a node's mask
	FalseAlarm float64 `json:"false_alarm"` // probability that a loop-free path is reported
}

// LoopFor plans a loop filter of the given bits, 64, 128 or 256, for loop-free
// paths of hops nodes, of which so many in a row must find it unchanged. It fails
// with an InvalidError on other sizes, on no hops, and on nobody to confirm.
func LoopFor(bits, hops, confirm int) (Loop, error) {
	k, falseAlarm, err := icarus.Best(bits, hops, confirm)
	if err != nil {
		return Loop{}, invalid("plan loop: %w", err)
	}
	return Loop{K: k, FalseAlarm: falseAlarm}, nil
}

// LoopFigure draws the probability that a loop-free path is reported against
// its length, for each size of filter with its best k. It fails below 2 hops, as
// the first node sets bits in any case.
func LoopFigure(hops int) (*curve.Figure, error) {
	if hops < 2 {
		return nil, invalid("plan loop: nothing to draw for %d hops", hops)
	}
	f := curve.New("False alarm on a loop-free path, best k", "hops", "probability")
	f.LogY()
	for _, bits := range icarus.Sizes {
		var points curve.Points
		for h := 2; h <= hops; h++ {
			l, err := LoopFor(bits, h, 1)
			if err != nil {
				return nil, err
			}
			points = points.At(float64(h), l.FalseAlarm)
		}
		if err := f.Lines(curve.Named{Name: fmt.Sprintf("%d bits", bits), Points: points}); err != nil {
			return nil, err
		}
	}
	return f, nil
}
