package hub

import (
	"time"

	"weir/control/api"
	"weir/control/fleet/authority"
)

// members has the nodes that are enrolled. It belongs to [Hub.Run].
type members struct {
	authority *authority.Authority
	nodes     *nodes // what they report

	all   map[string]authority.Member // as of stamp; replaced, not changed
	sites []authority.Site            // likewise
	stamp authority.Stamp
}

// read returns which nodes are enrolled, by name. It reads that again where it has changed.
func (m *members) read() (map[string]authority.Member, error) {
	stamp, err := m.authority.Stamp()
	if err == nil && (m.all == nil || stamp != m.stamp) { // thousands of files
		m.all, err = m.authority.Members()
		if sites, bad := m.authority.Sites(); bad == nil {
			m.sites = sites // they are looked at for their certificates alone
		}
		m.stamp = stamp
		if err == nil {
			m.nodes.keep(m.all)
		}
	}
	if err != nil {
		m.all = nil
	}
	return m.all, err
}

// observe returns the last reports of the nodes on lists, by list.
func (m *members) observe(lists []*managed) (map[string][]observed, error) {
	all, err := m.read()
	if err != nil {
		return nil, err
	}
	return m.nodes.observe(all, lists), nil
}

// collateral returns with whom nodes have conversed that a list would drop, by their last
// reports.
func (m *members) collateral(list string) (*api.FleetCollateral, error) {
	all, err := m.read()
	if err != nil {
		return nil, err
	}
	return m.nodes.collateral(all, list)[list], nil
}

// heard reports whether all nodes have reported since the hub first reached the broker, or have had
// the time to.
func (m *members) heard(now time.Time) bool {
	switch up := m.nodes.listened(now); {
	case up == 0:
		return false
	case up >= settle:
		return true
	}
	all, err := m.read()
	return err == nil && m.nodes.allHeard(all)
}
