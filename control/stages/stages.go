// Package stages is the table of the optional stages of the pipeline, in its order: what
// they have in weir.yaml, and what they say of programs. It alone names them all.
package stages

import (
	"maps"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stage/replies"
)

// Sections are the sections of weir.yaml that stages have.
type Sections struct {
	// What becomes of replies to connections that this host opens: pass or drop (the
	// default), or a mapping.
	Replies replies.Spec `yaml:"replies,omitempty"`
}

// section is a section with its key.
type section struct {
	key string
	stage.Stage
}

func (s *Sections) all() []section {
	return []section{
		{"replies", &s.Replies},
	}
}

// CheckStages adds what is wrong with the sections.
func (s *Sections) CheckStages(errs *quantity.FieldErrors) {
	for _, each := range s.all() {
		errs.Add(each.key, each.Check().Err())
	}
}

// NeedsOutgoing reports whether a stage needs programs for outgoing packets.
func (s *Sections) NeedsOutgoing() bool {
	for _, each := range s.all() {
		if each.Outgoing() {
			return true
		}
	}
	return false
}

// Shared returns the maps that all programs share, by name, with their entries.
func (s *Sections) Shared() map[string]int {
	all := make(map[string]int)
	for _, each := range s.all() {
		if each.On() {
			maps.Copy(all, each.Shared())
		}
	}
	return all
}

// Parts returns the shares of programs.
func (s *Sections) Parts() (all []engine.Part) {
	for _, each := range s.all() {
		if each.On() {
			all = append(all, each.Part())
		}
	}
	return all
}

// About is what stages say of a program, beside it in the kernel.
type About struct {
	Replies *replies.About `json:"replies,omitempty"` // nil: they are matched like other packets
}

// About returns what the stages say of programs.
func (s *Sections) About() About {
	return About{Replies: s.Replies.About()}
}

// Rows returns the rows of weir status for an interface and a direction.
func (a *About) Rows(out bool) []stage.Row {
	return a.Replies.Rows(out)
}

// Shares reports whether the program reads maps that others share.
func (a *About) Shares() bool { return a.Replies != nil }
