// Package stages is the table of the optional stages of the pipeline, in its order: what
// they have in weir.yaml, and what they say of programs. It alone names them all.
package stages

import (
	"fmt"
	"maps"
	"slices"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/plan"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stage/connections"
	"weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/control/stage/police"
	"weir/control/stage/sampler"
	"weir/control/stage/syncookies"
	"weir/control/stage/tracker"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// Sections are the sections of weir.yaml that stages have.
type Sections struct {
	// Detection of packets that loop through a domain of nodes.
	Loop loop.Spec `yaml:"loop,omitempty"`

	// Match the headers that GRE, IP in IP, VXLAN and GTP-U carry with the lists, too.
	Inner Inner `yaml:"inner"`

	// What becomes of replies to connections that this host opens: pass or drop (the
	// default), or a mapping.
	Replies connections.RepliesSpec `yaml:"replies,omitempty"`

	// Records which of the addresses that lists match this host converses with: a number of
	// addresses, or a mapping. Default: none.
	Collateral connections.CollateralSpec `yaml:"collateral,omitempty"`

	// Flows that were not seen lately: how many there are, and events of them within a
	// budget, the important ones first. A key of flows alone, or a mapping.
	FirstSeen first.Spec `yaml:"first_seen,omitempty"`

	// Digests of the packets that pass, for weir trace, which finds the path of a
	// packet, and for the detection of loops.
	Digest digest.Spec `yaml:"digest,omitempty"`

	// Sample the packets that come in, some 3000 a second, for weir top. A packet that is not
	// taken costs five instructions.
	Samples sampler.Spec `yaml:"samples"`

	// Forwarding of multicast to the interfaces that want it.
	Multicast multicast.Spec `yaml:"multicast,omitempty"`
}

// TrackerSections are the sections of trackers and scan detectors.
type TrackerSections = tracker.Sections

// MaxPenalties is the maximum number of penalties of heavy hitters.
const MaxPenalties = tracker.MaxPenalties

// Stage is a stage as weir.yaml configures it. The zero value is off.
type Stage interface {
	On() bool
	Check() quantity.FieldErrors
	// Outgoing reports whether the stage needs programs for outgoing packets, on all
	// interfaces.
	Outgoing() bool
	// Shared returns the maps that all programs share, by name, with their entries.
	Shared() map[string]int
	// Part returns its share of programs. It is called for stages that are on, and fails where
	// a file cannot be read.
	Part() (engine.Part, error)
}

// section is a section with its key.
type section struct {
	key string
	Stage
}

func (s *Sections) all() []section {
	return []section{
		{"loop", &s.Loop},
		{"inner", &s.Inner},
		{"replies", connections.NewMemory(s.Replies, s.Collateral.On())},
		{"collateral", &s.Collateral},
		{"first_seen", &s.FirstSeen},
		{"digest", &s.Digest},
	}
}

// CheckStages adds what is wrong with the sections, where what is saved is below a directory.
func (s *Sections) CheckStages(errs *quantity.FieldErrors, stateDir string) {
	for _, each := range s.all() {
		errs.Add(each.key, each.Check().Err())
	}
	errs.Add("digest.archive", s.Digest.CheckArchive(stateDir))
	s.Multicast.Check(errs)
}

// CheckStagesAt adds what is wrong with an interface that is filtered at a place, in the network
// namespace of the first one or not.
func (s *Sections) CheckStagesAt(errs *quantity.FieldErrors, path string, place hooks.Hook, together bool) {
	s.Multicast.CheckAt(errs, path, place, together)
}

// CheckStageFiles adds what is wrong with files that the sections name.
func (s *Sections) CheckStageFiles(errs *quantity.FieldErrors) {
	errs.Add("loop", s.Loop.CheckFiles().Err())
}

// NeedsXDP returns the section for which packets must be filtered at XDP, and why; "" if they
// need not.
func (s *Sections) NeedsXDP() (key, why string) {
	switch {
	case s.Loop.On():
		return "loop", "loops are detected, which changes packets"
	case s.Digest.On():
		return "digest", "packets are recorded by their digests, but may have been joined before they come here"
	}
	return "", ""
}

// RefusesTC returns the section with which no interface can be filtered at TC; "" if there is none.
func (s *Sections) RefusesTC() string {
	key, _ := s.NeedsXDP()
	if key == "" && s.Multicast.On() {
		return "multicast"
	}
	return key
}

// Untagged names the stages that leave packets alone with a VLAN tag which XDP does not see.
const Untagged = "multicast, loop and digest"

// Features returns what stages take a version of Linux for.
func (s *Sections) Features() []stage.Feature { return []stage.Feature{s.Multicast.Feature()} }

// NeedsOutgoing reports whether a stage needs programs for outgoing packets.
func (s *Sections) NeedsOutgoing() bool {
	for _, each := range s.all() {
		if each.Outgoing() {
			return true
		}
	}
	return false
}

// TakesCommands reports whether commands change what programs read, beside the lists.
func (s *Sections) TakesCommands() bool { return s.Multicast.On() }

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

// DescribeStages adds to the status of a daemon what its stages do.
func (s *Sections) DescribeStages(to *api.Status) { to.FirstSeen = s.FirstSeen.On() }

// Conversations are the record of conversations, and the memory of all connections.
type Conversations = connections.Conversations

// Connection is a connection that programs remember.
type Connection = connections.Remembered

// Conversations opens the conversations of a generation's programs, nil where there is no record.
func (s *Sections) Conversations(g *loader.Generation) *Conversations {
	if !s.Collateral.On() {
		return nil
	}
	return s.Collateral.Conversations(connections.NewMemory(s.Replies, true).Open(g), s.Replies.On(), g)
}

// SYNCookies says when SYNs of an interface are answered by SYN cookies.
type SYNCookies = syncookies.Mode

// AtInterface are the keys that stages have at an interface in weir.yaml.
type AtInterface struct {
	// Refuse TCP connections of programs on this host that are dropped by the lists of
	// direction out, by a RST, instead of dropping them silently.
	Reject bool `yaml:"reject,omitempty"`

	// Limit what it receives to a rate, which flows share fairly: a rate alone, or a
	// mapping. Default: no limit.
	Police police.Spec `yaml:"police,omitempty"`

	// Answer SYNs by SYN cookies where they come in: off, auto (while the queue of a listening
	// socket has no room) or on (always, which takes net.ipv4.tcp_syncookies = 2).
	SYNCookies syncookies.Mode `yaml:"syncookies,omitempty"`
}

// CheckStages adds what is wrong with the keys of an interface, whose outgoing packets are
// filtered or not, beside other sections.
func (s *AtInterface) CheckStages(errs *quantity.FieldErrors, path string, outgoing bool, beside *Sections) {
	errs.Add(path+".reject", checkReject(s.Reject, outgoing))
	errs.Add(path+".police", s.Police.Check().Err())
	errs.Add(path+".syncookies", s.SYNCookies.Check(beside.Loop.On()))
}

// Limited returns the keys with another rate of the limit.
func (s AtInterface) Limited(rate quantity.Rate) *AtInterface {
	if s.Police == (police.Spec{}) {
		s.Police.SetDefaults()
	}
	s.Police.Rate = rate
	return &s
}

// NeedsXDP returns why the interface's packets must be filtered at XDP, "" if they need not.
func (s *AtInterface) NeedsXDP() string {
	switch {
	case s.Police != (police.Spec{}):
		return "the interface is policed, which marks packets"
	case s.SYNCookies.On():
		return "its SYNs are answered by SYN cookies"
	}
	return ""
}

// Interface is an interface, or a glob, with what stages have there.
type Interface struct {
	netif.Target
	*AtInterface
}

// Table are the stages of a configuration.
type Table struct {
	*Sections
	Trackers TrackerSections

	loop    *loop.About  // of incoming packets; nil: loops are not looked for
	digest  *digest.Part // nil: nothing is recorded
	police  *police.Part // nil: no interface is policed
	cookies syncookies.Part
	Limits  *police.Sources // of sources, by commands; nil: none
	// What matches patterns, by commands; nil: nothing.
	Patterns *police.Patterns
	parts    []engine.Part
	netns    string // of the first interface
}

// Limits are the limits that commands have set.
type Limits struct {
	Interfaces map[netif.Target]quantity.Rate
	Sources    []Source
	Patterns   []Pattern
}

// Source is a limit of a source, or of a network of them, and Pattern one of the packets that a pattern matches.
type (
	Source  = police.Source
	Pattern = police.Pattern
)

// CheckSource returns why sources cannot be limited to a rate.
func CheckSource(r quantity.Rate) error { return police.CheckSource(r) }

// New returns the stages of a configuration, with what commands have limited. It fails where files
// that they need cannot be read.
func New(s *Sections, trackers TrackerSections, interfaces []Interface, by Limits) (*Table, error) {
	t := &Table{Sections: s, Trackers: trackers.Clone()}
	for _, each := range s.all() {
		if each.On() {
			p, err := each.Part()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", each.key, err)
			}
			t.parts = append(t.parts, p)
			if of, is := p.(*digest.Part); is {
				t.digest = of
			}
		}
	}
	t.loop = s.Loop.About()
	if len(interfaces) > 0 {
		t.netns = interfaces[0].Netns
	}
	policed, any := new(police.Part), false
	var rejecting Reject
	for _, i := range interfaces {
		t.cookies.Interfaces = append(t.cookies.Interfaces, stage.At[SYNCookies]{Target: i.Target, Is: i.SYNCookies})
		if i.Reject {
			rejecting.Interfaces = append(rejecting.Interfaces, netif.Target{Netns: i.Netns, Iface: i.Iface, Out: true})
		}
		l := i.Police.Limits()
		policed.Interfaces, any = append(policed.Interfaces, stage.At[*police.Limits]{Target: i.Target, Is: l}), any || l != nil
	}
	if any {
		t.police, t.parts = policed, append(t.parts, policed)
	}
	if slices.ContainsFunc(t.cookies.Interfaces, func(i stage.At[SYNCookies]) bool { return i.Is.On() }) {
		t.parts = append(t.parts, &t.cookies)
	}
	if len(rejecting.Interfaces) > 0 {
		t.parts = append(t.parts, &rejecting)
	}
	if t.Limits = police.NewSources(by.Sources); t.Limits != nil {
		t.parts = append(t.parts, t.Limits)
	}
	if t.Patterns = police.NewPatterns(by.Patterns); t.Patterns != nil {
		t.parts = append(t.parts, t.Patterns)
	}
	return t, nil
}

// Parts returns the shares of the programs of a generation, with what the journal has for them.
func (t *Table) Parts(j *journal.Journal) []engine.Part {
	all := append(slices.Clip(t.parts), t.Trackers.Part())
	if t.Samples {
		all = append(all, new(sampler.Part))
	}
	if t.Multicast.On() {
		all = append(all, t.Multicast.Part(t.netns, t.Loop.Edges, j))
	}
	return all
}

// General returns why no packet of an interface takes the lean path.
func (t *Table) General(at netif.Target) (why []string) {
	if of := t.Multicast.General(at); of != "" {
		why = append(why, of)
	}
	for _, p := range t.parts {
		if of := p.General(at); of != "" {
			why = append(why, of)
		}
	}
	return why
}

// About describes the stages of a program, beside it in the kernel.
type About struct {
	Loop       *loop.About                  `json:"loop,omitempty"`       // nil: loops are not looked for
	Inner      InnerAbout                   `json:"inner,omitempty"`      // headers in tunnels are matched
	Replies    *connections.RepliesAbout    `json:"replies,omitempty"`    // nil: they are matched like other packets
	Collateral *connections.CollateralAbout `json:"collateral,omitempty"` // nil: it is not recorded
	Police     *police.About                `json:"police,omitempty"`     // nil: the interface is not policed
	SYNCookies *syncookies.About            `json:"syncookies,omitempty"` // nil: no SYN is answered

	FirstSeen *first.About `json:"first_seen,omitempty"` // nil: new flows are not looked for
}

// About returns what the stages say of an interface's program.
func (t *Table) About(at netif.Target) About {
	a := About{Inner: InnerAbout(t.Inner), Replies: t.Replies.About(), Collateral: t.Collateral.About(), FirstSeen: t.FirstSeen.About(at)}
	if !at.Out {
		a.Loop = t.loop
	}
	if t.police != nil {
		a.Police = t.police.About(at)
	}
	a.SYNCookies = t.cookies.About(at)
	return a
}

// OfHost returns what the stages say of all interfaces: what decides the policy (see [About.Decide]).
func (t *Table) OfHost() About { return About{Loop: t.loop} }

// Decide adds to a policy what stages have in it.
func (a *About) Decide(p *verdict.Policy) { a.Loop.Decide(p) }

// Shares reports whether the program reads maps that others share.
func (a *About) Shares() bool { return a.Replies != nil || a.Collateral != nil }

// State has the counts and the state of stages on an interface.
type State struct {
	// Loops are packets by what became of their loop filter.
	Loops loop.State `json:"loop_packets,omitempty"`
	// Tunnels are the headers in tunnels by what carries them, nil where they are not matched.
	Tunnels      Tunnels           `json:"tunnels,omitempty"`
	Policed      *police.State     `json:"policed,omitempty"`       // nil: it is not policed
	NewFlows     *first.State      `json:"new_flows,omitempty"`     // nil: new flows are not looked for
	AnsweredSYNs *syncookies.State `json:"answered_syns,omitempty"` // nil: no SYN is answered
}

// State returns what the stages have done on an interface, as a program's memory has it.
func (a *About) State(at netif.Target, s *loader.Stats) State {
	return State{Loops: a.Loop.State(s), Tunnels: a.Inner.State(s), Policed: a.Police.State(s), NewFlows: a.FirstSeen.State(s), AnsweredSYNs: a.SYNCookies.State(at, s)}
}

// Families are the metrics of stages.
var Families = slices.Concat(loop.Families, innerFamilies, police.Families, first.Families, syncookies.Families, digest.Families, multicast.Families, tracker.Families)

// Counted returns what stages have counted on an interface, as a program's memory has it.
// Its values begin anew with other memory.
func (a *About) Counted(s *loader.Stats) []stage.Sample {
	return slices.Concat(a.Loop.Counted(s), a.Inner.Counted(s), a.Police.Counted(s), a.FirstSeen.Counted(s), a.SYNCookies.Counted(s))
}

// Gauges returns what else stages say of an interface.
func (a *About) Gauges(s *loader.Stats) []stage.Sample {
	return append(a.Police.Gauges(s), a.FirstSeen.Gauges(s)...)
}

// Rows returns the rows of weir status for an interface and a direction.
func (a *About) Rows(out bool, s *State) []stage.Row {
	return slices.Concat(a.Replies.Rows(out), a.Collateral.Rows(out), a.Police.Rows(s.Policed), a.SYNCookies.Rows(s.AnsweredSYNs), a.Inner.Rows(s.Tunnels), a.FirstSeen.Rows(s.NewFlows))
}

// Plans are the subcommands of weir plan that stages have.
func Plans() []plan.Command {
	return append(tracker.Plans(), loop.Plan(), first.Plan(), digest.Plan(), multicast.Plan(), police.Plan())
}
