package status

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"weir/control/generation"
	"weir/control/ruleset"
	"weir/filter/membership"
	"weir/loader"
)

// Description is what weir leaves at an attachment for those who find it
// there: what its counters mean, and how its generation came to be.
type Description struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`    // of the process that attached it
	Since   time.Time `json:"since"`  // filtering, through all generations
	Loaded  time.Time `json:"loaded"` // when this generation came into force

	Mode              string   `json:"mode"`
	BitsPerEntry      float64  `json:"bits_per_entry,omitempty"` // in approximate mode
	Monitor           bool     `json:"monitor"`
	DropMalformed     bool     `json:"drop_malformed"`
	FailsafePorts     []string `json:"failsafe_ports,omitempty"`
	FailsafePrefixes  []string `json:"failsafe_prefixes,omitempty"`
	Lenient           bool     `json:"lenient,omitempty"`
	Entries           int      `json:"entries"` // of all lists
	Shapes            []string `json:"shapes,omitempty"`
	KernelBytes       int      `json:"kernel_bytes"`
	FalsePositiveRate float64  `json:"false_positive_rate"` // predicted, for a packet that nothing lists
	Lists             []List   `json:"lists"`               // list number i+1 is Lists[i]
}

// List describes a list.
type List struct {
	Name      string `json:"name"`
	Allow     bool   `json:"allow,omitempty"`
	File      string `json:"file"`
	Direction string `json:"direction"`
	Entries   int    `json:"entries"`
	BadLines  int    `json:"bad_lines,omitempty"`
	// Before is what stood on the list's counter when it came into force, from
	// a list that had its number before.
	Before loader.Counter `json:"before,omitzero"`
}

// Describe describes a generation that was built from rules.
func Describe(l *ruleset.Loaded, g *generation.Generation) Description {
	d := Description{
		Mode:              l.Rules.Mode.String(),
		Monitor:           l.Rules.Monitor,
		DropMalformed:     l.Rules.DropMalformed,
		Lenient:           l.Rules.Lenient,
		Entries:           l.Entries(),
		Shapes:            shapes(g),
		KernelBytes:       g.KernelBytes(),
		FalsePositiveRate: falsePositiveRate(g.Block),
		Lists:             []List{},
	}
	if l.Rules.Mode == membership.Approximate {
		if d.BitsPerEntry = l.Rules.BitsPerKey; d.BitsPerEntry == 0 {
			d.BitsPerEntry = generation.DefaultBitsPerKey
		}
	}
	for _, p := range l.Rules.FailsafePorts {
		d.FailsafePorts = append(d.FailsafePorts, ruleset.FormatFailsafePort(p))
	}
	for _, p := range l.Rules.FailsafePrefixes {
		d.FailsafePrefixes = append(d.FailsafePrefixes, p.String())
	}
	for _, s := range l.Sources {
		file := s.File
		if abs, err := filepath.Abs(file); err == nil { // else it is found from here only
			file = abs
		}
		d.Lists = append(d.Lists, List{
			Name: s.Name, Allow: s.Allow, File: file, Direction: s.Direction.String(),
			Entries: s.Entries, BadLines: s.Report.Bad,
		})
	}
	return d
}

// Rules are the rules that the description was made from, for the files as
// they are now.
func (d Description) Rules() (ruleset.Rules, error) {
	r := ruleset.Rules{Lenient: d.Lenient}
	r.Monitor, r.DropMalformed, r.BitsPerKey = d.Monitor, d.DropMalformed, d.BitsPerEntry
	var err error
	if r.Mode, err = ruleset.ParseMode(d.Mode); err != nil {
		return r, err
	}
	for _, s := range d.FailsafePorts {
		p, err := ruleset.ParseFailsafePort(s)
		if err != nil {
			return r, err
		}
		r.FailsafePorts = append(r.FailsafePorts, p)
	}
	for _, s := range d.FailsafePrefixes {
		p, err := ruleset.ParseFailsafePrefix(s)
		if err != nil {
			return r, err
		}
		r.FailsafePrefixes = append(r.FailsafePrefixes, p)
	}
	for _, l := range d.Lists {
		if r.Direction, err = generation.ParseDirection(l.Direction); err != nil {
			return r, err
		}
		if l.Allow {
			r.Allow = append(r.Allow, l.File)
		} else {
			r.Block = append(r.Block, l.File)
		}
	}
	return r, nil
}

// Succeed makes the description that of a successor to old, whose counters go
// on: those of a list that is another now begin with what they stand at.
func (d *Description) Succeed(old Description, lists []loader.Counter) {
	d.Since = old.Since
	for i := range d.Lists {
		l := &d.Lists[i]
		switch number := i + 1; {
		case i < len(old.Lists) && old.Lists[i].Name == l.Name && old.Lists[i].Allow == l.Allow:
			l.Before = old.Lists[i].Before
		case number < len(lists):
			l.Before = lists[number]
		}
	}
}

// Encode is the description as it stands at an attachment.
func (d Description) Encode() ([]byte, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("describe the attachment: %w", err)
	}
	return b, nil
}

// DescriptionOf reads what stands at an attachment; the zero Description if
// nothing does.
func DescriptionOf(a *loader.Attachment) (Description, error) {
	var d Description
	if len(a.About()) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(a.About(), &d); err != nil {
		return d, fmt.Errorf("description of the attachment to %s: %w", a.Target(), err)
	}
	return d, nil
}

// shapes are the shapes in use, by family, the most specific first.
func shapes(g *generation.Generation) []string {
	var names []string
	for _, set := range []*membership.Set{g.Block, g.Allow} {
		for _, s := range slices.Concat(set.V4, set.V4Flow, set.V6, set.V6Flow) {
			if name := s.String(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// falsePositiveRate bounds the probability that a packet that nothing lists is
// found listed: each shape of its family is one more chance. In exact mode a
// fingerprint of 48 bits must agree as well, with one of those that stand in
// the two buckets of the key.
func falsePositiveRate(s *membership.Set) float64 {
	if s.Len() == 0 {
		return 0
	}
	rate := s.FalsePositiveRate(s.Len())
	if s.Mode == membership.Exact {
		rate *= 2 * float64(s.Len()) / float64(s.Buckets) * math.Exp2(-48)
	}
	probes := max(len(s.V4)+len(s.V4Flow), len(s.V6)+len(s.V6Flow))
	return -math.Expm1(float64(probes) * math.Log1p(-rate))
}
