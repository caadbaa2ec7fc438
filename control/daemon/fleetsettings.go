package daemon

import (
	"errors"
	"strconv"
	"strings"

	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/filter/verdict"
)

// listOf returns a list of the fleet as a configuration would have it.
func listOf(name string, s wire.Settings) (c config.List, err error) {
	c.SetDefaults()
	c.Name = config.FleetPrefix + name
	c.Priority = s.Priority
	if c.Aggregate = config.Aggregate(s.Aggregate); s.Prefix6 != 0 {
		c.Prefix6 = s.Prefix6
		c.WidenAll()
	}
	action, limited := strings.CutSuffix(s.Action, wire.Limited)
	if limited {
		c.Enforce = !s.Trial
		err = errors.Join(each(s.Ports, func(text string) error {
			var p verdict.PortRange
			err := p.UnmarshalText([]byte(text))
			c.Ports = append(c.Ports, p)
			return err
		}), each(s.Protocols, func(text string) error {
			var p config.Protocol
			err := p.UnmarshalText([]byte(text))
			c.Protocols = append(c.Protocols, p)
			return err
		}), each(s.VLANs, func(text string) error {
			v, err := strconv.Atoi(text)
			c.VLANs = append(c.VLANs, v)
			return err
		}))
	}
	err = errors.Join(err, c.Action.UnmarshalText([]byte(action)), c.Direction.UnmarshalText([]byte(s.Direction)), c.Check())
	return c, err
}

// each calls read with each of the texts that are joined by commas.
func each(texts string, read func(text string) error) error {
	if texts == "" {
		return nil
	}
	for text := range strings.SplitSeq(texts, ",") {
		if err := read(text); err != nil {
			return err
		}
	}
	return nil
}
