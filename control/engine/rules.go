package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// book numbers what keys of a generation belong to: lists, and combinations of lists with
// rules that have a key in common. Numbers of combinations follow those of the lists, as keys
// need them. It is safe for concurrent use.
type book struct {
	distinct []verdict.Rule
	lists    int
	of       []int // by number of a list: its rule in distinct, -1: none

	mu           sync.Mutex
	nodes        []verdict.Node // by number
	combinations map[[2]uint16]uint16
	merged       map[[2]uint16]uint16 // what combine has returned
	limit        int                  // the highest number there may be
	reserved     int                  // the highest that keys of any set may have; 0: no set is compiled
	full         bool                 // there should have been more
	words        []uint64             // of the program; nil: it has none
}

// maxCombinations bounds the combinations of lists with rules that share keys. Lists with the
// same rule count once, so that twelve rules cannot have more.
const maxCombinations = 4096

// spareCombinations are those that changes in place may need.
const spareCombinations = 64

// newBook returns the book of lists, nil where none has a rule.
func newBook(lists []List) *book {
	b := &book{
		lists: len(lists), of: make([]int, 1+len(lists)), nodes: make([]verdict.Node, 1+len(lists)),
		combinations: make(map[[2]uint16]uint16), merged: make(map[[2]uint16]uint16), limit: len(lists) + maxCombinations,
	}
	for i, l := range lists {
		b.of[i+1] = -1
		if !l.Rule.On() {
			continue
		}
		n := slices.IndexFunc(b.distinct, func(r verdict.Rule) bool { return r.Equal(l.Rule) })
		if n < 0 {
			n = len(b.distinct)
			b.distinct = append(b.distinct, *l.Rule)
		}
		b.of[i+1], b.nodes[i+1] = n, verdict.Node{List: uint16(i + 1), Rule: uint8(n)}
	}
	if len(b.distinct) == 0 {
		return nil
	}
	return b
}

func (b *book) check() error {
	switch {
	case b == nil:
	case len(b.distinct) > verdict.MaxRules:
		return fmt.Errorf("the lists have %d different rules, of at most %d: give more of them the same ports, protocols, interfaces and vlans", len(b.distinct), verdict.MaxRules)
	case b.full:
		return fmt.Errorf("the lists with rules share entries in more than %d combinations: give more of them the same ports, protocols, interfaces and vlans", maxCombinations)
	}
	return nil
}

// settled reports whether all packets with a key of this number are dropped, or pass.
func (b *book) settled(n uint16) bool { return int(n) <= b.lists && b.of[n] < 0 }

// combine returns the number of a key that belongs to both. A list without a rule needs no
// other; of lists with the same rule, the first one counts.
func (b *book) combine(x, y uint16) uint16 {
	switch {
	case y == 0 || x == y:
		return x
	case x == 0:
		return y
	case b == nil || b.settled(x):
		return x
	case b.settled(y):
		return y
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	pair := [2]uint16{x, y}
	if n, known := b.merged[pair]; known {
		return n
	}
	lists := append(b.chain(x), b.chain(y)...)
	slices.Sort(lists)
	seen := make(map[int]bool)
	lists = slices.DeleteFunc(lists, func(l uint16) bool {
		rule := b.of[l]
		defer func() { seen[rule] = true }()
		return seen[rule]
	})
	n := lists[len(lists)-1]
	for _, l := range slices.Backward(lists[:len(lists)-1]) {
		if n = b.number(l, n); n == 0 {
			return x
		}
	}
	b.merged[pair] = n
	return n
}

// chain returns the lists of a number. The book is locked.
func (b *book) chain(n uint16) (lists []uint16) {
	for ; n != 0; n = b.nodes[n].Next {
		lists = append(lists, b.nodes[n].List)
	}
	return lists
}

// number returns the number of a list together with those of another number, 0 if there is no
// room for it. The book is locked.
func (b *book) number(l, next uint16) uint16 {
	of := [2]uint16{l, next}
	if n, known := b.combinations[of]; known {
		return n
	}
	if len(b.nodes) > b.limit || b.words != nil && len(b.nodes) > b.reserved {
		b.full = true
		return 0
	}
	n := uint16(len(b.nodes))
	b.nodes = append(b.nodes, verdict.Node{List: l, Next: next, Rule: uint8(b.of[l])})
	b.combinations[of] = n
	if b.words != nil { // before any key has the number
		atomic.StoreUint64(&b.words[n], b.nodes[n].Word())
	}
	return n
}

// reserve returns the highest number that keys of a set may have, which it leaves room for:
// the numbers of all sets that are compiled, and some for changes in place.
func (b *book) reserve() uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	highest := len(b.nodes) - 1
	if len(b.distinct) > 1 {
		highest += spareCombinations
	}
	highest = min(highest, membership.MaxList)
	if b.reserved == 0 || highest < b.reserved {
		b.reserved = highest
	}
	return uint16(highest)
}

// seal ends the build.
func (b *book) seal() {
	if b != nil {
		b.limit = max(b.reserved, len(b.nodes)-1)
	}
}

// room reports whether all combinations had a number since the last time, and otherwise that
// the next generation is to be built.
func (b *book) room() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.full
	b.full = false
	if full {
		return fmt.Errorf("combinations of lists with rules: %w", membership.ErrNoRoom)
	}
	return nil
}

// rules returns the rules for the reference.
func (b *book) rules() *verdict.Rules {
	if b == nil {
		return nil
	}
	return &verdict.Rules{Distinct: b.distinct, Node: func(n int) verdict.Node {
		b.mu.Lock()
		defer b.mu.Unlock()
		if n >= len(b.nodes) {
			return verdict.Node{}
		}
		return b.nodes[n]
	}}
}

// matching returns the rules for which a condition holds, a bit for each.
func (b *book) matching(holds func(*verdict.Rule) bool) (bits uint64) {
	for i := range b.distinct {
		if holds(&b.distinct[i]) {
			bits |= 1 << i
		}
	}
	return bits
}

// Sizes in words: see bpf/rules.h.
const (
	protocolWords = 2 * 256
	pageWords     = 256
	vlanWords     = 1 << 12
	cpuWords      = 8
)

// lay returns the words of programs, and where they begin.
func (b *book) lay() (l loader.Rules, words []uint64) {
	l = loader.Rules{
		OnTrial: b.matching(func(r *verdict.Rule) bool { return r.Trial }),
		Nodes:   uint32(b.limit + 1), Protocols: uint32(b.limit + 1),
	}
	words = make([]uint64, l.Protocols+protocolWords)
	for i, n := range b.nodes {
		words[i] = n.Word()
	}
	pages := make(map[[pageWords]uint64]uint64) // by contents
	for proto := range 256 {
		p := uint8(proto)
		at := l.Protocols + 2*uint32(proto)
		words[at] = b.matching(func(r *verdict.Rule) bool { return r.MatchesPorts(p, false, 0) })
		if b.matching(func(r *verdict.Rule) bool {
			return slices.ContainsFunc(r.Ports, func(of verdict.PortRange) bool { return of.Proto == p })
		}) == 0 {
			continue
		}
		index := len(words)
		words[at+1] = uint64(index)
		words = append(words, make([]uint64, 1<<16/pageWords)...)
		for i := range 1 << 16 / pageWords {
			var page [pageWords]uint64
			for low := range page {
				port := uint16(i*pageWords + low)
				page[low] = b.matching(func(r *verdict.Rule) bool { return r.MatchesPorts(p, true, port) })
			}
			of, known := pages[page]
			if !known {
				of = uint64(len(words))
				words = append(words, page[:]...)
				pages[page] = of
			}
			words[index+i] = of
		}
	}
	if b.matching(func(r *verdict.Rule) bool { return len(r.VLANs) > 0 }) != 0 {
		l.Vlans = uint32(len(words))
		for v := range vlanWords {
			words = append(words, b.matching(func(r *verdict.Rule) bool {
				return len(r.VLANs) == 0 || slices.Contains(r.VLANs, uint16(v))
			}))
		}
	}
	for len(words)%cpuWords != 0 {
		words = append(words, 0)
	}
	l.Cpus = uint32(len(words))
	return l, append(words, make([]uint64, cpuWords*loader.CPUs())...)
}

// rulePart is the share of rules in the programs of an interface.
type rulePart struct {
	BasePart
	*book
}

// Constants returns the rules that match on an interface.
func (p rulePart) Constants(t netif.Target, _ loader.Seed) map[string]any {
	return map[string]any{loader.RulesHere: p.matching(func(r *verdict.Rule) bool { return r.Covers(t.Iface) })}
}

// errApproximate reports that only an exact set has the numbers of lists.
var errApproximate = errors.New("lists with ports, protocols, interfaces or vlans, or with enforce: false, take mode: exact")
