package main

import (
	"strings"
	"testing"
)

func TestPolice(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "police", "eth0", "3kpps", "--for", "1h", "--netns", "blue", "--socket", socket)
	if code != exitOK || !strings.HasPrefix(out, "LIMITED: eth0 in namespace blue to 3kpps since 2026-01-02 03:04:05, by ada, until ") ||
		!strings.HasSuffix(out, "), or `weir police eth0 --off --netns blue`\n") || log != "weir: a restart will forget this: no space left\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if c := d.changedPolice; c.Interface != "eth0" || c.Netns != "blue" || c.Rate != "3kpps" || c.For != 3600 || c.Off || c.Force {
		t.Errorf("asked for %+v", c)
	}
	for netns, want := range map[string]string{"": "eth0 is limited as configured\n", "blue": "eth0 is limited as configured, as it was before\n"} {
		code, out, log = weir(t, "", "police", "eth0", "--off", "--netns", netns, "--socket", socket)
		if code != exitOK || log != "" || out != want || !d.changedPolice.Off {
			t.Errorf("exit code %d\n%s%s", code, out, log)
		}
	}
	for _, args := range [][]string{{"police"}, {"police", "eth0"}, {"police", "eth0", "1kpps", "--off"}, {"police", "eth0", "--off", "--for", "1m"}, {"police", "eth0", "1kpps", "2kpps"}} {
		if code, _, _ := weir(t, "", args...); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}
