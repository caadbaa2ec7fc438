package authority

import (
	"fmt"
	"slices"
	"time"

	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// Label adds labels to a node, and removes others. It returns those that the node has then.
func (a *Authority) Label(name string, add, remove []string) (labels []string, err error) {
	for _, l := range slices.Concat(add, remove) {
		if err := enrollment.CheckLabel(l); err != nil {
			return nil, err
		}
	}
	err = change(a, nodes, name, func(m *Member) error {
		if !m.Revoked.IsZero() {
			return fmt.Errorf("node %q is revoked", name)
		}
		labels = m.Relabeled(add, remove)
		if len(labels) > wire.MaxLabels {
			return fmt.Errorf("node %q: %d labels, want at most %d", name, len(labels), wire.MaxLabels)
		}
		if !slices.Equal(labels, m.Labels) {
			m.setLabels(labels, time.Now().UTC())
		}
		return nil
	})
	return labels, err
}

// Relabeled returns the labels of a node with some added, and others removed.
func (m Member) Relabeled(add, remove []string) []string {
	labels := slices.DeleteFunc(slices.Clone(m.Labels), func(l string) bool { return slices.Contains(remove, l) })
	for _, l := range add {
		if !slices.Contains(labels, l) {
			labels = append(labels, l)
		}
	}
	return labels
}

// setLabels sets labels at a time, which is after that of the labels before: the clock may be set.
func (m *Member) setLabels(labels []string, at time.Time) {
	if before := m.labeled(); !at.After(before) {
		at = before.Add(time.Millisecond)
	}
	m.Labels, m.Labeled = labels, at
}

// labeled returns when the labels were set.
func (m Member) labeled() time.Time {
	if m.Labeled.After(m.Enrolled) {
		return m.Labeled
	}
	return m.Enrolled
}

// TakeBack takes in an assignment of this authority, of which the directory of keys may be an older copy. It reports
// whether its labels are later than those that are known.
func (a *Authority) TakeBack(name string, message []byte) (of wire.Assignment, later bool, err error) {
	if of, err = wire.OpenAssignment(a.PublicKey(), name, message); err != nil {
		return of, false, err
	}
	err = change(a, nodes, name, func(m *Member) error {
		if later = of.Labeled.After(m.labeled()); later {
			m.Labels, m.Labeled = of.Labels, of.Labeled
		}
		return nil
	})
	return of, later, err
}

// Assignment returns the assignment of a node as of now, where the hub has some servers. A node that keeps to its file
// stays at the servers that it has reported.
func (a *Authority) Assignment(m Member, servers, reported []string) (of wire.Assignment, err error) {
	of = wire.Assignment{Node: m.Name, Issued: time.Now().UTC(), Labeled: m.labeled(), Labels: m.Labels, Servers: reported, CA: string(a.ca.Load().pem)}
	if m.Site != nil {
		of.Servers, err = a.ServersOf(*m.Site, servers)
	}
	return of, err
}

// SealAssignment returns the signed form of an assignment.
func (a *Authority) SealAssignment(of wire.Assignment) ([]byte, error) {
	return wire.SealAssignment(a.fleet, of)
}
