package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"weir/control/quantity"
	"weir/filter/icarus"
)

// What a domain is planned for, unless its configuration says otherwise.
const (
	defaultPathLength = 16
	defaultFPR        = 1e-3
)

// On reports whether loops are to be looked for.
func (l Loop) On() bool { return l.Node != 0 }

// Geometry is the part of the filter that is configured, and what follows for the rest of it
// from the paths' length. It fails where no filter is good enough.
func (l Loop) Geometry() (icarus.Geometry, error) {
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
func (l Loop) Key() (key icarus.Key, err error) {
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

func (l Loop) check() (errs quantity.FieldErrors) {
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

// checkFiles returns the errors in other files that would keep weir from starting.
func (c *Config) checkFiles() (errs quantity.FieldErrors) {
	for _, t := range c.Notify.Targets {
		errs.Add(join("notify.targets", t.Name), t.ValidateFiles())
	}
	for _, e := range c.Export.Collectors {
		errs.Add(join("export.collectors", e.Name), e.TLS.ValidateFiles())
	}
	for _, l := range c.Lists {
		for i, s := range l.Sources {
			errs.Add(join("lists", l.Name)+fmt.Sprintf(".sources[%d]", i), s.ValidateFiles())
		}
	}
	if c.Loop.KeyFile == "" {
		return errs
	}
	// weir check may run without the right to read the key.
	if _, err := c.Loop.Key(); err != nil && !errors.Is(err, fs.ErrPermission) {
		errs.Add("loop.key_file", err)
	}
	return errs
}

// NewNode returns the node that the configuration makes of this host. It fails
// where the key cannot be read, or anybody can.
func (l Loop) NewNode() (*icarus.Node, error) {
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
