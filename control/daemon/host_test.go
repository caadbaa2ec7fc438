package daemon

import (
	"strings"
	"testing"

	"weir/control/config"
)

func TestHostWarnings(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"interfaces: [lo, 'veth*']\nstate_dir: /var/lib/weir-of-the-test", ""},
		{"interfaces: [lo, nosuch0]", "interface nosuch0 is not on this host; the daemon waits for it"},
		{"interfaces: [{name: nosuch0, required: true}]", "interface nosuch0 is not on this host; it is required, and the daemon does not start without it"},
		{"interfaces: [{name: eth0, netns: nosuchns}]", "interface eth0: no such network namespace"},
		{"interfaces: [lo]\napi: {group: nosuchgroup}", "api.group: no group nosuchgroup on this host"},
		{"interfaces: [lo]\nstate_dir: /proc/foo/bar", "state_dir: /proc/foo/bar: /proc takes no files"},
		{"interfaces: [lo]\nlists: {cs: {format: crowdsec, sources: [{url: 'http://127.0.0.1:8080'}]}}", `list cs: CrowdSec wants a key`},
		{"interfaces: [lo]\nlists: {cs: {format: crowdsec, sources: [{url: 'http://127.0.0.1:8080', headers: {X-Api-Key: x}}]}}", ""},
	} {
		conf, err := config.Parse("weir.yaml", []byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		got := HostWarnings(conf)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s\n got %q\nwant %q", c.text, got, c.want)
		}
	}
}
