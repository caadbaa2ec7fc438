package config

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/ordered"
	"weir/filter/verdict"
)

// Only says for which packets a list is. Nothing of it: for all.
type Only struct {
	// Destination ports, and ranges of them, as in tcp/22 or udp/5000-5010: the list is for
	// packets to these.
	Ports []verdict.PortRange `yaml:"ports,omitempty"`

	// Protocols, by name or number, as in tcp, icmp or 47: the list is for packets of these, and
	// of those that ports names, which match at their ports alone.
	Protocols []Protocol `yaml:"protocols,omitempty"`

	// Interfaces for whose packets the list is, as interfaces has them.
	Interfaces []string `yaml:"interfaces,omitempty"`

	// VLANs for whose packets the list is, by the outermost tag; 0 stands for packets without
	// one.
	VLANs []int `yaml:"vlans,omitempty"`
}

// Protocol is the number of an IP protocol.
type Protocol uint8

// UnmarshalText reads a name or a number.
func (p *Protocol) UnmarshalText(text []byte) error {
	if n, known := key.ProtoNumber(string(text)); known {
		*p = Protocol(n)
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 8)
	if err != nil {
		mend := ""
		if name, port, ok := strings.Cut(string(text), "/"); ok {
			mend = fmt.Sprintf("; ports has ports, as in %s/%s", name, port)
		} else if strings.EqualFold(string(text), "icmpv6") || strings.EqualFold(string(text), "ipv6-icmp") {
			mend = ": did you mean icmp6?"
		}
		return fmt.Errorf("unknown protocol %q: want tcp, udp, icmp, icmp6, sctp, dccp, udplite or a number%s", text, mend)
	}
	*p = Protocol(n)
	return nil
}

// MarshalText returns the protocol's name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(key.ProtoName(uint8(p))), nil }

const (
	maxOnly = 32   // ports, protocols, interfaces or VLANs of a list
	maxVLAN = 4094 // 4095 is reserved
)

func (o Only) check() (errs quantity.FieldErrors) {
	for _, of := range []struct {
		name string
		n    int
	}{{"ports", len(o.Ports)}, {"protocols", len(o.Protocols)}, {"interfaces", len(o.Interfaces)}, {"vlans", len(o.VLANs)}} {
		if of.n > maxOnly {
			errs.Failf(of.name, "there are %d: the maximum is %d", of.n, maxOnly)
		}
	}
	quantity.Unique(&errs, "ports", len(o.Ports), func(i int) any { return o.Ports[i] })
	quantity.Unique(&errs, "protocols", len(o.Protocols), func(i int) any { return o.Protocols[i] })
	quantity.Unique(&errs, "interfaces", len(o.Interfaces), func(i int) any { return o.Interfaces[i] })
	quantity.Unique(&errs, "vlans", len(o.VLANs), func(i int) any { return o.VLANs[i] })
	for i, p := range o.Ports {
		if len(o.Protocols) > 0 && !slices.Contains(o.Protocols, Protocol(p.Proto)) {
			name := key.ProtoName(p.Proto)
			errs.Failf(fmt.Sprintf("ports[%d]", i), "%v, but protocols leaves %s out: add it there, or leave out protocols", p, name)
		}
	}
	for i, name := range o.Interfaces {
		errs.Add(fmt.Sprintf("interfaces[%d]", i), stage.CheckName(name))
	}
	for i, v := range o.VLANs {
		if v < 0 || v > maxVLAN {
			errs.Failf(fmt.Sprintf("vlans[%d]", i), "%d is no VLAN: want 1 to %d, or 0 for packets without one", v, maxVLAN)
		}
	}
	return errs
}

// Rule returns the list's rule, nil where it has none.
func (l *List) Rule() *verdict.Rule {
	r := &verdict.Rule{Trial: !l.Enforce, Ports: slices.Clone(l.Ports), Interfaces: slices.Clone(l.Interfaces)}
	for _, p := range l.Protocols {
		r.Protocols = append(r.Protocols, uint8(p))
	}
	for _, v := range l.VLANs {
		r.VLANs = append(r.VLANs, uint16(v))
	}
	if !r.On() {
		return nil
	}
	ordered.By(r.Ports, func(a, b verdict.PortRange) int {
		return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	slices.Sort(r.Protocols)
	slices.Sort(r.Interfaces)
	slices.Sort(r.VLANs)
	return r
}

// checkRules adds the errors in what lists are for that depend on the rest of the
// configuration.
func (c *Config) checkRules(errs *quantity.FieldErrors) {
	for i := range c.Lists {
		l := &c.Lists[i]
		r := l.Rule()
		if r == nil {
			continue
		}
		at := Join("lists", l.Name)
		if err := refuseApprox(c.Mode, r); err != nil {
			errs.Failf(at, "%v", err)
		}
		for n, name := range l.Interfaces {
			if !slices.ContainsFunc(c.Interfaces, func(i Interface) bool { return i.Name == name }) {
				var names []string
				for _, i := range c.Interfaces {
					names = append(names, i.Name)
				}
				mend := "want one of interfaces, which has " + strings.Join(names, ", ")
				for _, i := range c.Interfaces {
					if ok, _ := path.Match(i.Name, name); ok {
						mend = fmt.Sprintf("name %s in interfaces, too, beside %s", name, i.Name)
					}
				}
				errs.Failf(fmt.Sprintf("%s.interfaces[%d]", at, n), "%q is not filtered by that name: %s", name, mend)
			}
		}
	}
	checkRuleCount(errs, c.Lists)
}

func refuseApprox(mode membership.Mode, r *verdict.Rule) error {
	if mode == membership.Exact {
		return nil
	}
	what := "ports, protocols, interfaces and vlans"
	if r.Trial {
		what = "enforce: false"
	}
	return fmt.Errorf("%s: mode: approx does not know which list matches a packet: set mode: exact", what)
}

// countRules returns how many different rules lists have.
func countRules(lists []List) int {
	var distinct []*verdict.Rule
	for i := range lists {
		if r := lists[i].Rule(); r != nil && !slices.ContainsFunc(distinct, r.Equal) {
			distinct = append(distinct, r)
		}
	}
	return len(distinct)
}

// checkRuleCount adds an error where lists have too many different rules. Each list may be on trial
// or not, by a command.
func checkRuleCount(errs *quantity.FieldErrors, lists []List) {
	if n := countRules(lists); 2*n > verdict.MaxRules {
		errs.Failf("lists", "they have %d different rules of enforce, ports, protocols, interfaces and vlans: the maximum is %d", n, verdict.MaxRules/2)
	}
}

// CheckShared returns why a list of the fleet cannot be filtered by beside the lists of the
// configuration, and others of the fleet.
func (c *Config) CheckShared(l List, others []List) error {
	r := l.Rule()
	if r == nil {
		return nil
	}
	if err := refuseApprox(c.Mode, r); err != nil {
		return err
	}
	if own, all := countRules(c.Lists), countRules(append(slices.Clone(others), l)); 2*own+all > verdict.MaxRules {
		return fmt.Errorf("the rules of enforce, ports, protocols and vlans are too many: %d of this configuration, and %d of the fleet", own, all)
	}
	return nil
}
