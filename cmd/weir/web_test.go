package main

import (
	"fmt"
	"strings"
	"testing"

	"weir/control/api"
)

func TestConsole(t *testing.T) {
	t.Setenv("SSH_CONNECTION", "192.0.2.9 50000 192.0.2.1 22")
	d := &fakeDaemon{}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "console", "--socket", socket)
	url, rest, _ := strings.Cut(out, "\n")
	if code != exitOK || log != "" || url != "http://127.0.0.1:9479/open/x" || rest != "It opens a session that may change entries, once, and expires in 5m.\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, out, _ = weir(t, "", "console", "--read-only", "--socket", socket)
	if code != exitOK || !strings.Contains(out, "may only read") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if o := d.opened; len(o) != 2 || o[0].ReadOnly || !o[1].ReadOnly || o[0].SSH != "192.0.2.9 50000 192.0.2.1 22" {
		t.Errorf("asked for %+v", o)
	}
	if code, out, _ = weir(t, "", "console", "--json", "--socket", socket); code != exitOK || !strings.Contains(out, `"url": "http://127.0.0.1:9479/open/x"`) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, out, _ = weir(t, "", "console", "--end", "--socket", socket); code != exitOK || out != "ended: 2 sessions\n" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, _, _ = weir(t, "", "console", "--end", "--read-only", "--socket", socket); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	d.err = fmt.Errorf("%w: set console.listen", api.ErrNoConsole)
	if code, _, log = weir(t, "", "console", "--socket", socket); code != exitFailure || log != "weir: there is no console: set console.listen\n" {
		t.Errorf("exit code %d\n%s", code, log)
	}
}
