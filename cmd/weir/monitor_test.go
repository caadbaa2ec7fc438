package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestMonitor(t *testing.T) {
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "monitor", "on", "--for", "10m", "--socket", socket)
	if code != exitOK || out != "MONITOR MODE since 2026-01-02 03:04:05, by ada: nothing is dropped until `weir monitor off`\n" ||
		log != "weir: a restart will forget this: no space left\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if c := d.changedMonitor; !*c.On || c.For != 600 {
		t.Errorf("asked for %+v", c)
	}
	code, out, log = weir(t, "", "monitor", "off", "--socket", socket)
	if code != exitOK || log != "" || !strings.HasPrefix(out, "monitor mode is off") || *d.changedMonitor.On {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	for _, args := range [][]string{{"monitor"}, {"monitor", "maybe"}, {"monitor", "off", "--for", "1m"}, {"monitor", "on", "--for", "10"}} {
		if code, _, _ := weir(t, "", args...); code != exitUsage {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

// Without a daemon, packets may be dropped all the same: the error says how to end that.
func TestMonitorWithoutDaemon(t *testing.T) {
	code, _, log := weir(t, "", "monitor", "on", "--socket", filepath.Join(t.TempDir(), "none.sock"))
	if code != exitFailure || !strings.Contains(log, "; `weir detach` lets everything pass without a daemon\n") {
		t.Errorf("exit code %d: %s", code, log)
	}
}

// The status says first that nothing is dropped, who wanted that, and until when.
func TestStatusOverride(t *testing.T) {
	now := time.Now()
	since, until := now.Add(-time.Minute), now.Add(9*time.Minute+30*time.Second)
	var b strings.Builder
	s := status{Daemon: &api.Status{MonitorOverride: &api.MonitorOverride{Since: since, Until: &until, UID: new(uint32(7))}}}
	s.print(&b, false)
	first, _, _ := strings.Cut(b.String(), "\n")
	if want := "MONITOR MODE since " + since.Format(time.DateTime) + ", by uid 7: nothing is dropped until " + until.Format(time.DateTime) + " (in 9m), or `weir monitor off`"; first != want {
		t.Errorf("got  %s\nwant %s", first, want)
	}
}
