package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestCollateral(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d - time.Second) }
	d := &fakeDaemon{collateral: api.Collateral{Recorded: true, Addresses: 9, Room: 1024, Lists: []api.ListCollateral{
		{List: "drop", Addresses: 1203, Day: 2, Latest: []api.Partner{
			{Addr: netip.MustParseAddr("192.0.2.1"), Direction: "in", How: []string{"opened-tcp", "accepted-tcp"}, First: ago(50 * time.Hour), Last: ago(time.Minute)},
			{Addr: netip.MustParseAddr("2001:db8::1"), Direction: "out", How: []string{"opened-tcp"}, First: ago(3 * time.Hour), Last: ago(2 * time.Hour)},
		}},
		{List: "new"},
	}}}
	socket := serveDaemon(t, d)
	for _, c := range []struct{ list, want string }{
		{"", `list   addresses    last 24h  latest
drop       1,203           2  192.0.2.1, 61s ago
new            0           0  -
`},
		{"drop", `address        conversed                 first   last
192.0.2.1      opened-tcp, accepted-tcp  2d ago  61s ago
> 2001:db8::1  opened-tcp                3h ago  2h ago
and 1,201 more
`},
	} {
		args := []string{"collateral", "--socket", socket}
		if c.list != "" {
			args = append(args, c.list)
		}
		if code, out, log := weir(t, "", args...); code != exitOK || log != "" || out != c.want || d.asked != c.list {
			t.Errorf("%v: exit code %d, asked for %q\n%s%s\nwant\n%s", args, code, d.asked, out, log, c.want)
		}
	}
	var a api.Collateral
	if code, out, log := weir(t, "", "collateral", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &a) != nil || a.Lists[0].Latest[0].How[1] != "accepted-tcp" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	d.collateral = api.Collateral{}
	if code, out, log := weir(t, "", "collateral", "--socket", socket); code != exitFailure || out != "" || !strings.Contains(log, "set collateral in weir.yaml") {
		t.Errorf("without the key: exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "collateral", "a", "b", "--socket", socket); code != exitUsage {
		t.Errorf("two lists: exit code %d\n%s", code, log)
	}
}
