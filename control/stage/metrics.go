package stage

import "weir/loader/netif"

// Family is a metric family of a stage, with values for interfaces or for the host.
type Family struct {
	Name, Help string
	Label      string   // beside those of the interface; "": none
	Labels     []string // in its place, where there are several
	Counter    bool     // otherwise it is a gauge
	Directed   bool     // its interfaces have a direction
	Host       bool     // it is of no interface
}

// Sample is a value of a metric family.
type Sample struct {
	*Family
	At     netif.Target // the interface, where that is not known otherwise
	Of     string       // the value of the family's label
	Values []string     // of its labels, where there are several
	Value  float64
}
