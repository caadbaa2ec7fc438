package connections

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/conntrack"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// CollateralSpec has the addresses recorded that lists match and with which this host converses.
type CollateralSpec struct {
	// The number of addresses that are recorded, in 112 bytes each, and of connections that
	// others open, in 128 bytes each. Beyond that, those that were used least recently are
	// forgotten. egress is true for all interfaces, since connections are remembered as they
	// leave: see replies.
	Sources quantity.Count `yaml:"sources,required,short" min:"1024" max:"1048576"`
}

// On reports whether addresses are recorded.
func (s *CollateralSpec) On() bool { return s.Sources > 0 }

// Check returns what is wrong with the section.
func (s *CollateralSpec) Check() quantity.FieldErrors { return nil }

// Outgoing reports that connections are remembered as they leave.
func (s *CollateralSpec) Outgoing() bool { return s.On() }

// Shared returns the maps of the record.
func (s *CollateralSpec) Shared() map[string]int { return CollateralMaps(int(s.Sources)) }

// Part returns the share of programs.
func (s *CollateralSpec) Part() (engine.Part, error) {
	return &CollateralPart{Collateral: NewCollateralTwin()}, nil
}

// CollateralMaps returns the maps of a record of a number of addresses.
func CollateralMaps(sources int) map[string]int {
	return map[string]int{bpf.WeirMapPartners: sources, bpf.WeirMapAccepted: sources}
}

// CollateralPart is the share of programs. They need the share of replies, too, which remembers connections.
type CollateralPart struct {
	engine.BasePart
	*conntrack.Collateral
}

// NewCollateralTwin returns what the twin of programs records in.
func NewCollateralTwin() *conntrack.Collateral {
	return &conntrack.Collateral{
		Accepted: make(map[conntrack.Connection]conntrack.ConnectionState), Partners: make(map[conntrack.Partner]conntrack.Conversation),
	}
}

// Constants returns those of a program.
func (p *CollateralPart) Constants(netif.Target, loader.Seed) map[string]any {
	return map[string]any{bpf.WeirVarCollateral: uint8(1)}
}

// Twin makes the twin of programs record conversations.
func (p *CollateralPart) Twin(v *verdict.Program) { v.Collateral = p.Collateral }

// CollateralAbout describes the record of conversations.
type CollateralAbout struct {
	Sources int `json:"sources"` // addresses of all interfaces, that are recorded at most
}

// About returns what is said of the programs, nil where nothing is recorded.
func (s *CollateralSpec) About() *CollateralAbout {
	if !s.On() {
		return nil
	}
	return &CollateralAbout{int(s.Sources)}
}

// Rows describes what becomes of packets of a direction.
func (a *CollateralAbout) Rows(out bool) []stage.Row {
	if a == nil || out {
		return nil
	}
	return []stage.Row{{Name: "collateral", Text: fmt.Sprintf(
		"the last %s listed addresses that this host converses with are recorded", humanize.Comma(int64(a.Sources)))}}
}

// Record is the record of conversations, in the shared maps of programs.
type Record struct{ *loader.Shared }

// Open returns the record of a generation's programs, nil where there is none. It must be
// closed.
func (s *CollateralSpec) Open(g *loader.Generation) *Record {
	if !s.On() {
		return nil
	}
	shared := g.Shared(s.Shared())
	if shared == nil {
		return nil
	}
	return &Record{shared}
}

// Accepted calls fn with each connection that others have opened and this host has answered,
// expired ones included, until it fails.
func (r *Record) Accepted(fn func(Connection, State) error) error {
	var k Connection
	var s State
	return r.Each(bpf.WeirMapAccepted, &k, &s, func() error { return fn(k, s) })
}

// Partners returns what is recorded, with times of the kernel's clock.
func (r *Record) Partners() (map[conntrack.Partner]conntrack.Conversation, error) {
	var k bpf.WeirPartner
	var c bpf.WeirConversation
	all := make(map[conntrack.Partner]conntrack.Conversation)
	err := r.Each(bpf.WeirMapPartners, &k, &c, func() error {
		all[conntrack.Partner{Addr: engine.AddrOf(k.Family, k.Addr), Out: k.Out != 0}] = conntrack.Conversation{First: time.Duration(c.First), Last: time.Duration(c.Last), How: conntrack.How(c.How)}
		return nil
	})
	return all, err
}
