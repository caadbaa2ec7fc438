package config

import (
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"weir/control/fleet/enrollment"
	"weir/control/quantity"
)

// Hub is the configuration of the hub of a fleet.
type Hub struct {
	// Directory of the fleet's keys, which weir hub init has made. Only the hub's user
	// may read it.
	Keys Path `yaml:"keys"`

	// Directory of the state: the versions of lists, manual entries, contents of feeds,
	// and the broker's stream.
	StateDir Path `yaml:"state_dir"`

	// URLs at which nodes reach the broker, tls://HOST:PORT, for their enrollment files
	// and the broker's certificate.
	Servers []string `yaml:"servers,required"`

	// URLs at which the servers of sites reach the broker, tls://HOST:PORT, for the files
	// of sites and the broker's certificate.
	Sites []string `yaml:"sites,omitempty"`

	// The NATS servers that nodes connect to.
	Broker Broker `yaml:"broker"`

	// Where hosts join by a token, without a certificate: weir join.
	Join HubJoin `yaml:"join,omitempty"`

	// For how long the certificate of a node is valid. The node renews it when a third of that is left.
	Certificates quantity.Duration `yaml:"certificates"`

	// How often nodes are assured that they are up to date.
	Heartbeat quantity.Duration `yaml:"heartbeat"`

	// The time without that after which a node reports that its lists are stale. It goes
	// on filtering. The hub calls a node silent that has not reported for as long, and at least
	// for 20s: nodes report each 10s.
	MaxAge quantity.Duration `yaml:"max_age"`

	// How commands reach the hub.
	API HubAPI `yaml:"api"`

	// Metrics for Prometheus.
	Metrics Metrics `yaml:"metrics"`

	// The console, a page for browsers: weir fleet console prints its URL.
	Console Console `yaml:"console,omitempty"`

	// The log, on standard error.
	Log Log `yaml:"log"`

	// How changes of lists reach the nodes: some first, then all. Manual entries always
	// reach all nodes at once.
	Rollout Rollouts `yaml:"rollout,omitempty"`

	// Thin links: the rates at which nodes fetch lists.
	Links []Link `yaml:"links,omitempty"`

	// The share of IPv4 or of IPv6 above which a block list's new contents are refused: its
	// feed is probably broken.
	MaxCoverage quantity.Share `yaml:"max_coverage"`

	// The lists, by name, as in weir.yaml. Lists block and allow are always
	// there, for manual entries.
	Lists []List `yaml:"lists,omitempty"`
}

// Link limits the connection between nodes and hub.
type Link struct {
	// The labels of the nodes, one of which a node must have.
	Labels []string `yaml:"labels,required"`

	// The rate at which each of them fetches lists, as in 2Mbit/s or 250kB/s. What is new
	// arrives at once.
	MaxRate quantity.Rate `yaml:"max_rate,required"`
}

// Broker says which servers nodes connect to: one inside the hub, or others.
type Broker struct {
	// Address and port where the hub's own server listens.
	Listen Address `yaml:"listen,omitempty"`

	// Address and port where it listens for the servers of sites.
	ListenSites Address `yaml:"listen_sites,omitempty"`

	// Whether nodes begin with TLS, before that server says anything: accept, where they
	// may, or require. Nodes that are enrolled while one of them is set do.
	TLSFirst TLSFirst `yaml:"tls_first,omitempty"`

	// Instead of it, the URLs of a NATS cluster with JetStream that trusts the fleet's
	// operator: tls://HOST:PORT.
	Servers []string `yaml:"servers,omitempty"`

	// Copies of the stream in a cluster.
	Replicas int `yaml:"replicas" min:"1" max:"5"`
}

// HubJoin says where hosts join by a token.
type HubJoin struct {
	// Address and port where the hub listens for them. The default is nowhere.
	Listen Address `yaml:"listen,omitempty"`

	// The URL at which they reach it, https://HOST:PORT. The default has the host of the first of servers,
	// and the port of listen.
	URL string `yaml:"url,omitempty"`
}

func (j HubJoin) check(errs *quantity.FieldErrors) {
	if j.URL == "" {
		return
	}
	at, err := enrollment.JoinURL(j.URL)
	switch {
	case j.Listen == "":
		errs.Failf("join.url", "want listen, too: the hub listens nowhere")
	case err != nil || at != strings.TrimSuffix(j.URL, "/"): // it adds what is missing
		errs.Failf("join.url", "%q: want https://HOST:PORT", j.URL)
	}
}

// JoinURL returns the URL at which hosts reach the hub to join, "" if they cannot.
func (h *Hub) JoinURL() string {
	if h.Join.Listen == "" || h.Join.URL != "" || len(h.Servers) == 0 {
		return h.Join.URL
	}
	_, port, _ := net.SplitHostPort(string(h.Join.Listen))
	host, err := enrollment.ServerHost(h.Servers[0])
	if err != nil {
		return ""
	}
	return "https://" + net.JoinHostPort(host, port)
}

// HubAPI says how commands reach the hub.
type HubAPI struct {
	// Path of the Unix socket.
	Socket Path `yaml:"socket"`

	// Group whose members may use the socket, in addition to root.
	Group string `yaml:"group,omitempty"`
}

// Lists of manual entries that every hub has.
const (
	FleetBlock = "block"
	FleetAllow = "allow"
)

// MaxFleetLists bounds the lists of a hub. Nodes refuse a catalog of more: it is wire.MaxLists.
const MaxFleetLists = 256

// DefaultHub returns the defaults.
func DefaultHub() *Hub {
	h := &Hub{}
	h.SetDefaults()
	return h
}

// SetDefaults sets the defaults of the parts that are always there.
func (h *Hub) SetDefaults() {
	h.Keys, h.StateDir = "/etc/weir-hub/keys", "/var/lib/weir-hub"
	h.Heartbeat, h.MaxAge = quantity.Duration(10*time.Second), quantity.Duration(time.Minute)
	h.API.Socket = "/run/weir-hub/hub.sock"
	h.Log.Format = LogText
	h.Broker.Replicas = 1
	h.Certificates = quantity.Duration(90 * 24 * time.Hour)
	h.MaxCoverage = defaultCoverage
	h.Rollout.SetDefaults()
}

// LoadHub reads and validates the configuration of a hub. The error is of type
// [Errors], unless the file cannot be read.
func LoadHub(path string) (*Hub, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return ParseHub(path, text)
}

// HubReader reads the configuration of a hub, each time anew.
type HubReader interface{ Read() (*Hub, error) }

// HubFile is the path of a hub's configuration. It is a [HubReader].
type HubFile string

// Read is [LoadHub].
func (f HubFile) Read() (*Hub, error) { return LoadHub(string(f)) }

// ParseHub is LoadHub for the text of a file.
func ParseHub(name string, text []byte) (*Hub, error) {
	return read(name, text, DefaultHub(), (*Hub).check)
}

// AllLists returns the lists, with those that every hub has.
func (h *Hub) AllLists() []List { return FleetLists.With(h.Lists) }

// fixed are the keys that change with a restart only: the broker, its clients and the state
// go by them.
var fixed = []string{"keys", "state_dir", "servers", "sites", "broker", "join", "api", "console"}

// Fixed returns those of the differences between two configurations that a running hub
// cannot take in.
func Fixed(differences []string) (all []string) {
	for _, d := range differences {
		if key, _, _ := strings.Cut(d, ":"); slices.ContainsFunc(fixed, func(f string) bool { return key == f || strings.HasPrefix(key, f+".") }) {
			all = append(all, d)
		}
	}
	return all
}

func (h *Hub) check() quantity.FieldErrors {
	var errs quantity.FieldErrors
	checkRanges(&errs, "", reflect.ValueOf(h).Elem())
	for field, dir := range map[string]Path{"keys": h.Keys, "state_dir": h.StateDir} {
		if !filepath.IsAbs(string(dir)) {
			errs.Failf(field, "%q: want an absolute path", dir)
		}
	}
	if len(h.Servers) == 0 {
		errs.Failf("servers", "no URL at which nodes reach the broker")
	}
	checkServers(&errs, "servers", h.Servers)
	checkServers(&errs, "broker.servers", h.Broker.Servers)
	checkServers(&errs, "sites", h.Sites)
	switch {
	case h.Broker.Listen == "" && len(h.Broker.Servers) == 0:
		errs.Failf("broker", "want listen, for a server inside the hub, or servers")
	case h.Broker.Listen != "" && len(h.Broker.Servers) > 0:
		errs.Failf("broker.servers", "listen makes the hub a server of its own: want one of them")
	case h.Broker.TLSFirst != "" && h.Broker.Listen == "":
		errs.Failf("broker.tls_first", "the servers of the cluster say so themselves")
	case h.Broker.ListenSites != "" && h.Broker.Listen == "":
		errs.Failf("broker.listen_sites", "the servers of the cluster listen for sites")
	case h.Broker.Listen != "" && (h.Broker.ListenSites == "") != (len(h.Sites) == 0):
		errs.Failf("broker.listen_sites", "want it and sites, or neither")
	case h.Broker.Listen != "" && h.Broker.Replicas > 1:
		errs.Failf("broker.replicas", "a single server has one copy")
	}
	h.Join.check(&errs)
	quantity.Between(&errs, "certificates", h.Certificates, quantity.Duration(time.Hour), quantity.Duration(5*365*24*time.Hour))
	quantity.Between(&errs, "heartbeat", h.Heartbeat, quantity.Duration(time.Second), quantity.Duration(time.Hour))
	if h.MaxAge < 2*h.Heartbeat {
		errs.Failf("max_age", "%v is less than two heartbeats of %v: one that is late would make every node stale", h.MaxAge, h.Heartbeat)
	}
	quantity.Between(&errs, "max_age", h.MaxAge, 0, quantity.Duration(24*time.Hour))
	checkCoverage(&errs, h.MaxCoverage)
	errs.Add("console", h.Console.check(h.API.Socket).Err())
	errs = append(errs, h.Rollout.check(h)...)
	for i, l := range h.Links {
		at := fmt.Sprintf("links[%d]", i)
		checkLabels(&errs, Join(at, "labels"), l.Labels)
		checkMaxRate(&errs, Join(at, "max_rate"), l.MaxRate)
	}
	checkRuleCount(&errs, h.Lists)
	if n := len(h.AllLists()); n > MaxFleetLists {
		errs.Failf("lists", "there are %d with %s and %s: nodes take at most %d; join some: a list may have several sources", n, FleetBlock, FleetAllow, MaxFleetLists)
	}
	for _, l := range h.Lists {
		path := Join("lists", l.Name)
		errs.Add(path, l.check().Err())
		l.checkAtHub(&errs, path)
		if l.TTL > 0 {
			errs.Failf(path+".ttl", "a hub removes what a feed drops at once")
		}
		FleetLists.check(&errs, l)
	}
	return errs
}

func checkServers(errs *quantity.FieldErrors, path string, servers []string) {
	quantity.Unique(errs, path, len(servers), func(i int) any { return servers[i] })
	for i, s := range servers {
		if _, err := enrollment.ServerHost(s); err != nil {
			errs.Failf(fmt.Sprintf("%s[%d]", path, i), "%v", err)
		}
	}
}
