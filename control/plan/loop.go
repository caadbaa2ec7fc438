package plan

import (
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
