package config

import (
	"weir/control/feed"
	"weir/control/quantity"
)

// Aggregate says when the prefix around addresses is listed, too.
type Aggregate struct {
	// Length of the IPv4 prefixes. Default: none are listed.
	IPv4 int `yaml:"ipv4,omitempty" min:"16" max:"31"`

	// Length of the IPv6 prefixes. Default: none are listed.
	IPv6 int `yaml:"ipv6,omitempty" min:"32" max:"127"`

	// Addresses of the list in a prefix from which on it is listed. With prefix6, IPv6
	// addresses in the same prefix of that length count once.
	At int `yaml:"at" min:"2" max:"65536"`
}

// defaultAggregateAt is the default of Aggregate.At.
const defaultAggregateAt = 8

// SetDefaults sets the defaults.
func (a *Aggregate) SetDefaults() { a.At = defaultAggregateAt }

// WidensSources reports whether prefix6 is also for the addresses of the list's sources: they
// are decisions on addresses that were seen.
func (l *List) WidensSources() bool { return l.Prefix6 > 0 && l.Format.Kind == feed.CrowdSec }

// checkDerived returns the errors in prefix6 and aggregate.
func (l *List) checkDerived() (errs quantity.FieldErrors) {
	a := l.Aggregate
	if l.Action == Allow && l.Prefix6 > 0 {
		errs.Failf("prefix6", "an allow list would let in the neighbours of an address: list the prefix itself")
	}
	if a == (Aggregate{}) {
		return errs
	}
	switch {
	case l.Action == Allow:
		errs.Failf("aggregate", "an allow list would let in the neighbours of its addresses: list the prefix itself")
	case a.IPv4 == 0 && a.IPv6 == 0:
		errs.Failf("aggregate", "say ipv4 or ipv6: the length of the prefixes, as in {ipv4: 24, ipv6: 48, at: 8}")
	case l.Prefix6 > 0 && a.IPv6 >= l.Prefix6:
		errs.Failf("aggregate.ipv6", "%d is not less than prefix6, by which each address has a prefix of %d bits already", a.IPv6, l.Prefix6)
	case a.IPv4 > 0 && a.IPv6 == 0 && a.At > 1<<(32-a.IPv4):
		errs.Failf("aggregate.at", "a prefix of %d bits has no more than %d addresses", a.IPv4, 1<<(32-a.IPv4))
	}
	return errs
}

// checkAtHub adds the errors in keys that make no sense for a list of a fleet.
func (l *List) checkAtHub(errs *quantity.FieldErrors, path string) {
	checkLabels(errs, path+".labels", l.Labels)
	if len(l.Interfaces) > 0 {
		errs.Failf(path+".interfaces", "each node has interfaces of its own: use ports, protocols or vlans here, or a list of weir.yaml")
	}
	if l.Prefix6 > 0 && len(l.All()) > 0 && !l.WidensSources() {
		errs.Failf(path+".prefix6", "nodes do not know which entries of a list commands have added: at a hub, prefix6 is for lists without sources and entries, and for format: crowdsec")
	}
}

// WidenAll makes prefix6 apply to all entries of the list, those of sources included.
func (l *List) WidenAll() { l.Format.Kind = feed.CrowdSec }
