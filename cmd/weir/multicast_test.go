package main

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestMulticastChanges(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	for _, c := range []struct {
		args []string
		want api.MulticastChange
		out  string
	}{
		{
			[]string{"add", "--iface", "eth1", "239.1.2.3", "ff0e::1"},
			api.MulticastChange{Interface: "eth1", Groups: []string{"239.1.2.3", "ff0e::1"}},
			"forwarded to eth1: 1; already: 1\n",
		},
		{
			[]string{"remove", "239.1.2.3", "--iface", "eth1"},
			api.MulticastChange{Remove: true, Interface: "eth1", Groups: []string{"239.1.2.3"}},
			"no longer forwarded to eth1: 1\n",
		},
	} {
		code, out, log := weir(t, "", append(append([]string{"multicast"}, c.args...), "--socket", socket)...)
		if code != exitOK || log != "" || out != c.out {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
		c.want.UID = uint32(os.Getuid())
		if !reflect.DeepEqual(d.changedMulticast, c.want) {
			t.Errorf("%v: asked for %+v, want %+v", c.args, d.changedMulticast, c.want)
		}
	}
	d.err = &api.BadRequest{Err: errors.New("no such interface")}
	for _, c := range []struct {
		args []string
		code int
		log  string
	}{
		{[]string{"add", "--iface", "eth9", "239.1.2.3"}, exitFailure, "no such interface"},
		{[]string{"add", "239.1.2.3"}, exitUsage, "--iface"},
		{[]string{"add", "--iface", "eth1"}, exitUsage, "GROUP is missing"},
		{[]string{"add", "--iface", "eth1", "192.0.2.1"}, exitUsage, `"192.0.2.1": not a multicast group`},
		{[]string{"remove", "--iface", "eth1", "224.0.0.5"}, exitUsage, "no router forwards"},
		{[]string{"remove", "--iface", "eth1", "ff02::5"}, exitUsage, "no router forwards"},
	} {
		code, out, log := weir(t, "", append(append([]string{"multicast"}, c.args...), "--socket", socket)...)
		if code != c.code || out != "" || !strings.Contains(log, c.log) {
			t.Errorf("%v: exit code %d, want %d and %q\n%s%s", c.args, code, c.code, c.log, out, log)
		}
	}
}

func TestMulticastList(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	d := &fakeDaemon{multicast: api.Multicast{
		Groups: 2, MaxGroups: 1024, Planned: 8.4e-7, Copied: 12345, Left: 6,
		Interfaces: []api.MulticastInterface{
			{Name: "eth1", Configured: true, Present: true, FalsePositiveRate: 1.5e-19, Sent: 12000, Dropped: 345, Groups: []api.MulticastGroup{
				{Group: "239.1.2.3", Configured: true}, {Group: "ff0e::1", Added: &now},
			}},
			{Name: "eth2", Configured: true, Groups: []api.MulticastGroup{}},
			{Name: "eth3", Groups: []api.MulticastGroup{{Group: "239.9.9.9", Added: &now}}},
		},
	}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "multicast", "list", "--socket", socket)
	want := `groups             2 of 1,024 at most, at which filters err at a rate of 8.4e-07
copied             12,345 packets
left to the stack  6 packets, to groups that no interface wants

interface    groups           sent        dropped      rate
eth1              2         12,000            345   1.5e-19
eth2              0              0              0   0.0e+00  NOT THERE
eth3              1              0              0   0.0e+00  NOT CONFIGURED

eth1
  239.1.2.3        configured
  ff0e::1          manual, 2026-01-02 03:04:05

eth3
  239.9.9.9        manual, 2026-01-02 03:04:05
`
	var got strings.Builder
	for line := range strings.Lines(out) {
		got.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	if code != exitOK || log != "" || got.String() != want {
		t.Errorf("exit code %d, got\n%s%swant\n%s", code, got.String(), log, want)
	}
	code, out, log = weir(t, "", "multicast", "list", "--json", "--iface", "eth2", "--socket", socket)
	var m api.Multicast
	if err := json.Unmarshal([]byte(out), &m); err != nil || code != exitOK || log != "" {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	if !reflect.DeepEqual(m.Interfaces, d.multicast.Interfaces[1:2]) || m.Copied != 12345 {
		t.Errorf("got %+v", m)
	}
	if code, _, log := weir(t, "", "multicast", "list", "--iface", "eth4", "--socket", socket); code != exitFailure || !strings.Contains(log, "eth4") {
		t.Errorf("exit code %d\n%s", code, log)
	}
	d.err = errors.New("this daemon forwards no multicast")
	if code, _, log := weir(t, "", "multicast", "list", "--socket", socket); code != exitFailure || !strings.Contains(log, "forwards no multicast") {
		t.Errorf("exit code %d\n%s", code, log)
	}
}
