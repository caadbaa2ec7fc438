package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sync"

	"weir/filter/key"
	"weir/filter/membership"
)

// mergeShapes returns at which shape flows of each shape are stored, at most
// membership.MaxShapes in all. It merges the cheapest two until they are few enough,
// and reports false if the flows would grow too much.
//
// The cheapest partner of each shape is kept between merges, so that a merge computes
// the costs of few pairs anew.
func mergeShapes(counts map[key.Shape]int) (stored map[key.Shape]key.Shape, ok bool) {
	stored = make(map[key.Shape]key.Shape, len(counts))
	n, grown := 0, 0
	for s, c := range counts {
		stored[s] = s
		n += c
	}
	if len(counts) <= membership.MaxShapes {
		return stored, true
	}
	if len(counts) > maxFlowsShapes {
		return nil, false
	}
	m := newMerger(counts)
	for len(m) > membership.MaxShapes {
		cheapest := 0
		for i, c := range m {
			if c.cost < m[cheapest].cost {
				cheapest = i
			}
		}
		a, b, cost := m[cheapest].shape, m[cheapest].with, m[cheapest].cost
		if grown += cost; cost == math.MaxInt || grown > max(maxFlowGrowth, n/2) {
			return nil, false
		}
		both := joint(a, b)
		m = m.merge(a, b, both, cost)
		for s, at := range stored {
			if at == a || at == b {
				stored[s] = both
			}
		}
	}
	return stored, true
}

// merger is shapes in order.
type merger []mergedShape

// mergedShape is a shape, the number of its flows, and with which one of those that
// follow it is merged at the least cost, in flows. The cost is math.MaxInt where there is
// none.
type mergedShape struct {
	shape key.Shape
	size  int
	with  key.Shape
	cost  int
}

func newMerger(counts map[key.Shape]int) merger {
	m := make(merger, 0, len(counts))
	for _, s := range slices.SortedFunc(maps.Keys(counts), key.Shape.Compare) {
		m = append(m, mergedShape{shape: s, size: counts[s]})
	}
	for i := range m {
		m.pair(i)
	}
	return m
}

// pair finds the cheapest partner of a shape, the first of several.
func (m merger) pair(i int) {
	one := &m[i]
	one.cost = math.MaxInt
	for _, other := range m[i+1:] {
		if other.shape.Fields != one.shape.Fields {
			break
		}
		if c := mergeCost(*one, other); c < one.cost {
			one.with, one.cost = other.shape, c
		}
	}
}

// mergeCost returns how many flows more two shapes are at their joint shape.
func mergeCost(a, b mergedShape) int {
	both := joint(a.shape, b.shape)
	return growth(a.size, a.shape, both) + growth(b.size, b.shape, both)
}

// merge merges two shapes into their joint one, which may be in use.
func (m merger) merge(a, b, both key.Shape, cost int) merger {
	size := cost
	m = slices.DeleteFunc(m, func(c mergedShape) bool {
		gone := c.shape == a || c.shape == b
		if gone {
			size += c.size
		}
		return gone
	})
	at, inUse := slices.BinarySearchFunc(m, both, func(c mergedShape, s key.Shape) int { return c.shape.Compare(s) })
	if !inUse {
		m = slices.Insert(m, at, mergedShape{shape: both})
	}
	m[at].size += size
	for i := range m {
		c := &m[i]
		switch {
		case c.shape.Fields != both.Fields:
		case i == at || c.with == a || c.with == b || c.with == both:
			m.pair(i)
		case i < at:
			if cost := mergeCost(*c, m[at]); cost < c.cost || cost == c.cost && both.Compare(c.with) < 0 {
				c.with, c.cost = both, cost
			}
		}
	}
	return m
}

// maxPlans bounds the plans that are remembered: some ten megabytes.
const maxPlans = 512

// plans remembers what mergeShapes returned, which depends on the numbers of flows by
// shape alone. The same are asked for at each look whom lists would cut off, for each
// list, and at each update.
var plans = memory{all: make(map[[sha256.Size]byte]mergePlan)}

// memory is safe for concurrent use.
type memory struct {
	mu   sync.Mutex
	all  map[[sha256.Size]byte]mergePlan
	made int // plans that were not remembered
}

type mergePlan struct {
	stored map[key.Shape]key.Shape // immutable
	ok     bool
}

// of is mergeShapes. The result must not be changed.
func (m *memory) of(counts map[key.Shape]int) (stored map[key.Shape]key.Shape, ok bool) {
	if len(counts) <= membership.MaxShapes || len(counts) > maxFlowsShapes {
		return mergeShapes(counts) // which is cheap
	}
	var text []byte
	for _, s := range slices.SortedFunc(maps.Keys(counts), key.Shape.Compare) {
		text = append(text, byte(s.Fields), s.SrcBits, s.DstBits)
		text = binary.AppendUvarint(text, uint64(counts[s]))
	}
	sum := sha256.Sum256(text)
	m.mu.Lock()
	p, known := m.all[sum]
	m.mu.Unlock()
	if known {
		return p.stored, p.ok
	}
	p.stored, p.ok = mergeShapes(counts)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) >= maxPlans {
		clear(m.all)
	}
	m.all[sum] = p
	m.made++
	return p.stored, p.ok
}
