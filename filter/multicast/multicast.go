// Package multicast forwards multicast by filters, as Broder and Mitzenmacher's
// survey has it (section 7.3, after Grönvall): in the place of a list of
// interfaces for each group, each interface has a Bloom filter of the groups that
// it wants, and gets a copy of each packet that its filter lists.
//
// The survey leaves open how a group leaves a filter. Here the control plane keeps
// a counting filter beside the bits, as it does beside the block lists, and the
// groups themselves. Before the filters of the ports stands one of all groups that
// any port wants: what it does not list is not copied at all.
//
// bpf/multicast.h is the twin, which reads the same memory.
package multicast

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
)

// MaxRate is the rate at which a filter is planned to pass a group that it does
// not list: one in a million.
const MaxRate = 1e-6

// Layout is the geometry of the filters, which all have the same.
type Layout struct {
	Ports       int    // numbered from 1
	MaxGroups   int    // that may be wanted in all, for which the rate holds
	Lines       uint32 // of each filter, 64 bytes each
	First, Rest int    // bits of a group in its first and in its second line
}

// Plan finds the smallest filters that keep to MaxRate with so many groups in
// each of them.
func Plan(ports, groups int) Layout {
	l := Layout{Ports: ports, MaxGroups: groups}
	for l.Lines = uint32(groups/16) + 1; ; l.Lines += l.Lines/32 + 1 {
		best := fpr.BestCascade(groups, l.Lines)
		if l.First, l.Rest = best.First, best.Rest; l.Rate() <= MaxRate {
			return l
		}
	}
}

// Rate is the probability that a filter which is full passes a group that it does
// not list.
func (l Layout) Rate() float64 {
	return fpr.CascadeLayout{Lines: l.Lines, First: l.First, Rest: l.Rest}.Rate(l.MaxGroups)
}

// Words is the size of all filters together.
func (l Layout) Words() int { return (l.Ports + 1) * int(l.Lines) * membership.LineWords }

// ErrFull says that there are as many groups as were planned for.
var ErrFull = errors.New("as many groups as there may be")

// anyPort is the filter of what any port wants.
const anyPort = 0

// Table says which groups each port wants, in filters and exactly. There must be
// one writer at a time, beside any number of programs that look up.
type Table struct {
	Layout
	seed    uint64
	words   []uint64
	filters []*membership.Cascade
	ports   []map[netip.Addr]bool // by port, of anyPort none
	wanted  map[netip.Addr]int    // by how many ports
}

// NewTable makes a table over words, which must be zero and of the layout's size.
// The seed, which is secret, is that of the program's keys.
func NewTable(l Layout, seed uint64, words []uint64) (*Table, error) {
	if l.Ports < 1 || len(words) != l.Words() {
		return nil, fmt.Errorf("multicast: %d words for %d ports: want %d", len(words), l.Ports, l.Words())
	}
	t := &Table{Layout: l, seed: seed, words: words, wanted: make(map[netip.Addr]int)}
	for i := range l.Ports + 1 {
		t.filters = append(t.filters, membership.NewCascade(t.filterWords(i), l.First, l.Rest))
		t.ports = append(t.ports, make(map[netip.Addr]bool))
	}
	return t, nil
}

func (t *Table) filterWords(filter int) []uint64 {
	n := int(t.Lines) * membership.LineWords
	return t.words[filter*n : (filter+1)*n]
}

// hash is that of the key of all packets to the group.
func (t *Table) hash(group netip.Addr) uint64 {
	return key.Destination(netip.PrefixFrom(group, group.BitLen())).Hash(t.seed)
}

// Add makes a port want a group, and reports whether it did not before. It fails
// with ErrFull. The port's own filter lists it before packets are copied for it.
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

// Remove makes a port want a group no longer, and reports whether it did.
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

// Wants reports whether a port wants a group: the truth behind Passes.
func (t *Table) Wants(port int, group netip.Addr) bool { return t.ports[port][group] }

// Wanted reports whether any port wants a group: the truth behind Copies.
func (t *Table) Wanted(group netip.Addr) bool { return t.wanted[group] > 0 }

// Groups are those that a port wants, in order.
func (t *Table) Groups(port int) []netip.Addr {
	return slices.SortedFunc(maps.Keys(t.ports[port]), netip.Addr.Compare)
}

// Count is the number of groups that a port wants.
func (t *Table) Count(port int) int { return len(t.ports[port]) }

// Len is the number of groups that any port wants.
func (t *Table) Len() int { return len(t.wanted) }

// Copies reports whether packets to a group are copied to the ports at all.
func (t *Table) Copies(group netip.Addr) bool { return t.filters[anyPort].Contains(t.hash(group)) }

// Passes reports whether a port's filter passes the copy of a packet to a group.
func (t *Table) Passes(port int, group netip.Addr) bool {
	return t.filters[port].Contains(t.hash(group))
}

// FalsePositiveRate is the probability that a port's filter passes a group that
// the port does not want, as measured in the filter's memory: by the bits that are
// set there now.
func (t *Table) FalsePositiveRate(port int) float64 {
	return membership.Density(t.filterWords(port), t.First) * membership.Density(t.filterWords(port), t.Rest)
}
