package stage

// Family is a metric family of a stage, with values for interfaces.
type Family struct {
	Name, Help string
	Label      string // beside those of the interface; "": none
	Counter    bool   // otherwise it is a gauge
	Directed   bool   // its interfaces have a direction
}

// Sample is a value of a metric family for an interface.
type Sample struct {
	*Family
	Of    string // the value of the family's label
	Value float64
}
