package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"weir/control/api"
	"weir/tests/long"
)

// login runs a command of weir as root, in a session in which a user has logged in, as sudo
// does.
func (h *host) login(uid int, args ...string) string {
	h.t.Helper()
	return h.loginAlone(uid, append(args, "--socket", h.path("weir.sock"))...)
}

// loginAlone is login for a command that asks no daemon.
func (h *host) loginAlone(uid int, args ...string) string {
	h.t.Helper()
	c := exec.Command("sh", append([]string{"-c", `echo "$0" > /proc/self/loginuid && exec "$@"`, fmt.Sprint(uid), releases[0].path}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return string(out)
}

// The audit has who had logged in, whatever sudo made of it, also of a change that waited for
// the daemon, and of changes that did not go through the daemon, or were refused; and it can be read
// without a daemon.
func TestAuditSaysWhoDidIt(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	const alice = 54321
	last := func(change string) api.AuditRecord {
		t.Helper()
		out, code := h.command("audit", "--json", "--limit", "200", "--socket", h.path("weir.sock"))
		from := strings.Index(out, "{")
		if code != 0 || from < 0 {
			t.Fatalf("audit: exit code %d, %s", code, out)
		}
		var a api.Audit
		if err := json.Unmarshal([]byte(out[from:]), &a); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, r := range a.Changes {
			if r.Change == change {
				return r
			}
		}
		t.Fatalf("the audit has no %s: %s", change, out)
		return api.AuditRecord{}
	}
	hers := func(r api.AuditRecord) {
		t.Helper()
		if r.Login == nil || *r.Login != alice || r.UID == nil || *r.UID != 0 || r.Command != "weir" || r.PID == 0 || r.Claimed || r.Who() != "uid 54321 as root" {
			t.Errorf("%+v, by %s", r, r.Who())
		}
	}

	d := h.start(releases[0])
	if r := last("start"); r.Reason != "" || r.PID != d.process.Pid || !slices.Contains(r.First, h.attachment().Interface().String()) {
		t.Errorf("%+v", r)
	}
	h.login(alice, "block", "192.0.2.1")
	hers(last("block"))
	if out := h.login(alice, "audit"); !strings.Contains(out, "uid 54321 as root") {
		t.Error(out)
	}
	h.login(alice, "monitor", "on")
	hers(last("monitor on"))
	h.login(alice, "flush", "manual")
	hers(last("flush"))
	h.login(alice, "reload")
	hers(last("reload"))

	// What fails is there, too.
	if out, code := h.command("block", "--socket", h.path("weir.sock"), "--list", "none", "192.0.2.1"); code != 1 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if r := last("block"); !strings.Contains(r.Error, `no such list: "none"`) || r.Changed != 0 || r.First[0] != "192.0.2.1" {
		t.Errorf("%+v", r)
	}
	h.write("weir.yaml", []byte("nonsense: true\n"))
	if out, code := h.command("reload", "--socket", h.path("weir.sock")); code != 1 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if r := last("reload"); r.Error == "" || r.Source != "socket" {
		t.Errorf("%+v", r)
	}
	for range 200 { // which must not push out what was done
		h.change("none", false, "192.0.2.1")
	}
	hers(last("flush"))

	d.kill()
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	hers(last("flush")) // without a daemon
	h.login(alice, "unblock", "192.0.2.1")
	d = h.start(releases[0])
	h.emptied()
	hers(last("unblock"))
	if r := last("start"); r.Reason != "no stop is recorded after the last start: a crash, or a kill" {
		t.Errorf("%+v", r)
	}
	d.stop()
	if r := last("stop"); r.Reason != "the program stays attached" || r.Source != "signal" {
		t.Errorf("%+v", r)
	}
	d = h.start(releases[0])
	if r := last("start"); r.Reason != "" {
		t.Errorf("after a stop: %+v", r)
	}
	iface := h.attachment().Interface().String()
	h.loginAlone(alice, "detach", "--all", "--pins", string(h.pins))
	d.end()
	if r := last("detach"); !slices.Equal(r.First, []string{iface}) {
		t.Errorf("%+v", r)
	}
	hers(last("detach"))
	if r := last("stop"); r.Source != "process" || r.Reason != "nothing is left to filter" {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(h.path("state/audit.log")); err != nil {
		t.Error(err)
	}
}
