package plan

import (
	"weir/filter/icarus"
)

// Loop is a planned loop filter, carried in packets.
type Loop struct {
	K          int     `json:"k"`           // bits of a node's mask
	FalseAlarm float64 `json:"false_alarm"` // probability that a loop-free path is reported
}

// LoopFor plans a loop filter of 64, 128 or 256 bits for loop-free paths of hops
// nodes. A loop is reported after confirm nodes in a row find the filter
// unchanged. It fails with an InvalidError for other sizes and unless hops and
// confirm are positive.
func LoopFor(bits, hops, confirm int) (Loop, error) {
	k, falseAlarm, err := icarus.Best(bits, hops, confirm)
	if err != nil {
		return Loop{}, invalid("plan loop: %w", err)
	}
	return Loop{K: k, FalseAlarm: falseAlarm}, nil
}
