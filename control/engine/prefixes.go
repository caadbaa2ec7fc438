package engine

import (
	"fmt"

	"weir/filter/membership"
	"weir/filter/prefix"
)

// maxLevels leaves room for both sides of a family in a set's shapes.
const maxLevels = membership.MaxShapes / 2

// maxGrowth bounds how many entries one prefix may become on average.
const maxGrowth = 16

// planPrefixes returns the levels of prefixes. It fails where they would become too many.
func planPrefixes(h *prefix.Histogram) (prefix.Levels, error) {
	// Memory for probes: entries may grow by a quarter, and by a few thousand in any
	// case; where the lengths are too many for that, by maxGrowth.
	n := h.Total()
	levels := prefix.Plan(h, n+n/4+4096, maxLevels)
	if grown := levels.Expanded(h); grown > maxGrowth*n+1<<20 {
		return nil, fmt.Errorf("%d prefixes have too many different lengths: at %d lengths, as many as a set can have, they are %d",
			n, maxLevels, grown)
	}
	return levels, nil
}
