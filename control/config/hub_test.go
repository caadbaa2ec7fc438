package config

import (
	"slices"
	"strings"
	"testing"
)

func TestHub(t *testing.T) {
	h, err := ParseHub("hub.yaml", HubExample)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range h.AllLists() {
		names = append(names, string(l.Action)+" "+l.Name)
	}
	if want := []string{"block drop", "allow ours", "block fleet-block", "allow fleet-allow"}; !slices.Equal(names, want) {
		t.Errorf("lists %q, want %q", names, want)
	}
	const least = "servers: [\"tls://hub:4222\"]\nbroker: {listen: \"127.0.0.1:4222\"}\n"
	if _, err := ParseHub("hub.yaml", []byte(least)); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"":                           "servers is missing",
		"servers: [\"tls://h:1\"]\n": "broker: want listen",
		least + "nodes: 3\n":         "hub.yaml:3:1: nodes: unknown key",
		strings.Replace(least, "tls:", "nats:", 1):                              "servers[0]: \"nats://hub:4222\": want tls://HOST:PORT",
		least + "heartbeat: 1m\n":                                               "max_age: 1m is less than two heartbeats",
		least + "keys: fleet\n":                                                 "keys: ",
		least + "lists: {fleet-block: {action: allow}}\n":                       "lists.fleet-block.action: want block",
		least + "lists: {a: {sources: [{file: /a}], ttl: 2h}}\n":                "lists.a.ttl: ",
		strings.Replace(least, "listen", "replicas: 3, listen", 1):              "broker.replicas: a single server",
		strings.Replace(least, "listen", "servers: [\"tls://a:1\"], listen", 1): "broker.servers: listen",
	} {
		if _, err := ParseHub("hub.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
