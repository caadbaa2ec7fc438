package main

import (
	"strings"
	"testing"

	"weir/control/api"
)

func TestNotifyTest(t *testing.T) {
	d := &fakeDaemon{notified: []api.NotifyTested{
		{Target: "pager", To: "https://example.com/…", Delivered: true, Answer: "204 No Content", Seconds: 0.0351},
		{Target: "script", To: "/usr/local/bin/on-weir", Error: "exit status 1: no such host", Seconds: 2, Waiting: 3},
	}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "notify", "test", "--socket", socket)
	want := "pager: delivered to https://example.com/… in 35ms: 204 No Content\n" +
		"script: FAILED: /usr/local/bin/on-weir in 2s: exit status 1: no such host (other events that wait: 3)\n"
	if code != exitFailure || out != want || !strings.Contains(log, "not delivered") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, log := weir(t, "", "notify", "test", "pager", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"delivered": true`) || strings.Contains(out, "script") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, _, log := weir(t, "", "notify", "test", "a", "b", "--socket", socket); code != exitUsage {
		t.Errorf("exit code %d, %s", code, log)
	}
	d.err = api.ErrNoTarget
	if code, _, log := weir(t, "", "notify", "test", "--socket", socket); code != exitFailure || !strings.Contains(log, "no such target") {
		t.Errorf("exit code %d, %s", code, log)
	}
}
