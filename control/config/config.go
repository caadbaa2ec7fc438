// Package config parses and validates weir.yaml.
//
// It is strict: an unknown key, a wrong type or a value out of range is an error
// with its file, line, column and path, and all errors in a file are reported at
// once. [Example] is a file to start from. weir.schema.json describes the file to editors;
// it is generated from the types here and quotes their comments:
//
//	go test ./control/config -run TestSchema -update
package config

import (
	_ "embed"
	"fmt"
	"slices"
	"time"

	"weir/control/engine"
	"weir/control/export"
	"weir/control/feed"
	"weir/control/geo"
	"weir/control/notify"
	"weir/control/observe/learn"
	"weir/control/quantity"
	"weir/control/stages"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
)

// Example is a configuration that an operator would copy and change.
//
//go:embed weir.yaml
var Example []byte

// Config is a configuration with its defaults. Stages are off unless the file has their sections.
//
// The tag yaml is a field's key and its options: omitempty, for fields whose default
// is the zero value, which is not printed; required; short, for the field that a
// scalar sets where the struct may be written as one; key, for the field that is
// the key of an element where the elements of a slice are written as a mapping. The
// tags min and max bound a number. Types that implement
// [encoding.TextUnmarshaler] are scalars.
type Config struct {
	// Where to filter.
	Interfaces []Interface `yaml:"interfaces,required"`

	// exact: no unlisted packet is dropped. approx: a packet reads less
	// memory, and a planned rate of unlisted packets is dropped by mistake.
	Mode membership.Mode `yaml:"mode"`

	// Bits of the filter per entry, in approximate mode.
	BitsPerEntry float64 `yaml:"bits_per_entry" min:"1" max:"256"`

	// Count what would be dropped, but drop nothing.
	Monitor bool `yaml:"monitor"`

	// The action on packets that are truncated, malformed or have more headers than
	// weir follows, unless a list matches them.
	Malformed verdict.Action `yaml:"malformed"`

	// The action on frames that are neither IP nor ARP and do not control the link,
	// as LACP, LLDP, 802.1X and spanning tree do: encapsulations that weir does not
	// follow, and all else.
	NotIP verdict.Action `yaml:"not_ip"`

	// What passes before the lists are looked up, as a protection against lock-out.
	Failsafe Failsafe `yaml:"failsafe"`

	stages.Sections `yaml:",inline"`

	// The share of IPv4 or of IPv6 above which a block list is refused: it is
	// probably a broken feed.
	MaxCoverage quantity.Share `yaml:"max_coverage"`

	// Leave the program attached when the daemon stops: filtering goes on without it,
	// and weir detach ends it.
	Keep bool `yaml:"keep"`

	// Directory of the state that survives a restart: contents of feeds, manual
	// entries and groups. Empty: nothing is saved.
	StateDir Path `yaml:"state_dir"`

	// Directory of pins, on a BPF file system.
	Pins loader.Pins `yaml:"pins"`

	// How commands reach the daemon.
	API API `yaml:"api"`

	// Metrics for Prometheus.
	Metrics Metrics `yaml:"metrics"`

	// The console, a page for browsers: weir console prints its URL.
	Console Console `yaml:"console,omitempty"`

	// The log, on standard error.
	Log Log `yaml:"log"`

	// Learning what the filter of approximate mode drops by mistake, so that it hardly ever
	// does so again.
	Learning Learning `yaml:"learning"`

	stages.TrackerSections `yaml:",inline"`

	// What is done about floods that samples of packets show.
	Flood Flood `yaml:"flood"`

	// Databases of autonomous systems and countries in MaxMind's format (.mmdb), for
	// weir drops. They are read again when they change.
	Geo geo.Spec `yaml:"geo,omitempty"`

	// Who is notified of heavy hitters, failures, surges of drops and refused changes.
	Notify Notify `yaml:"notify,omitempty"`

	// Flow collectors, and what they get: IPFIX records of passed and dropped packets, or sFlow.
	Export export.Spec `yaml:"export,omitempty"`

	// The fleet that this host is a node of: its lists are filtered by, beside those
	// below.
	Fleet Fleet `yaml:"fleet,omitempty"`

	// The lists, by name: letters, digits, "_", "-" and inner dots.
	Lists []List `yaml:"lists,omitempty"`
}

// Interface says where to filter: a name alone, or a mapping.
type Interface struct {
	// Name, or a pattern with *, ? and [ ], which also covers interfaces created
	// later.
	Name string `yaml:"name,required,short"`

	// Network namespace: a name as in ip netns, or a path, which contains a slash.
	// Default: the daemon's own.
	Netns string `yaml:"netns,omitempty"`

	// Where packets are filtered: xdp (the default), or tc, later and slower, for
	// interfaces without an Ethernet header, such as tunnels, or without XDP.
	Hook Hook `yaml:"hook,omitempty"`

	// Where the program of hook xdp runs: native (in the driver) or generic (slower, with any
	// driver). weir never falls back to the other one.
	XDP hooks.Hook `yaml:"xdp"`

	// How the program of hook xdp is attached: by a link, which leaves no room for other XDP
	// programs, or as one of the programs of libxdp's dispatcher. Default: link.
	Attach Attach `yaml:"attach,omitempty"`

	// Filter what it sends, too, by the lists of direction out.
	Egress bool `yaml:"egress,omitempty"`

	// Do not start without the interface, instead of waiting for it.
	Required bool `yaml:"required,omitempty"`

	stages.AtInterface `yaml:",inline"`
}

// Failsafe has the packets that pass before the lists are looked up.
type Failsafe struct {
	// Destination ports, as in tcp/22 or 22/tcp; up to 8.
	Ports []verdict.FailsafePort `yaml:"ports,omitempty"`

	// Addresses and prefixes of sources; up to 8 of IPv4 and 8 of IPv6.
	Prefixes []verdict.FailsafePrefix `yaml:"prefixes,omitempty"`

	// Kinds of ICMP and ICMPv6 messages, from any source: errors, without which paths of
	// a smaller MTU stall; echo-request, so that the host can be pinged; echo-reply, so
	// that it can ping.
	ICMP []verdict.FailsafeICMP `yaml:"icmp,omitempty"`

	// This host serves or relays DHCP: what clients and relays send passes, too.
	DHCPServer bool `yaml:"dhcp_server"`
}

// API says how commands reach the daemon.
type API struct {
	// Path of the Unix socket.
	Socket Path `yaml:"socket"`

	// Group whose members may use the socket, in addition to root.
	Group string `yaml:"group,omitempty"`

	// Address and port to listen on as well, as in 192.0.2.1:9478 or [::1]:9478. It
	// requires all of tls: clients must have a certificate.
	Listen Address `yaml:"listen,omitempty"`

	// Files in PEM for listen.
	TLS TLS `yaml:"tls"`
}

// TLS names the files of a listener that requires certificates of its clients.
type TLS struct {
	// The daemon's certificate, and the intermediate ones.
	Cert Path `yaml:"cert,omitempty"`

	// The certificate's private key.
	Key Path `yaml:"key,omitempty"`

	// The authorities that sign the clients' certificates.
	ClientCA Path `yaml:"client_ca,omitempty"`
}

// Metrics says where metrics are served.
type Metrics struct {
	// Address and port that serve /metrics over HTTP, as in 127.0.0.1:9477. Default:
	// only the API's socket serves them.
	Listen Address `yaml:"listen,omitempty"`
}

// Console says where the console is served.
type Console struct {
	// Address and port of a loopback interface, as in 127.0.0.1:9479; with tls of any.
	// Default: there is no console.
	Listen Address `yaml:"listen,required"`

	// Files in PEM, for an address that others reach: browsers must have a certificate.
	TLS TLS `yaml:"tls,omitempty"`

	// A reverse proxy whose users need no URL of weir console.
	Proxy ConsoleProxy `yaml:"proxy,omitempty"`
}

// ConsoleProxy says how a reverse proxy reaches the console, which believes it who a user is.
type ConsoleProxy struct {
	// Path of a Unix socket for the proxy alone.
	Socket Path `yaml:"socket,required"`

	// Group that the proxy is in. Default: only root may connect.
	Group string `yaml:"group,omitempty"`

	// The header with the user's name, of 1 to 64 printable characters. The proxy must
	// replace what browsers send in it.
	UserHeader string `yaml:"user_header"`
}

// SetDefaults sets the defaults.
func (p *ConsoleProxy) SetDefaults() { p.UserHeader = "X-Forwarded-User" }

// Log is the log on standard error.
type Log struct {
	// The least severe level that is logged: debug, info, warn or error.
	Level LogLevel `yaml:"level"`

	// text or json.
	Format LogFormat `yaml:"format"`
}

// Learning gives weights to what approximate mode drops by mistake.
type Learning struct {
	// The time after which a packet dropped by mistake counts half: where there is no room for
	// all elements, those with the fewest have no weights.
	HalfLife quantity.Duration `yaml:"half_life"`

	// The maximum number of elements that get weights; 0 learns nothing.
	Elements quantity.Count `yaml:"elements" min:"0" max:"1048576"`
}

// Flood says what is done about floods.
type Flood struct {
	// ask: nothing, and weir flood --apply does it. auto: what is sure is dropped at once, by
	// patterns, on trial first; that takes collateral.
	Apply FloodApply `yaml:"apply"`

	// The time after which a pattern ends by itself, if the flood has not gone on.
	TTL quantity.Duration `yaml:"ttl"`

	// The time for which a pattern only counts what it would drop.
	Trial quantity.Duration `yaml:"trial"`
}

// Notify says who is notified of which events.
type Notify struct {
	// The receivers, by name: letters, digits, "_", "-" and dots. Each has a url, a
	// command or syslog.
	Targets []notify.Target `yaml:"targets,required"`

	// When dropped packets are a surge.
	Surge notify.SurgeSpec `yaml:"surge"`
}

// Fleet makes this host a node of a fleet. Its lists have the names that the hub has for
// them behind "fleet.".
type Fleet struct {
	// File that weir join, or weir hub enroll, has written for this host. It contains secrets: only its
	// owner and group may have access.
	Enroll Path `yaml:"enroll,required"`

	// How long the hub may be silent before that is reported; filtering goes on. Default:
	// as the hub says.
	MaxAge quantity.Duration `yaml:"max_age,omitempty"`

	// The rate at which lists are fetched over a thin link, as in 2Mbit/s or 250kB/s. What
	// is new arrives at once. Default: as the hub says.
	MaxRate quantity.Rate `yaml:"max_rate,omitempty"`
}

// On reports whether the host is in a fleet.
func (f *Fleet) On() bool { return f.Enroll != "" }

// FleetPrefix begins the names of a fleet's lists.
const FleetPrefix = "fleet."

// List is a list of the entries of its sources and of manual entries.
type List struct {
	Name string `yaml:",key"`

	// block: drop the packets that match. allow: pass them, whatever blocks them.
	Action Action `yaml:"action"`

	// The side of incoming packets that addresses and prefixes match: src, dst or both.
	// Flows have both sides. out: the destinations of outgoing packets, on interfaces with
	// egress.
	Direction engine.Direction `yaml:"direction"`

	// A packet that several entries match is counted for the most specific one. If
	// several lists have that entry, it is counted for the list of the highest
	// priority; of equals, for the first.
	Priority int `yaml:"priority,omitempty" min:"-1000" max:"1000"`

	// false: the list is on trial. What its entries match is counted as would-block, and
	// passes. Entries of other lists are enforced all the same.
	Enforce bool `yaml:"enforce"`

	Only `yaml:",inline"`

	// IPv6 addresses that are added by commands, as by fail2ban, and those of CrowdSec block the
	// prefix of this length, too. One that covers an address of this host, what keeps it on the
	// network, an allowed address or a failsafe one is left out.
	Prefix6 int `yaml:"prefix6,omitempty" min:"32" max:"127"`

	// Prefixes that are listed, too, while so many addresses of the list are in them.
	Aggregate Aggregate `yaml:"aggregate,omitempty"`

	// How long an entry is kept after its source drops it. Default: it is removed at
	// once, as are more than 200,000 that leave at the same time. While a source cannot be
	// read, its last contents stay.
	TTL quantity.Duration `yaml:"ttl,omitempty"`

	// Do not start unless each source has been read, now or by an earlier run.
	Required bool `yaml:"required,omitempty"`

	// Leave out what its sources list that would cut off this host: from its own
	// addresses, connected networks, gateways, resolvers, the servers of lists, and users
	// who are logged in.
	AntiLockout bool `yaml:"anti_lockout"`

	// Leave out what its sources list of private, loopback and similar networks, which
	// have no place in the Internet. Default: true of lists with a URL, as all feeds that are
	// named; false of lists of files.
	ExcludePrivate bool `yaml:"exclude_private"`

	// At a hub: only nodes with one of these labels have the list. Default: all nodes.
	Labels []string `yaml:"labels,omitempty"`

	// Where entries come from. A list without sources has manual entries only.
	feed.Spec `yaml:",inline"`
}

// Default returns the defaults: the configuration of an empty file, which needs an
// interface to be valid.
func Default() *Config {
	c := &Config{}
	c.SetDefaults()
	return c
}

// defaultCoverage is the default of max_coverage. The bogons are about 14 % of IPv4; a
// country's addresses can be more than this, and must be confirmed.
const defaultCoverage = 0.25

// SetDefaults sets the defaults of the parts that are always there.
func (c *Config) SetDefaults() {
	c.BitsPerEntry = engine.DefaultBitsPerKey
	c.MaxCoverage = defaultCoverage
	c.TrackDrops, c.Samples = true, true
	c.Keep = true
	c.StateDir = "/var/lib/weir"
	c.Pins = loader.DefaultPins
	c.API.Socket = "/run/weir/weir.sock"
	c.Log.Format = LogText
	c.Flood = Flood{FloodAsk, quantity.Duration(10 * time.Minute), quantity.Duration(2 * time.Second)}
	c.Learning = Learning{HalfLife: quantity.Duration(learn.DefaultHalfLife), Elements: learn.DefaultElements}
}

// SetDefaults sets the defaults.
func (n *Notify) SetDefaults() { n.Surge.SetDefaults() }

// SetDefaults sets the defaults.
func (l *List) SetDefaults() {
	l.Action = Block
	l.Enforce = true
	l.AntiLockout = true
	l.Spec.SetDefaults()
}

// Complete sets the defaults that depend on other fields, where those of their names
// are not given. A feed of a provider has no default action: block and allow are both
// common.
func (l *List) Complete(given func(name string) bool) {
	l.Spec.Complete(given)
	if !given("exclude_private") {
		l.ExcludePrivate = slices.ContainsFunc(l.Sources, func(s feed.Source) bool { return s.URL != "" })
	}
	k, ok := l.FeedName.Known()
	if !ok {
		return
	}
	if k.Use == feed.Provider && !given("action") {
		l.Action = ""
	}
	if k.Use == feed.Destinations && !given("direction") {
		l.Direction = engine.Out
	}
}

// Feed returns the configuration of the list's feed.
func (l List) Feed() feed.Config {
	return feed.Config{Name: l.Name, Spec: l.Spec, Purpose: string(l.Action) + " " + l.Direction.String(), MayBeEmpty: l.Action == Allow}
}

// LeavesOutPrivate reports whether the list leaves out private networks of its sources.
func (l *List) LeavesOutPrivate() bool { return l.ExcludePrivate && l.Action != Allow }

// IsLike reports whether two lists have the same action and direction.
func (l *List) IsLike(other *List) bool {
	return l.Action == other.Action && l.Direction == other.Direction
}

// TooWide returns why the list must not have the entries of a set, because all that they
// cover together is more than a share, 0 for no bound. An allow list may cover all.
func (l List) TooWide(set interface{ TooWide(most float64) error }, most quantity.Share) error {
	if l.Action == Allow || most <= 0 {
		return nil
	}
	if err := set.TooWide(float64(most)); err != nil {
		return fmt.Errorf("list %s: %w", l.Name, err)
	}
	return nil
}
