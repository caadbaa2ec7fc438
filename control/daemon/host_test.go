package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/config"
	"weir/tests/lab"
)

func TestHostWarnings(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"interfaces: [lo, 'nosuch*']\nstate_dir: /var/lib/weir-of-the-test", ""},
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

// A veth that could as well be filtered at TC is pointed out.
func TestSlowVeths(t *testing.T) {
	l := lab.New(t)
	for _, c := range []struct {
		text string
		want bool
	}{
		{"interfaces: [IFACE]", true},
		{"interfaces: ['veth*']", true},
		{"interfaces: [{name: IFACE, hook: tc}]", false},
		{"interfaces: [{name: IFACE, xdp: generic}]", false},
		{"interfaces: [{name: IFACE, police: {rate: 1Mbit/s}}]", false},
		{"interfaces: [{name: IFACE, netns: other}]", false},
		{"interfaces: [IFACE]\ndigest: {rate: 1kpps}", false},
		{"interfaces: [{name: 'v*', hook: tc}, IFACE]", false},
		{"interfaces: [lo]", false},
	} {
		conf, err := config.Parse("weir.yaml", []byte(strings.ReplaceAll(c.text, "IFACE", l.B.Iface)))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		l.B.In(t, func() { got = slowVeths(conf) })
		if (len(got) == 1 && strings.HasSuffix(got[0], ": "+l.B.Iface)) != c.want {
			t.Errorf("%s: %q", c.text, got)
		}
	}
}

// A kernel on which packets may interrupt each other is pointed out.
func TestRealtime(t *testing.T) {
	before := realtime
	defer func() { realtime = before }()
	conf, err := config.Parse("weir.yaml", []byte("interfaces: [lo]"))
	if err != nil {
		t.Fatal(err)
	}
	realtime = filepath.Join(t.TempDir(), "realtime")
	for text, want := range map[string]bool{"": false, "0\n": false, "1\n": true} {
		if text != "" {
			write(t, realtime, text)
		}
		if got := strings.Join(HostWarnings(conf), "\n"); strings.Contains(got, "PREEMPT_RT") != want {
			t.Errorf("%q: %q", text, got)
		}
		if err := os.RemoveAll(realtime); err != nil {
			t.Fatal(err)
		}
	}
}
