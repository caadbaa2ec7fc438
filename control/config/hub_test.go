package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/control/fleet/wire"
	"weir/tests/must"
)

func TestHub(t *testing.T) {
	example := must.Read(t, "hub.yaml")
	h, err := ParseHub("hub.yaml", example)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range h.AllLists() {
		names = append(names, string(l.Action)+" "+l.Name)
	}
	if want := []string{"block drop", "block block", "allow allow"}; !slices.Equal(names, want) {
		t.Errorf("lists %q, want %q", names, want)
	}
	const least = "servers: [\"tls://hub:4222\"]\nbroker: {listen: \"127.0.0.1:4222\"}\n"
	for _, text := range []string{least, least + "rollout: {waves: [{for: 1m}]}\n"} {
		if _, err := ParseHub("hub.yaml", []byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"":                           "servers is missing",
		"servers: [\"tls://h:1\"]\n": "broker: want listen",
		least + "nodes: 3\n":         "hub.yaml:3:1: nodes: unknown key",
		strings.Replace(least, "tls:", "nats:", 1):                              "servers[0]: \"nats://hub:4222\": want tls://HOST:PORT",
		least + "heartbeat: 1m\n":                                               "max_age: 1m is less than two heartbeats",
		least + "max_coverage: 0%\n":                                            "max_coverage: no list could have any entry",
		least + "keys: fleet\n":                                                 "keys: ",
		least + "lists: {block: {action: allow}}\n":                             "lists.block.action: want block",
		least + "lists: {a: {sources: [{file: /a}], ttl: 2h}}\n":                "lists.a.ttl: ",
		least + "links: [{labels: [branch], max_rate: 5kpps}]\n":                "links[0].max_rate: 5kpps: want bits or bytes",
		least + "links: [{labels: [Branch], max_rate: 7kbit/s}]\n":              "links[0].max_rate: 7kbit/s: want at least 8kbit/s",
		least + "rollout: {confirm: 0%}\n":                                      "rollout.confirm: 0%: want more than 0%",
		least + "rollout: {waves: [{for: 30s}]}\n":                              "rollout.waves[0].for: 30s is less than max_age, 1m",
		least + "lists: {a: {interfaces: [eth0]}}\n":                            "lists.a.interfaces: each node has interfaces of its own",
		least + "lists: {a: {entries: [\"2001:db8::1\"], prefix6: 64}}\n":       "lists.a.prefix6: nodes do not know which entries of a list commands have added",
		least + "lists: {a: {ports: [tcp/22], protocols: [udp]}}\n":             "tcp/22, but protocols leaves tcp out",
		least + "rollout: {waves: [{mode: monitor}]}\n":                         "rollout.waves[0].mode: unknown mode \"monitor\": want rehearse or enforce",
		least + "rollout: {waves: [{labels: [Paris]}]}\n":                       "rollout.waves[0].labels[0]: label \"Paris\": want",
		least + "rollout: {lists: {block: {}}}\n":                               "rollout.lists.block: want a list that has sources",
		least + "sites: [\"tls://hub:7422\"]\n":                                 "broker.listen_sites: want it and sites",
		least + "join: {url: \"https://hub:4223\"}\n":                           "join.url: want listen, too",
		least + "join: {listen: \":4223\", url: \"https://hub\"}\n":             "join.url: \"https://hub\": want https://HOST:PORT",
		least + "sites: [hub]\n":                                                "sites[0]: \"hub\": want tls://HOST:PORT",
		strings.Replace(least, "listen", "replicas: 3, listen", 1):              "broker.replicas: a single server",
		strings.Replace(least, "listen", "servers: [\"tls://a:1\"], listen", 1): "broker.servers: listen",
	} {
		if _, err := ParseHub("hub.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Lists with sources go by waves, by those of their own if they have any.
func TestRolloutOf(t *testing.T) {
	const text = `servers: ["tls://hub:4222"]
broker: {listen: "127.0.0.1:4222"}
rollout:
  waves: [{labels: [canary], mode: rehearse}, {labels: [canary]}]
  limit: 1%
  lists: {urgent: {waves: []}, own: {waves: [{}], confirm: 50%}}
lists:
  drop: {sources: [{file: /drop}]}
  urgent: {sources: [{file: /urgent}]}
  own: {sources: [{file: /own}]}
  manual: {}
`
	h, err := ParseHub("hub.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]*Rollout)
	for _, l := range h.AllLists() {
		got[l.Name] = h.RolloutOf(l)
	}
	for _, name := range []string{"urgent", "manual", FleetBlock, FleetAllow} {
		if got[name] != nil {
			t.Errorf("%s: %+v, want at once", name, got[name])
		}
	}
	if r := got["drop"]; r == nil || len(r.Waves) != 2 || r.Waves[0].Mode != Rehearse || r.Waves[1].Mode != Enforce || r.Limit != 0.01 || r.Confirm != 0.95 {
		t.Errorf("drop: %+v", r)
	}
	if r := got["own"]; r == nil || len(r.Waves) != 1 || r.Waves[0].Labels != nil || r.Limit != 0.001 || r.Confirm != 0.5 {
		t.Errorf("own: %+v", r)
	}
}

// The nodes refuse a catalog with more lists than they take: so does the hub its configuration.
func TestHubListCount(t *testing.T) {
	text := func(n int) []byte {
		b := []byte("servers: [\"tls://hub:4222\"]\nbroker: {listen: \"127.0.0.1:4222\"}\nlists:\n")
		for i := range n {
			b = fmt.Appendf(b, "  l%d: {}\n", i)
		}
		return b
	}
	if h, err := ParseHub("hub.yaml", text(254)); err != nil || len(h.AllLists()) != wire.MaxLists {
		t.Errorf("254 lists, and block and allow: %v", err)
	}
	_, err := ParseHub("hub.yaml", text(255))
	if want := "hub.yaml:3:1: lists: there are 257 with block and allow: nodes take at most 256; join some: a list may have several sources"; err == nil || err.Error() != want {
		t.Errorf("255 lists, and block and allow: %v, want %q", err, want)
	}
	if _, err := ParseHub("hub.yaml", append(text(254), "  block: {}\n  allow: {action: allow}\n"...)); err != nil {
		t.Errorf("254 lists, with block and allow among them: %v", err)
	}
}
