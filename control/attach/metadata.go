package attach

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/stages"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Metadata stands beside a program in the kernel. It says what the program's counters
// mean, and from what it was built.
type Metadata struct {
	Version  string    `json:"version"`
	PID      int       `json:"pid"`                 // of the process that attached it
	Service  string    `json:"service,omitempty"`   // of systemd's, that the process is
	StateDir string    `json:"state_dir,omitempty"` // its state directory; "": it has none, or is older than this field
	Since    time.Time `json:"since"`               // filtering, through all generations
	Loaded   time.Time `json:"loaded"`              // when this generation was loaded

	Mode             string   `json:"mode"`
	BitsPerEntry     float64  `json:"bits_per_entry,omitempty"` // in approximate mode
	Monitor          bool     `json:"monitor"`
	DropMalformed    bool     `json:"drop_malformed"`
	DropNotIP        bool     `json:"drop_not_ip,omitempty"`
	FailsafePorts    []string `json:"failsafe_ports,omitempty"`
	FailsafePrefixes []string `json:"failsafe_prefixes,omitempty"`
	FailsafeICMP     []string `json:"failsafe_icmp,omitempty"`
	Entries          int      `json:"entries"` // of all lists
	Shapes           []string `json:"shapes,omitempty"`
	KernelBytes      int      `json:"kernel_bytes"`

	// What the sets of block and allow lists consist of in the kernel.
	BlockStructures []membership.Structure `json:"block_structures,omitempty"`
	AllowStructures []membership.Structure `json:"allow_structures,omitempty"`

	GeneralPath    []string `json:"general_path,omitempty"`        // why no packet takes the program's lean path
	Predicted      float64  `json:"predicted_false_positive_rate"` // for a packet that is on no list
	Lists          []List   `json:"lists"`                         // list number n is Lists[n-1]
	CountedReasons []string `json:"counted_reasons,omitempty"`     // of the counters, by number

	stages.About
	Stages *stages.Table `json:"-"` // what About is from, for each interface

	out *Metadata // of outgoing packets, where they are filtered: what the engine says of them
}

// outgoing returns the metadata of an interface for outgoing packets.
func (m Metadata) outgoing() Metadata {
	if m.out == nil {
		return m
	}
	n := *m.out
	m.Shapes, m.GeneralPath, m.Predicted = n.Shapes, n.GeneralPath, n.Predicted
	m.BlockStructures, m.AllowStructures = n.BlockStructures, n.AllowStructures
	m.out = nil
	return m
}

// At returns the metadata of an interface, with what stages say of its program.
func (m Metadata) At(t netif.Target) Metadata {
	if t.Out {
		m = m.outgoing()
	}
	if m.Stages != nil {
		m.About = m.Stages.About(t)
		m.GeneralPath = append(slices.Clone(m.GeneralPath), m.Stages.General(t)...)
	}
	return m
}

// List describes a list.
type List struct {
	Name      string `json:"name"`
	Allow     bool   `json:"allow,omitempty"`
	Source    string `json:"source,omitempty"` // a file, directory or URL; the first of several
	Direction string `json:"direction"`
	Entries   int    `json:"entries"`
	BadLines  int    `json:"bad_lines,omitempty"`
	// Before is the value of the list's counter when the list became active: its
	// number may have been another list's.
	Before loader.Counter `json:"before,omitzero"`
}

// same reports whether two lists are one at different times.
func (l *List) same(other List) bool {
	return l.Name == other.Name && l.Allow == other.Allow
}

// Describe returns the metadata of an engine that was built from a configuration
// and lists.
func Describe(e *engine.Generation, c engine.Config, lists []List) Metadata {
	m := describeSets(e)
	m.Mode, m.Monitor, m.DropMalformed, m.DropNotIP = c.Mode.String(), c.Monitor, c.DropMalformed, c.DropNotIP
	m.KernelBytes, m.Lists = e.KernelBytes(), lists
	if out := e.Out(); out != nil {
		m.out = new(describeSets(out))
	}
	m.countEntries()
	for r := range verdict.NumReasons {
		m.CountedReasons = append(m.CountedReasons, r.String())
	}
	if c.Mode == membership.Approximate {
		if m.BitsPerEntry = c.BitsPerKey; m.BitsPerEntry == 0 {
			m.BitsPerEntry = engine.DefaultBitsPerKey
		}
	}
	for _, p := range c.FailsafePorts {
		m.FailsafePorts = append(m.FailsafePorts, p.String())
	}
	for _, p := range c.FailsafePrefixes {
		m.FailsafePrefixes = append(m.FailsafePrefixes, p.String())
	}
	for _, i := range c.FailsafeICMP {
		m.FailsafeICMP = append(m.FailsafeICMP, i.String())
	}
	return m
}

// describeSets returns what the metadata of an interface has of one direction's engine.
func describeSets(e *engine.Generation) Metadata {
	return Metadata{
		Shapes: shapes(e), GeneralPath: e.General(), Predicted: falsePositiveRate(e.Block),
		BlockStructures: e.Block.Structures(), AllowStructures: e.Allow.Structures(),
	}
}

// Changed returns the metadata after changes in place: the engine's, and of as many
// lists.
func (m Metadata) Changed(e *engine.Generation, lists []List) Metadata {
	m.Lists, m.Predicted = lists, falsePositiveRate(e.Block)
	if out := e.Out(); out != nil && m.out != nil {
		next := *m.out
		next.Predicted = falsePositiveRate(out.Block)
		m.out = &next
	}
	m.countEntries()
	return m
}

func (m *Metadata) countEntries() {
	m.Entries = 0
	for _, l := range m.Lists {
		m.Entries += l.Entries
	}
}

// InheritCounters makes m the successor of old, whose counters go on: the counter
// of a list that has changed starts from its present value. Without lists' counters
// all of them start anew.
func (m *Metadata) InheritCounters(old Metadata, lists []loader.Counter) {
	if !old.Since.IsZero() { // else old is unknown
		m.Since = old.Since
	}
	m.Lists = slices.Clone(m.Lists) // the counters of other interfaces differ
	for i := range m.Lists {
		l := &m.Lists[i]
		switch number := i + 1; {
		case number >= len(lists):
		case i < len(old.Lists) && l.same(old.Lists[i]):
			l.Before = old.Lists[i].Before
		default:
			l.Before = lists[number]
		}
	}
}

// CompatibleCounters reports whether counters under old go on under m: no number
// may stand for another reason.
func (m Metadata) CompatibleCounters(old Metadata) bool {
	n := min(len(m.CountedReasons), len(old.CountedReasons))
	return slices.Equal(m.CountedReasons[:n], old.CountedReasons[:n])
}

// Encode returns the metadata as text.
func (m Metadata) Encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("describe the attachment: %w", err)
	}
	return b, nil
}

// MetadataOf reads the metadata of an attachment; it is zero where there is none.
func MetadataOf(a *loader.Attachment) (Metadata, error) {
	var m Metadata
	if len(a.Metadata()) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(a.Metadata(), &m); err != nil {
		return m, fmt.Errorf("metadata of the attachment to %s: %w", a.Target(), err)
	}
	return m, nil
}

// Policy returns what the action of a reason depends on.
func (m *Metadata) Policy() *verdict.Policy {
	p := &verdict.Policy{DropMalformed: m.DropMalformed, DropNotIP: m.DropNotIP, Monitor: m.Monitor}
	m.Decide(p)
	return p
}

// Drops reports whether packets that leave for a reason are dropped.
func (m *Metadata) Drops(r verdict.Reason) bool { return m.Policy().Action(r) == verdict.Drop }

// shapes returns the names of the shapes in use, by family, the most specific
// first.
func shapes(e *engine.Generation) []string {
	var names []string
	for _, set := range []*membership.Set{e.Block, e.Allow} {
		for _, s := range slices.Concat(set.V4, set.V4Flow, set.V6, set.V6Flow) {
			if name := s.String(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// falsePositiveRate bounds the probability that a packet that is on no list is
// found listed: each shape of its family is one more chance.
func falsePositiveRate(s *membership.Set) float64 {
	if s.Len() == 0 {
		return 0
	}
	var rate float64
	probes4 := len(s.V4Flow)
	switch {
	case s.Lines == 0:
		return 0 // the table of prefixes makes no mistakes
	case s.Mode == membership.Exact:
		rate = fpr.Fingerprint(s.Len(), s.Buckets)
	default:
		rate = s.FalsePositiveRate(s.Len())
		probes4 += len(s.V4)
	}
	probes := max(probes4, len(s.V6)+len(s.V6Flow))
	return -math.Expm1(float64(probes) * math.Log1p(-rate))
}
