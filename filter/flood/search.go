package flood

import (
	"cmp"
	"math/bits"
	"slices"
)

// Sizes of the search.
const (
	maxCurrent = 2048 // records of the suspect second
	maxUsual   = 4096 // records of the baseline
	beamWidth  = 10
	beamDepth  = 5
	minSupport = 0.05 // of the suspect second's records that a condition has
)

// set is a set of records, by bits: those of the suspect second first, then those of the baseline.
type set []uint64

func (s set) has(i int) bool { return s[i/64]>>(i%64)&1 != 0 }
func (s set) add(i int)      { s[i/64] |= 1 << (i % 64) }

func (s set) and(o set) set {
	both := make(set, len(s))
	for i := range s {
		both[i] = s[i] & o[i]
	}
	return both
}

// space is where a search takes place.
type space struct {
	records       []Record // current ones, then usual ones
	current       int
	offset        int // in sets, of the first usual record: sets of both begin with a word
	rate, usual   float64
	all           float64 // the usual rate of all that the usual records are of
	rest          set     // current records that no rule matches yet, and all usual ones
	conversation  []int32
	conversations int // of the usual records
	live          set // current records in conversations
	liveCount     int // conversations of these
	conditions    []Condition
	sets          []set
	order         [2][]int // of records, by Length and DestinationPort
	seen          []uint32 // stamps of conversations
	stamp         uint32
}

// newSpace prepares a search. The rates are of the packets that the current records sample, and
// all that base is a sample of.
func newSpace(current, base []Record, rate, usual, all float64) *space {
	base = pick(base, maxUsual)
	g := &space{current: len(current), offset: (len(current) + 63) / 64 * 64, rate: rate, usual: usual, all: all}
	g.records = append(slices.Clone(current), base...)
	g.rest, g.live = g.newSet(), g.newSet()
	numbers, live := make(map[Flow]int32), make(map[int32]bool)
	g.conversation = make([]int32, len(g.records))
	usualOnes := make(map[int32]bool)
	for i := range g.records {
		r := &g.records[i]
		g.rest.add(g.bit(i))
		n, ok := numbers[r.Flow()]
		if !ok {
			n = int32(len(numbers))
			numbers[r.Flow()] = n
		}
		g.conversation[i] = n
		if i >= g.current {
			usualOnes[n] = true
		} else if r.Conversing == Conversant {
			g.live.add(g.bit(i))
			live[n] = true
		}
	}
	g.conversations, g.liveCount = len(usualOnes), len(live)
	g.seen = make([]uint32, len(numbers))
	for i, f := range intervals {
		order := make([]int, len(g.records))
		for j := range order {
			order[j] = j
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(g.records[a].Value(f), g.records[b].Value(f)) })
		g.order[i] = order
	}
	g.propose()
	return g
}

// intervals are the fields of which intervals are tried. Those of source ports, windows, TTLs and
// IP ids hold by chance in what forgers draw at random, and are evidence of nothing.
var intervals = [2]Field{Length, DestinationPort}

func (g *space) bit(i int) int {
	if i < g.current {
		return i
	}
	return g.offset + i - g.current
}

func (g *space) newSet() set { return make(set, (g.offset+len(g.records)-g.current+63)/64) }

// setOf returns the records that match: those of a condition, or of a rule.
func (g *space) setOf(of interface{ Matches(*Record) bool }) set {
	s := g.newSet()
	for i := range g.records {
		if of.Matches(&g.records[i]) {
			s.add(g.bit(i))
		}
	}
	return s
}

// propose collects the conditions that enough of the suspect second meets.
func (g *space) propose() {
	least := max(3, int(minSupport*float64(g.current)))
	add := func(c Condition) {
		g.conditions, g.sets = append(g.conditions, c), append(g.sets, g.setOf(&c))
	}
	for f := range numValues {
		counts := make(map[uint32]int)
		for i := range g.current {
			counts[g.records[i].Value(f)]++
		}
		for v, n := range counts {
			if n < least || !f.says(v) {
				continue
			}
			add(Condition{Field: f, Lo: v, Hi: v})
		}
	}
	counts := make(map[Condition]int)
	for i := range g.current {
		r := &g.records[i]
		lengths := []int{128, 64, 48}
		if r.IPv4 {
			lengths = []int{32, 24, 22, 20, 16}
		}
		for _, n := range lengths {
			if p, err := r.Destination().Prefix(n); err == nil {
				counts[Condition{Field: DestinationPrefix, Prefix: p}]++
			}
		}
		if p, err := r.Source().Prefix(lengths[1]); err == nil {
			counts[Condition{Field: SourcePrefix, Prefix: p}]++
		}
	}
	for c, n := range counts {
		if n >= least {
			add(c)
		}
	}
}

func (g *space) count(s set) (current, usual int) {
	words := g.offset / 64
	for i, w := range s {
		if i < words {
			current += bits.OnesCount64(w & g.rest[i])
		} else {
			usual += bits.OnesCount64(w)
		}
	}
	return current, usual
}

// covered returns the share of the excess that a set is.
func (g *space) covered(s set) float64 {
	current, usual := g.count(s)
	above := g.rate*float64(current)/float64(max(1, g.current)) - g.all*share(usual, len(g.records)-g.current)
	return min(1, above/(g.rate-g.usual))
}

// cost returns the share of usual packets or conversations that a set is, whichever is more, and the
// share of live conversations.
func (g *space) cost(s set) (ofUsual, ofLive float64) {
	_, usual := g.count(s)
	g.stamp += 2
	conversations, live := 0, 0
	for w, word := range s {
		if w < g.offset/64 {
			word &= g.live[w]
		}
		for ; word != 0; word &= word - 1 {
			i, mark := w*64+bits.TrailingZeros64(word), g.stamp
			if i >= g.offset {
				i, mark = i-g.offset+g.current, g.stamp+1
			}
			if n := g.conversation[i]; g.seen[n] != mark {
				g.seen[n] = mark
				if mark == g.stamp {
					live++
				} else {
					conversations++
				}
			}
		}
	}
	return max(share(usual, len(g.records)-g.current), share(conversations, g.conversations)), share(live, g.liveCount)
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// state is a rule of the beam.
type state struct {
	rule  Rule
	set   set
	score float64
	cost  float64 // share of usual packets or conversations
}

func (g *space) state(u Rule, s set) (state, bool) {
	covered := g.covered(s)
	if covered < minCovered {
		return state{}, false
	}
	usual, live := g.cost(s)
	return state{u, s, covered - collateralPenalty*(usual+live) - 0.002*float64(len(u.Conditions)), usual}, true
}

// best returns the rule with the largest share of the excess for what it costs, which is at most a
// share of usual packets or conversations. Where a flood is known, it begins with the destinations of
// the flood: what else changed meanwhile is not of it.
func (g *space) best(known []Rule, most float64) (Rule, bool) {
	all := g.newSet()
	for i := range g.records {
		all.add(g.bit(i))
	}
	beam := []state{{set: all, score: -collateralPenalty}}
	if len(known) > 0 {
		beam = nil
		for _, u := range known {
			if st, ok := g.state(u, g.setOf(&u.Conditions[0])); ok {
				beam = append(beam, st)
			}
		}
		if len(beam) == 0 {
			beam = []state{{set: all, score: -collateralPenalty}}
		}
	}
	var top state
	for range beamDepth {
		var next []state
		for _, b := range beam {
			for i, c := range g.conditions {
				if b.rule.has(c.Field) != nil {
					continue
				}
				if st, ok := g.state(b.rule.with(c), b.set.and(g.sets[i])); ok {
					next = append(next, st)
				}
			}
			for i, f := range intervals {
				if c, ok := g.interval(b.set, i); ok && b.rule.has(f) == nil {
					if st, ok := g.state(b.rule.with(c), b.set.and(g.setOf(&c))); ok {
						next = append(next, st)
					}
				}
			}
		}
		slices.SortStableFunc(next, func(a, b state) int {
			return cmp.Or(cmp.Compare(b.score, a.score), slices.Compare(keys(&a.rule), keys(&b.rule)))
		})
		next = slices.CompactFunc(next, func(a, b state) bool { return slices.Equal(a.set, b.set) })
		beam = next[:min(len(next), beamWidth)]
		if len(beam) == 0 {
			break
		}
		for i := range beam { // in the order of scores
			if b := &beam[i]; b.score > top.score && b.cost <= most && isEvidence(&b.rule) {
				top = *b
				break
			}
		}
	}
	if top.score <= 0 {
		return Rule{}, false
	}
	return g.tighten(top), true
}

// keys orders rules of the same score.
func keys(u *Rule) []uint32 {
	var k []uint32
	for _, c := range u.Conditions {
		k = append(k, uint32(c.Field), c.Lo, c.Hi, uint32(max(0, c.Prefix.Bits())))
	}
	return k
}

// isEvidence reports whether a rule has a destination or a protocol, and says more than where from
// a packet comes: no rule is of source prefixes or source ports alone.
func isEvidence(u *Rule) bool {
	named, more := false, false
	for _, c := range u.Conditions {
		switch c.Field {
		case Protocol, DestinationPrefix:
			named = true
		case FragmentPart, Flags, Length, DestinationPort, TTL, HeaderLength, Payload, Strangers, SourcePort:
			more = true
		}
	}
	return named && (more || u.has(Protocol) != nil)
}

// interval returns the interval of a field in which a set has the most for what it costs: the
// largest sum of consecutive values (Kadane). It is rounded outwards, since the least and the
// greatest value of a sample are not those of the flood, as far as no normal packet is there.
func (g *space) interval(s set, which int) (Condition, bool) {
	f := intervals[which]
	excess := max(1, float64(g.current)*(g.rate-g.usual)/g.rate)
	cost := -collateralPenalty / float64(max(1, len(g.records)-g.current))
	liveCost := -collateralPenalty / float64(max(1, g.liveCount))
	var values []uint32
	var sums []float64
	for _, i := range g.order[which] {
		r := &g.records[i]
		v := r.Value(f)
		if !s.has(g.bit(i)) || v == absent {
			continue
		}
		x := cost
		if i < g.current {
			if !g.rest.has(i) {
				continue
			}
			x = 1 / excess
			if g.live.has(i) {
				x = liveCost
			}
		}
		if n := len(values); n > 0 && values[n-1] == v {
			sums[n-1] += x
		} else {
			values, sums = append(values, v), append(sums, x)
		}
	}
	best, lo, hi := 0.0, 0, -1
	sum, from := 0.0, 0
	for i, x := range sums {
		if sum <= 0 {
			sum, from = 0, i
		}
		if sum += x; sum > best {
			best, lo, hi = sum, from, i
		}
	}
	if hi < 0 || hi == lo {
		return Condition{}, false
	}
	margin := (values[hi] - values[lo]) / 16
	c := Condition{Field: f, Lo: values[lo] - min(margin, values[lo]), Hi: min(values[hi]+margin, 65535)}
	if lo > 0 {
		c.Lo = max(c.Lo, values[lo-1]+1)
	}
	if hi+1 < len(values) {
		c.Hi = min(c.Hi, values[hi+1]-1)
	}
	return c, true
}

// tighten adds to a rule what all packets of the excess that it matches have in common, since that
// costs no coverage.
func (g *space) tighten(st state) Rule {
	u := st.rule
	var hit []*Record
	for i := range g.current {
		if st.set.has(i) && g.rest.has(i) {
			hit = append(hit, &g.records[i])
		}
	}
	if len(hit) == 0 {
		return u
	}
	for _, f := range []Field{Protocol, FragmentPart, Flags, HeaderLength, Strangers} {
		v := hit[0].Value(f)
		if u.has(f) != nil || !f.says(v) ||
			slices.ContainsFunc(hit, func(r *Record) bool { return r.Value(f) != v }) {
			continue
		}
		u = u.with(Condition{Field: f, Lo: v, Hi: v})
	}
	if u.has(DestinationPrefix) == nil {
		to := make([][16]byte, len(hit))
		for i, r := range hit {
			if to[i] = r.Dst; r.IPv4 != hit[0].IPv4 {
				return u
			}
		}
		if p, ok := commonPrefix(to, hit[0].IPv4); ok {
			u = u.with(Condition{Field: DestinationPrefix, Prefix: p})
		}
	}
	return u
}

// subtract takes what a rule matches out of the excess.
func (g *space) subtract(u *Rule) {
	s := g.setOf(u)
	for i := range g.current {
		if s.has(i) {
			g.rest[i/64] &^= 1 << (i % 64)
		}
	}
}

// left returns the share of the excess that no rule matches.
func (g *space) left() float64 {
	all := g.newSet()
	for i := range all {
		all[i] = 1<<64 - 1
	}
	current, _ := g.count(all)
	return (g.rate*share(current, g.current) - g.usual) / (g.rate - g.usual)
}

// kind says why there is no rule, should there be none.
func (g *space) kind() Kind {
	usual := 0
	for i := g.current; i < len(g.records); i++ {
		if g.records[i].Conversing == Conversant {
			usual++
		}
	}
	current, _ := g.count(g.live)
	above := g.rate*share(current, g.current) - g.all*share(usual, len(g.records)-g.current)
	if above > asUsers*(g.rate-g.usual) {
		return AsUsers
	}
	return NothingInIt
}
