// Package stage has what the optional stages of the pipeline have in common. Each is a
// package below this one, and stages has the table of all.
package stage

import (
	"weir/control/engine"
	"weir/control/quantity"
)

// Stage is a stage as weir.yaml configures it. The zero value is off.
type Stage interface {
	On() bool
	Check() quantity.FieldErrors
	// Outgoing reports whether the stage needs programs for outgoing packets, on all
	// interfaces.
	Outgoing() bool
	// Shared returns the maps that all programs share, by name, with their entries.
	Shared() map[string]int
	// Part returns its share of programs. It is called for stages that are on.
	Part() engine.Part
}

// Row is a line of weir status.
type Row struct{ Name, Text string }
