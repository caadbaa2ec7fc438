package daemon

import (
	"weir/control/attach"
	"weir/control/observe/traffic"
	"weir/loader"
)

// programs describes programs by their metadata.
type programs struct{}

// Describe implements [traffic.Describer].
func (programs) Describe(a *loader.Attachment) (traffic.Program, error) {
	m, err := attach.MetadataOf(a)
	p := traffic.Program{Policy: *m.Policy(), Stages: &m}
	for _, l := range m.Lists {
		p.Lists = append(p.Lists, traffic.List{Name: l.Name, Allow: l.Allow, Before: l.Before})
	}
	return p, err
}
