package list

import (
	"testing"

	"weir/filter/snapshot"
)

// TestNoGroups decodes groups that are of no set.
func TestNoGroups(t *testing.T) {
	for _, g := range []snapshot.Group{
		{Tag: groupV4<<groupShift | 33, Bits: 33},
		{Tag: groupV4<<groupShift | 24, Bits: 32},
		{Tag: groupV6<<groupShift | 129, Bits: 129},
		{Tag: groupV6<<groupShift | 64, Bits: 128, Keys: make([]byte, 16)},
		{Tag: groupV6<<groupShift | 128, Bits: 64, Keys: make([]byte, 8)},
		{Tag: groupFlows << groupShift, Bits: 8 * 13},
		{Tag: groupFlows<<groupShift | 1<<20, Bits: 8 * 13},
		{Tag: groupFlows<<groupShift | 32<<8 | 32, Bits: 8 * 13, Keys: make([]byte, 12)[:0:0]},
		{Tag: groupFlows<<groupShift | 24<<8 | 32, Bits: 8 * 13, Keys: []byte{0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0}},
		{Tag: 7 << groupShift, Bits: 0},
	} {
		if s, err := SetOfGroups([]snapshot.Group{g}); err == nil && s.Len() > 0 || err == nil && len(g.Keys) > 0 {
			t.Errorf("%+v: %d entries", g, s.Len())
		}
	}
}
