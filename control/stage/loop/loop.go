// Package loop makes the host a node of a domain in which packets carry a small filter of the
// nodes that they have passed, and finds the packets that come again.
package loop

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/filter/icarus"
)

// Spec makes this host a node of a domain in which packets carry a small filter of
// the nodes that they have passed.
type Spec struct {
	// Number of this node, unique in the domain.
	Node int `yaml:"node,required" min:"1" max:"4294967295"`

	// Number of the domain, to distinguish it from others.
	Domain int `yaml:"domain,omitempty" min:"0" max:"255"`

	// File with the secret that all nodes share: 32 hexadecimal digits, or 16 bytes.
	// Only its owner and group may have access.
	KeyFile quantity.Path `yaml:"key_file,required"`

	// Names or patterns of the interfaces where packets enter and leave the domain.
	Edges []string `yaml:"edges,omitempty"`

	// The action on a packet in a loop: report (the default) or drop.
	Action Action `yaml:"action,omitempty"`

	// Bits of a packet's filter: 64, 128 or 256, the same on all nodes. Default: as
	// follows from path_length and false_positive_rate.
	Size int `yaml:"size,omitempty" min:"64" max:"256"`

	// Bits that a node sets. Default: the best for path_length.
	K int `yaml:"k,omitempty" min:"1" max:"128"`

	// Nodes in a row that must find a filter unchanged. Default: 1, or as
	// false_positive_rate requires.
	Confirm int `yaml:"confirm,omitempty" min:"1" max:"16"`

	// Nodes on the longest path without a loop. Default: 16.
	PathLength int `yaml:"path_length,omitempty" min:"1" max:"255"`

	// The share of such paths that may be mistaken for a loop. Default: 0.1%.
	FPR quantity.Share `yaml:"false_positive_rate,omitempty"`
}

// Action is the action against packets in a loop.
type Action string

// The actions on loops.
const (
	Report Action = "report"
	Drop   Action = "drop"
)

// UnmarshalText sets the action by its name.
func (a *Action) UnmarshalText(text []byte) error {
	if *a = Action(text); *a != Report && *a != Drop {
		return fmt.Errorf("unknown action %q: want report or drop", text)
	}
	return nil
}

// What a domain is planned for, unless its configuration says otherwise.
const (
	defaultPathLength = 16
	defaultFPR        = 1e-3
)

// On reports whether loops are to be looked for.
func (l *Spec) On() bool { return l.Node != 0 }

// Geometry is the part of the filter that is configured, and what follows for the rest of it
// from the paths' length. It fails where no filter is good enough.
func (l *Spec) Geometry() (icarus.Geometry, error) {
	hops, target := l.PathLength, float64(l.FPR)
	if hops == 0 {
		hops = defaultPathLength
	}
	if target == 0 {
		target = defaultFPR
	}
	if l.Size == 0 {
		g, _, err := icarus.Choose(hops, target)
		return g, err
	}
	g := icarus.Geometry{Size: l.Size, K: l.K, Confirm: max(l.Confirm, 1)}
	if g.K == 0 {
		var err error
		if g.K, _, err = icarus.Best(g.Size, hops, g.Confirm); err != nil {
			return g, err
		}
	}
	_, err := icarus.Mask(0, 0, g.Size, g.K)
	return g, err
}

// Key reads the domain's secret: 16 bytes, or 32 hexadecimal digits. It fails where
// that cannot be read, or anybody can.
func (l *Spec) Key() (key icarus.Key, err error) {
	file := string(l.KeyFile)
	info, err := os.Stat(file)
	if err != nil {
		return key, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return key, fmt.Errorf("%s: mode %04o lets everybody at it, who could then forge filters: chmod o= %s",
			file, info.Mode().Perm(), file)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return key, err
	}
	digits, notHex := hex.DecodeString(strings.TrimSpace(string(text)))
	switch {
	case notHex == nil && len(digits) == len(key):
		return icarus.Key(digits), nil
	case notHex != nil && len(text) == len(key): // 16 digits would be half a secret
		return icarus.Key(text), nil
	}
	return key, fmt.Errorf("%s: want 32 hexadecimal digits, as `openssl rand -hex 16` gives, or 16 bytes", file)
}

// Check returns the errors in the section.
func (l *Spec) Check() (errs quantity.FieldErrors) {
	if !l.On() {
		return nil
	}
	for i, e := range l.Edges {
		if _, err := path.Match(e, ""); e == "" || err != nil {
			errs.Failf(fmt.Sprintf("edges[%d]", i), "%q is neither a name nor a pattern of interfaces", e)
		}
	}
	if l.Size == 0 && (l.K != 0 || l.Confirm != 0) {
		errs.Failf("", "k and confirm go with size: without it, all three follow from path_length and false_positive_rate")
	} else if l.Size != 0 && l.FPR != 0 {
		errs.Failf("false_positive_rate", "it goes without size, which would follow from it")
	} else if _, err := l.Geometry(); err != nil {
		errs.Failf("", "%s: `weir plan loop` shows what filters can do", strings.TrimPrefix(err.Error(), "icarus: "))
	}
	return errs
}

// CheckFiles returns the error in the file of the key. weir check may run without the right to
// read it.
func (l *Spec) CheckFiles() (errs quantity.FieldErrors) {
	if l.KeyFile == "" {
		return nil
	}
	if _, err := l.Key(); err != nil && !errors.Is(err, fs.ErrPermission) {
		errs.Add("key_file", err)
	}
	return errs
}

// Outgoing reports that only incoming packets are looked at.
func (*Spec) Outgoing() bool { return false }

// Shared returns no maps.
func (*Spec) Shared() map[string]int { return nil }

// Part returns the share of programs. It fails where the key cannot be read, or anybody can.
func (l *Spec) Part() (engine.Part, error) {
	n, err := l.newNode()
	if err != nil {
		return nil, err
	}
	return &Part{Node: n, Edges: l.Edges, Drop: l.Action == Drop}, nil
}

// newNode returns the node that the configuration makes of this host. It fails
// where the key cannot be read, or anybody can.
func (l *Spec) newNode() (*icarus.Node, error) {
	key, err := l.Key()
	if err != nil {
		return nil, err
	}
	g, err := l.Geometry()
	if err != nil {
		return nil, err
	}
	return icarus.NewNode(uint64(l.Node), uint8(l.Domain), key, g)
}
