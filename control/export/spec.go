package export

import (
	"cmp"
	"fmt"
	"regexp"
	"time"

	"weir/control/endpoint"
	"weir/control/quantity"
)

// Spec says what is exported to whom.
type Spec struct {
	// The collectors, by name: letters, digits, "_", "-" and dots.
	Collectors []Collector `yaml:"collectors,required"`

	// How often records are sent, from 1s to 1h.
	Interval quantity.Duration `yaml:"interval"`
}

// Collector is a receiver of records.
type Collector struct {
	Name string `yaml:",key"`

	// Collector of IPFIX: udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT.
	IPFIX endpoint.URL `yaml:"ipfix,omitempty"`

	// Collector of sFlow version 5: udp://HOST:PORT, where the port is mostly 6343.
	SFlow endpoint.URL `yaml:"sflow,omitempty"`

	// sFlow: of how many dropped packets one is reported, a power of two. It is fewer while
	// more than 10,000 are reported in a second.
	Sampling int `yaml:"sampling" min:"1" max:"65536"`

	// sFlow: how dropped packets are reported: as samples, which all collectors
	// read, or as notifications, a later addition to sFlow that is only of discarded packets.
	Drops Drops `yaml:"drops"`

	// Files for tls://.
	TLS endpoint.TLS `yaml:"tls,omitempty"`

	// How often templates are repeated over UDP, from 1s to 1h.
	Templates quantity.Duration `yaml:"templates"`

	// The observation domain of the records of all packets. Heavy hitters have the next
	// one. The ID of the sub-agent in sFlow.
	Domain int `yaml:"domain" min:"1" max:"4294967294"`

	// The private enterprise number of reasons, lists and other elements of weir's own.
	// The default is the one for documentation, since weir has none.
	Enterprise int `yaml:"enterprise" min:"1" max:"4294967295"`
}

// SetDefaults sets the defaults.
func (s *Spec) SetDefaults() { s.Interval = quantity.Duration(10 * time.Second) }

// SetDefaults sets the defaults.
func (c *Collector) SetDefaults() {
	c.Templates, c.Domain = quantity.Duration(time.Minute), 1
	c.Enterprise = 32473 // RFC 5612
	c.Sampling, c.Drops = 1, FlowSamples
}

// URL returns where the collector is.
func (c *Collector) URL() endpoint.URL { return cmp.Or(c.IPFIX, c.SFlow) }

// Drops is a way to report dropped packets in sFlow.
type Drops string

// The ways.
const (
	FlowSamples   Drops = "samples"
	Notifications Drops = "notifications"
)

// UnmarshalText reads a way to report dropped packets.
func (d *Drops) UnmarshalText(text []byte) error {
	switch way := Drops(text); way {
	case FlowSamples, Notifications:
		*d = way
		return nil
	}
	return fmt.Errorf("%.100q: want samples or notifications", text)
}

// Label returns the name.
func (c Collector) Label() string { return c.Name }

var matchesName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`).MatchString

// maxCollectors bounds the collectors, each of which has a queue.
const maxCollectors = 8

// Validate returns what is wrong with a Spec, its files apart, as
// [quantity.FieldErrors].
func (s Spec) Validate() error {
	var errs quantity.FieldErrors
	if len(s.Collectors) > maxCollectors {
		errs.Failf("collectors", "there are %d: the maximum is %d", len(s.Collectors), maxCollectors)
	}
	if len(s.Collectors) > 0 {
		quantity.Between(&errs, "interval", s.Interval, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	}
	for _, c := range s.Collectors {
		at := "collectors." + c.Name
		if !matchesName(c.Name) {
			errs.Failf("collectors", `the name %q: want up to 64 letters, digits, "_", "-" and dots`, c.Name)
			continue
		}
		switch {
		case (c.IPFIX == "") == (c.SFlow == ""):
			errs.Failf(at, "want either ipfix or sflow, as in udp://192.0.2.10:4739")
		case c.SFlow != "" && c.SFlow.Scheme() != "udp":
			errs.Failf(at+".sflow", "sFlow goes over UDP: want udp://HOST:PORT")
		case c.Sampling&(c.Sampling-1) != 0:
			errs.Failf(at+".sampling", "%d: want a power of two", c.Sampling)
		}
		errs.Add(at, c.URL().Validate(c.TLS))
		quantity.Between(&errs, at+".templates", c.Templates, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	}
	return errs.Err()
}
