// Package multicast implements multicast forwarding with Bloom filters, as in
// Broder and Mitzenmacher's survey (section 7.3, after Grönvall): instead of a
// list of interfaces for each group, each interface has a Bloom filter of the
// groups that it wants, and gets a copy of each packet whose group its filter
// contains.
//
// The survey does not say how a group is removed from a filter. Here the
// control plane keeps a counting filter beside the bits, as it does for block
// lists, and the exact groups. One more filter contains the groups that any
// port wants: packets to others are not copied at all.
//
// bpf/multicast.h is the twin, which reads the same memory.
package multicast

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
)

// maxRate is the planned false-positive rate of a port's filter: one in a
// million.
const maxRate = 1e-6

// Layout is the geometry of the filters, which are all equal.
type Layout struct {
	Ports       int    // numbered from 1
	MaxGroups   int    // wanted by all ports together, for which the rate is planned
	Lines       uint32 // of each filter, 64 bytes each
	First, Rest int    // bits of a group in its first and in its second line
}

// Plan returns the smallest filters that keep to maxRate with the given number
// of groups in each of them.
func Plan(ports, groups int) Layout {
	l := Layout{Ports: ports, MaxGroups: groups}
	for l.Lines = uint32(groups/16) + 1; ; l.Lines += l.Lines/32 + 1 {
		best := fpr.BestCascade(groups, l.Lines, 1)
		if l.First, l.Rest = best.First, best.Rest; l.Rate() <= maxRate {
			return l
		}
	}
}

// Rate returns the false-positive rate of a filter that contains MaxGroups
// groups.
func (l Layout) Rate() float64 {
	return fpr.CascadeLayout{Lines: l.Lines, First: l.First, Rest: l.Rest}.Rate(l.MaxGroups)
}

// Words returns the size of all filters together, in 64-bit words.
func (l Layout) Words() int { return (l.Ports + 1) * int(l.Lines) * cascade.LineWords }

// ErrFull means that the planned number of groups is reached.
var ErrFull = errors.New("group limit reached")

// anyPort is the filter of the groups that any port wants.
const anyPort = 0

// Table stores the groups that each port wants, exactly and in filters. Calls
// that write must be serialised; programs may look up concurrently.
type Table struct {
	Layout
	secret  *hash.Secret
	words   []uint64
	filters []*cascade.Filter
	ports   []map[netip.Addr]bool // by port; none for anyPort
	wanted  map[netip.Addr]int    // number of ports
}

// NewTable returns a table over words, which must be zero and of the layout's
// size. The secret is the one of the program's keys.
func NewTable(l Layout, secret *hash.Secret, words []uint64) (*Table, error) {
	if l.Ports < 1 || len(words) != l.Words() {
		return nil, fmt.Errorf("multicast: %d words for %d ports: want %d", len(words), l.Ports, l.Words())
	}
	t := &Table{Layout: l, secret: secret, words: words, wanted: make(map[netip.Addr]int)}
	for i := range l.Ports + 1 {
		t.filters = append(t.filters, cascade.New(t.filterWords(i), l.First, l.Rest))
		t.ports = append(t.ports, make(map[netip.Addr]bool))
	}
	return t, nil
}

func (t *Table) filterWords(filter int) []uint64 {
	n := int(t.Lines) * cascade.LineWords
	return t.words[filter*n : (filter+1)*n]
}

// hash returns the hash of the key that matches all packets to the group.
func (t *Table) hash(group netip.Addr) uint64 {
	return key.Destination(netip.PrefixFrom(group, group.BitLen())).Hash(t.secret)
}

// Add records that a port wants a group, and reports whether that is new. It
// returns ErrFull, wrapped. The port's own filter is updated before the filter
// of all ports.
func (t *Table) Add(port int, group netip.Addr) (added bool, err error) {
	if t.ports[port][group] {
		return false, nil
	}
	if t.wanted[group] == 0 && len(t.wanted) >= t.MaxGroups {
		return false, fmt.Errorf("multicast: group %v: %w, %d", group, ErrFull, t.MaxGroups)
	}
	h := t.hash(group)
	t.filters[port].Add(h)
	if t.wanted[group] == 0 {
		t.filters[anyPort].Add(h)
	}
	t.ports[port][group] = true
	t.wanted[group]++
	return true, nil
}

// Remove records that a port no longer wants a group, and reports whether it
// did.
func (t *Table) Remove(port int, group netip.Addr) bool {
	if !t.ports[port][group] {
		return false
	}
	h := t.hash(group)
	delete(t.ports[port], group)
	if t.wanted[group]--; t.wanted[group] == 0 {
		delete(t.wanted, group)
		t.filters[anyPort].Remove(h)
	}
	t.filters[port].Remove(h)
	return true
}

// Wants reports whether a port wants a group: Passes without false positives.
func (t *Table) Wants(port int, group netip.Addr) bool { return t.ports[port][group] }

// Wanted reports whether any port wants a group: Copies without false
// positives.
func (t *Table) Wanted(group netip.Addr) bool { return t.wanted[group] > 0 }

// Groups returns the groups that a port wants, sorted.
func (t *Table) Groups(port int) []netip.Addr {
	return slices.SortedFunc(maps.Keys(t.ports[port]), netip.Addr.Compare)
}

// Count returns the number of groups that a port wants.
func (t *Table) Count(port int) int { return len(t.ports[port]) }

// Len returns the number of groups that any port wants.
func (t *Table) Len() int { return len(t.wanted) }

// Copies reports whether packets to a group are copied to any port.
func (t *Table) Copies(group netip.Addr) bool { return t.filters[anyPort].Contains(t.hash(group)) }

// Passes reports whether a port's filter passes the copy of a packet to a group.
func (t *Table) Passes(port int, group netip.Addr) bool {
	return t.filters[port].Contains(t.hash(group))
}

// FalsePositiveRate returns the probability that a port's filter passes a group
// that the port does not want, given the bits that are set now.
func (t *Table) FalsePositiveRate(port int) float64 {
	return cascade.Density(t.filterWords(port), t.First) * cascade.Density(t.filterWords(port), t.Rest)
}
