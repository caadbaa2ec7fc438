package status

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/ruleset"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/filter/verdict"
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
	MaxBad            float64  `json:"max_bad,omitempty"` // as in ruleset.Rules
	Entries           int      `json:"entries"`           // of all lists
	Shapes            []string `json:"shapes,omitempty"`
	KernelBytes       int      `json:"kernel_bytes"`
	FalsePositiveRate float64  `json:"false_positive_rate"`       // predicted, for a packet that nothing lists
	Lists             []List   `json:"lists"`                     // list number i+1 is Lists[i]
	CountedReasons    []string `json:"counted_reasons,omitempty"` // what the counters are of, by number
	Loop              *Loop    `json:"loop,omitempty"`            // nil: nobody looks for loops
}

// Loop describes the node that the host is in a domain that looks for loops.
type Loop struct {
	Node    uint64   `json:"node"`
	Domain  uint8    `json:"domain"`
	Size    int      `json:"size"`            // of a packet's filter, in bits
	K       int      `json:"k"`               // bits that a node sets
	Confirm int      `json:"confirm"`         // nodes in a row that must find a filter unchanged
	Drop    bool     `json:"drop"`            // otherwise packets in a loop are only reported
	Edges   []string `json:"edges,omitempty"` // interfaces where packets enter and leave
}

// List describes a list.
type List struct {
	Name      string `json:"name"`
	Allow     bool   `json:"allow,omitempty"`
	File      string `json:"file"` // an absolute path
	Direction string `json:"direction"`
	Entries   int    `json:"entries"`
	BadLines  int    `json:"bad_lines,omitempty"`
	// Size and Written are those of a regular file before it was read.
	Size    int64     `json:"size,omitempty"`
	Written time.Time `json:"written,omitzero"`
	// Before is what stood on the list's counter when it came into force, from
	// a list that had its number before.
	Before loader.Counter `json:"before,omitzero"`
}

// Describe describes a generation that was built from rules.
func Describe(l *ruleset.Loaded, g *engine.Generation) Description {
	d := Description{
		Mode:              l.Rules.Mode.String(),
		Monitor:           l.Rules.Monitor,
		DropMalformed:     l.Rules.DropMalformed,
		Lenient:           l.Rules.Lenient,
		MaxBad:            float64(l.Rules.MaxBad),
		Entries:           l.Entries(),
		Shapes:            shapes(g),
		KernelBytes:       g.KernelBytes(),
		FalsePositiveRate: falsePositiveRate(g.Block),
		Lists:             Lists(l),
	}
	for r := range verdict.NumReasons {
		d.CountedReasons = append(d.CountedReasons, r.String())
	}
	if l.Rules.Mode == membership.Approximate {
		if d.BitsPerEntry = l.Rules.BitsPerKey; d.BitsPerEntry == 0 {
			d.BitsPerEntry = engine.DefaultBitsPerKey
		}
	}
	for _, p := range l.Rules.FailsafePorts {
		d.FailsafePorts = append(d.FailsafePorts, p.String())
	}
	for _, p := range l.Rules.FailsafePrefixes {
		d.FailsafePrefixes = append(d.FailsafePrefixes, p.String())
	}
	return d
}

// Lists describes the lists that were read.
func Lists(l *ruleset.Loaded) []List {
	lists := []List{}
	for _, s := range l.Sources {
		lists = append(lists, List{
			Name: s.Name, Allow: s.Allow, File: absolute(s.File), Direction: s.Direction.String(),
			Entries: s.Contents.Len(), BadLines: s.Report.Bad, Size: s.Size, Written: s.Written,
		})
	}
	return lists
}

func absolute(file string) string {
	if file == "" {
		return "" // the list is not of one file
	}
	if abs, err := filepath.Abs(file); err == nil {
		return abs
	}
	return file // which is found from here only
}

// Rules are the rules that the description was made from, for the files as
// they are now.
func (d Description) Rules() (ruleset.Rules, error) {
	r := ruleset.Rules{Lenient: d.Lenient, MaxBad: ruleset.Share(d.MaxBad)}
	r.Monitor, r.DropMalformed, r.BitsPerKey = d.Monitor, d.DropMalformed, d.BitsPerEntry
	r.DropLooped = d.Policy().DropLooped
	if err := r.Mode.UnmarshalText([]byte(d.Mode)); err != nil {
		return r, err
	}
	for _, s := range d.FailsafePorts {
		var p verdict.FailsafePort
		if err := p.UnmarshalText([]byte(s)); err != nil {
			return r, err
		}
		r.FailsafePorts = append(r.FailsafePorts, p)
	}
	for _, s := range d.FailsafePrefixes {
		var p verdict.FailsafePrefix
		if err := p.UnmarshalText([]byte(s)); err != nil {
			return r, err
		}
		r.FailsafePrefixes = append(r.FailsafePrefixes, p.Prefix)
	}
	for _, l := range d.Lists {
		if err := r.Direction.UnmarshalText([]byte(l.Direction)); err != nil {
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

// same tells whether two lists are one, read at different times.
func (l *List) same(other List) bool {
	return l.Name == other.Name && l.Allow == other.Allow && l.File == other.File
}

// Emptied finds a list that had entries before, and has none now.
func Emptied(now, before []List) (List, bool) {
	for _, b := range before {
		for _, l := range now {
			if l.File == b.File && l.Allow == b.Allow && l.Entries == 0 && b.Entries > 0 {
				return b, true
			}
		}
	}
	return List{}, false
}

// Succeed makes the description that of a successor to old, whose counters go
// on: those of a list that is another now begin with what they stand at.
// Without counters of lists, they all begin anew.
func (d *Description) Succeed(old Description, lists []loader.Counter) {
	if !old.Since.IsZero() { // else it is not known what old was
		d.Since = old.Since
	}
	d.Lists = slices.Clone(d.Lists) // those of other interfaces have counters of their own
	for i := range d.Lists {
		l := &d.Lists[i]
		switch number := i + 1; {
		case number >= len(lists):
		case i < len(old.Lists) && l.same(old.Lists[i]):
			l.Before = old.Lists[i].Before
		default:
			l.Before = lists[number]
		}
	}
}

// Counts tells whether counters under old go on under d: no number may stand
// for another reason.
func (d Description) Counts(old Description) bool {
	n := min(len(d.CountedReasons), len(old.CountedReasons))
	return slices.Equal(d.CountedReasons[:n], old.CountedReasons[:n])
}

// Room fails where there are more lists than can be described at an attachment.
func Room(r ruleset.Rules) error {
	// Numbers of many digits, and the names that are told apart by one.
	widest := List{
		Direction: engine.Both.String(), Entries: math.MaxInt32, BadLines: math.MaxInt32, Size: math.MaxInt64,
		Written: time.Unix(0, 999999999), Before: loader.Counter{Packets: math.MaxUint64, Bytes: math.MaxUint64},
	}
	const rest = 8 << 10 // for all else that is described
	var lists []List
	for _, file := range slices.Concat(r.Block, r.Allow) {
		l := widest
		l.File, l.Name, l.Allow = absolute(file), filepath.Base(file)+"-9999", true
		lists = append(lists, l)
	}
	b, err := json.Marshal(lists)
	if err != nil {
		return fmt.Errorf("describe the lists: %w", err)
	}
	if most := loader.MetadataSize - rest; len(b) > most {
		return fmt.Errorf("%d lists are too many: with such names of files, an interface has room for about %d; put some in one file",
			len(lists), len(lists)*most/len(b))
	}
	return nil
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
	if len(a.Metadata()) == 0 {
		return d, nil
	}
	if err := json.Unmarshal(a.Metadata(), &d); err != nil {
		return d, fmt.Errorf("description of the attachment to %s: %w", a.Target(), err)
	}
	return d, nil
}

// shapes are the shapes in use, by family, the most specific first.
func shapes(g *engine.Generation) []string {
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
// found listed: each shape of its family is one more chance.
func falsePositiveRate(s *membership.Set) float64 {
	if s.Len() == 0 {
		return 0
	}
	var rate float64
	if s.Mode == membership.Exact {
		rate = fpr.Fingerprint(s.Len(), s.Buckets)
	} else {
		rate = s.FalsePositiveRate(s.Len())
	}
	probes := max(len(s.V4)+len(s.V4Flow), len(s.V6)+len(s.V6Flow))
	return -math.Expm1(float64(probes) * math.Log1p(-rate))
}
