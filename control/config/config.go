// Package config reads weir.yaml, what the daemon is told.
//
// It is strict: an unknown key, a wrong type, a value out of its range are
// errors, each with file, line, column and the way to it, and all that are in a
// file are reported at once. [Example] is a file to begin with. [Schema]
// describes the same to editors; it is made from the types here, whose comments
// it quotes, by
//
//	go test ./control/config -run TestSchema -update
package config

import (
	_ "embed"
	"path/filepath"

	"weir/control/engine"
	"weir/control/feed"
	"weir/control/observe/digests"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/control/quantity"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
)

// Example is a configuration that an operator would copy and change.
//
//go:embed weir.yaml
var Example []byte

// Schema is a JSON schema, draft 2020-12, of weir.yaml.
//
//go:embed weir.schema.json
var Schema []byte

// Config is what a file says, together with the defaults of what it does not
// say. What must be configured to be of use, as loop, multicast and digest, is on
// where it is in the file, and else off.
//
// The tag yaml gives a field's key. Its options: omitempty leaves the zero
// value out when printed, for fields whose default that is; required; short
// marks the field that stands for its whole struct, where that is written as a
// scalar; key marks the field that is the key of a mapping's element, where
// there is a mapping in the place of a sequence. The tags min and max bound a
// number.
type Config struct {
	// Where to filter.
	Interfaces []Interface `yaml:"interfaces,required"`

	// exact: nothing unlisted is dropped. approx: for more entries than memory,
	// at a planned rate of false drops.
	Mode membership.Mode `yaml:"mode"`

	// Bits of the filter per entry, in approximate mode.
	BitsPerEntry float64 `yaml:"bits_per_entry" min:"1" max:"256"`

	// Count what would be dropped, and drop nothing.
	Monitor bool `yaml:"monitor"`

	// What becomes of packets that are truncated, malformed or have more headers
	// than weir follows, and that no list holds.
	Malformed verdict.Action `yaml:"malformed"`

	// What passes before any list is asked, so that nobody locks themselves out.
	Failsafe Failsafe `yaml:"failsafe"`

	// The share of IPv4 or of IPv6 above which a block list is refused: more is
	// rather a broken feed than meant.
	MaxCoverage quantity.Share `yaml:"max_coverage"`

	// Leave the program on the interfaces when the daemon stops: filtering goes on
	// without it, and weir detach ends it.
	Keep bool `yaml:"keep"`

	// Directory of what must outlast a restart: contents of feeds, and manual
	// entries and groups. Empty: nothing is saved.
	StateDir Path `yaml:"state_dir"`

	// Directory of pins, on a BPF file system.
	Pins loader.Pins `yaml:"pins"`

	// How commands reach the daemon.
	API API `yaml:"api"`

	// Metrics for Prometheus.
	Metrics Metrics `yaml:"metrics"`

	// What is logged, and how.
	Log Log `yaml:"log"`

	// Learning which flows are heavy, to spare them false drops in approximate
	// mode.
	Learning Learning `yaml:"learning"`

	// Heavy hitters: what is counted, and what becomes of what is over its
	// threshold.
	Trackers []heavy.Spec `yaml:"trackers,omitempty"`

	// Looking for packets that go round in circles through a domain of nodes.
	Loop Loop `yaml:"loop,omitempty"`

	// Forwarding of multicast, by the filters of the interfaces that want it.
	Multicast Multicast `yaml:"multicast,omitempty"`

	// Digests of the packets that pass, by which weir trace finds where a packet
	// has come from, and weir itself finds packets that run in a loop.
	Digest digests.Spec `yaml:"digest,omitempty"`

	// The lists, by name: letters, digits, "_", "-" and inner dots.
	Lists []List `yaml:"lists,omitempty"`
}

// Interface says where to filter: a name alone, or a mapping.
type Interface struct {
	// Name, or a pattern of names with *, ? and [ ], for interfaces as they come
	// and go.
	Name string `yaml:"name,required,short"`

	// Network namespace: a name as of ip-netns, a path if it holds a slash;
	// otherwise the daemon's own.
	Netns string `yaml:"netns,omitempty"`

	// Where the program runs: native (in the driver), generic (slower, any
	// driver) or offload (on the NIC). There is no falling back.
	XDP loader.Hook `yaml:"xdp"`

	// Do not start without the interface, instead of waiting for it.
	Required bool `yaml:"required,omitempty"`
}

// Failsafe is what passes before any list is asked.
type Failsafe struct {
	// Destination ports, as in tcp/22; up to 8.
	Ports []verdict.FailsafePort `yaml:"ports,omitempty"`

	// Addresses and prefixes of sources; up to 8 of IPv4 and 8 of IPv6.
	Prefixes []verdict.FailsafePrefix `yaml:"prefixes,omitempty"`
}

// API says how commands reach the daemon.
type API struct {
	// Path of the Unix socket.
	Socket Path `yaml:"socket"`

	// Group whose members may use the socket besides root.
	Group string `yaml:"group,omitempty"`

	// Address and port to listen on besides, as in 192.0.2.1:9478 or [::1]:9478.
	// It takes all of tls: clients must have a certificate.
	Listen Address `yaml:"listen,omitempty"`

	// Files in PEM for listen.
	TLS TLS `yaml:"tls"`
}

// TLS are the files of a listener that asks its clients for certificates.
type TLS struct {
	// The daemon's certificate, and those between it and the authority.
	Cert Path `yaml:"cert,omitempty"`

	// The certificate's private key.
	Key Path `yaml:"key,omitempty"`

	// Authorities whose certificates clients must have.
	ClientCA Path `yaml:"client_ca,omitempty"`
}

// Metrics says where metrics are served.
type Metrics struct {
	// Address and port of HTTP, path /metrics, as in 127.0.0.1:9477; otherwise
	// the API's socket alone has them.
	Listen Address `yaml:"listen,omitempty"`
}

// Log says what is logged to standard error.
type Log struct {
	// The least that is logged: debug, info, warn or error.
	Level LogLevel `yaml:"level"`

	// text or json.
	Format LogFormat `yaml:"format"`
}

// Learning is of use in approximate mode, and with trackers.
type Learning struct {
	// After it, what was observed counts half.
	HalfLife quantity.Duration `yaml:"half_life"`

	// The most elements that get weights; 0 learns nothing.
	Elements int `yaml:"elements" min:"0" max:"1048576"`

	// Learn in exact mode, too, where a false positive of the filter costs a few
	// nanoseconds and no packet.
	Exact bool `yaml:"exact,omitempty"`
}

// Loop makes this host a node of a domain through which packets carry a small
// filter of the nodes that they have passed.
type Loop struct {
	// Number of this node, which no other node of the domain has.
	Node int `yaml:"node,required" min:"1" max:"4294967295"`

	// Number of the domain, which tells it from others that it may meet.
	Domain int `yaml:"domain,omitempty" min:"0" max:"255"`

	// File with the secret that all nodes share: 32 hexadecimal digits, or 16
	// bytes. Others than its owner and group must not read it.
	KeyFile Path `yaml:"key_file,required"`

	// Interfaces, by names or patterns, where packets enter and leave the domain.
	Edges []string `yaml:"edges,omitempty"`

	// What becomes of a packet in a loop: report (the default) or drop.
	Action LoopAction `yaml:"action,omitempty"`

	// Bits of a packet's filter: 64, 128 or 256. All nodes must have the same;
	// otherwise path_length and false_positive_rate tell.
	Size int `yaml:"size,omitempty" min:"64" max:"256"`

	// Bits that a node sets; otherwise the best for path_length.
	K int `yaml:"k,omitempty" min:"1" max:"128"`

	// Nodes in a row that must find a filter unchanged; otherwise 1, or what
	// false_positive_rate takes.
	Confirm int `yaml:"confirm,omitempty" min:"1" max:"16"`

	// Nodes on the longest path without a loop; otherwise 16.
	PathLength int `yaml:"path_length,omitempty" min:"1" max:"255"`

	// The share of such paths that may be taken for a loop; otherwise 0.1%.
	FPR quantity.Share `yaml:"false_positive_rate,omitempty"`
}

// Multicast is copied from the interfaces where weir filters to those that want
// it: packets to groups wider than a link.
type Multicast struct {
	// Where groups are wanted, in the network namespace of interfaces.
	Interfaces []MulticastInterface `yaml:"interfaces,required"`

	// Groups that may be wanted in all: for so many the filters are planned, to
	// err once in a million packets to other groups.
	MaxGroups int `yaml:"max_groups" min:"1" max:"65536"`
}

// MulticastInterface is an interface that wants groups: a name alone, or a
// mapping.
type MulticastInterface struct {
	// Name; the interface need not be filtered.
	Name string `yaml:"name,required,short"`

	// Groups that it wants, besides those that are added by command.
	Groups []Group `yaml:"groups,omitempty"`
}

// List is a list: entries from its sources, and those that are added to it by
// command.
type List struct {
	Name string `yaml:",key"`

	// block: drop what it holds. allow: pass it, whatever blocks it.
	Action Action `yaml:"action"`

	// Side of packets that addresses and prefixes are held against: src, dst or
	// both. Flows say it themselves.
	Direction engine.Direction `yaml:"direction"`

	// Of two lists that hold a packet, the one with the higher number has it
	// counted; of equals, the one that stands first.
	Priority int `yaml:"priority,omitempty" min:"-1000" max:"1000"`

	// How long an entry that has left the sources still holds; otherwise it goes
	// at once. While a source cannot be read, all that it last held does.
	TTL quantity.Duration `yaml:"ttl,omitempty"`

	// Do not start unless each source has been read, now or by an earlier run.
	Required bool `yaml:"required,omitempty"`

	// Where entries come from. A list without sources has manual entries only.
	feed.Spec `yaml:",inline"`
}

// DefaultMaxGroups takes 4.5 KB for each interface.
const DefaultMaxGroups = 1024

// Default is the configuration that an empty file would give, had it an
// interface.
func Default() *Config {
	c := &Config{}
	c.SetDefaults()
	return c
}

// SetDefaults sets the defaults of what is always there.
func (c *Config) SetDefaults() {
	c.BitsPerEntry = engine.DefaultBitsPerKey
	// The bogons are some 14 % of IPv4; a country's addresses can be more than
	// this, and want it said.
	c.MaxCoverage = 0.25
	c.Keep = true
	c.StateDir = "/var/lib/weir"
	c.Pins = loader.DefaultPins
	c.API.Socket = "/run/weir/weir.sock"
	c.Log.Format = LogText
	c.Learning = Learning{HalfLife: quantity.Duration(learn.DefaultHalfLife), Elements: learn.DefaultElements}
}

// SetDefaults sets the defaults.
func (m *Multicast) SetDefaults() { m.MaxGroups = DefaultMaxGroups }

// SetDefaults sets the defaults.
func (l *List) SetDefaults() {
	l.Action = Block
	l.Spec.SetDefaults()
}

// Digests returns what is recorded, nil for nothing.
func (c *Config) Digests() *digests.Config {
	return c.Digest.Config(filepath.Join(string(c.StateDir), "digests"))
}

// Feed returns the configuration of the list's feed.
func (l List) Feed() feed.Config {
	return feed.Config{Name: l.Name, Spec: l.Spec, MayBeEmpty: l.Action == Allow}
}
