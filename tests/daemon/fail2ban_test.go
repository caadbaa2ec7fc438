package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/wait"
)

// fail2ban is a server of Fail2Ban with files of its own, and the action that is
// shipped with weir.
type fail2ban struct {
	h    *host
	dir  string
	seen string // the file whose lines make it ban

	server *exec.Cmd
}

// startFail2ban starts a server with a jail called weir that bans for a time.
func startFail2ban(h *host, bantime string) *fail2ban {
	h.t.Helper()
	f := &fail2ban{h: h, dir: h.path("fail2ban"), seen: h.path("seen.log")}
	action := must.Read(h.t, "../../cmd/weir/packaging/fail2ban.py")
	for name, text := range map[string]string{
		"fail2ban.conf": fmt.Sprintf("[Definition]\nloglevel = INFO\nlogtarget = %s\nsyslogsocket = auto\nsocket = %s\npidfile = %s\ndbfile = %s\ndbpurgeage = 1d\n",
			h.path("fail2ban.log"), h.path("fail2ban.sock"), h.path("fail2ban.pid"), h.path("fail2ban.sqlite")),
		"filter.d/weir.conf": "[Definition]\nfailregex = ^ refused <ADDR>$\n",
		"action.d/weir.py":   string(action),
		"jail.conf": fmt.Sprintf("[weir]\nenabled = true\nbackend = polling\nlogpath = %s\nfilter = weir\nusedns = no\nmaxretry = 1\nfindtime = 10m\nbantime = %s\n"+
			"action = weir.py[weir=%s, socket=%s, list=jail]\n", f.seen, bantime, releases[0].path, h.path("weir.sock")),
	} {
		path := filepath.Join(f.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			h.t.Fatal(err)
		}
		must.Write(h.t, path, text)
	}
	h.write("seen.log", nil)
	h.t.Cleanup(func() {
		f.stop()
		if log, err := os.ReadFile(h.path("fail2ban.log")); h.t.Failed() {
			h.t.Logf("%.10000s\n%v", log, err)
		}
	})
	f.start()
	return f
}

// start starts the server, and waits until its jail has started.
func (f *fail2ban) start() {
	f.h.t.Helper()
	started := func() int {
		log, _ := os.ReadFile(f.h.path("fail2ban.log")) // to ask for the jail too early is an error there
		return strings.Count(string(log), "Jail 'weir' started")
	}
	before := started()
	f.server = exec.Command("fail2ban-server", append(f.files(), "-f", "start")...)
	if err := start(f.server, ""); err != nil {
		f.h.t.Fatal(err)
	}
	f.h.eventually("Fail2Ban's jail", func() bool { return started() > before })
}

// stop stops the server.
func (f *fail2ban) stop() {
	f.server.Process.Signal(syscall.SIGTERM)
	f.server.Wait()
}

func (f *fail2ban) files() []string {
	return []string{"-c", f.dir, "-s", f.h.path("fail2ban.sock"), "-p", f.h.path("fail2ban.pid")}
}

// refuse writes a line that makes it ban an address.
func (f *fail2ban) refuse(address string) {
	f.h.t.Helper()
	to, err := os.OpenFile(f.seen, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		f.h.t.Fatal(err)
	}
	defer to.Close()
	if _, err := fmt.Fprintf(to, "%s refused %s\n", time.Now().Format("2006-01-02 15:04:05"), address); err != nil {
		f.h.t.Fatal(err)
	}
}

// do runs a command of its client.
func (f *fail2ban) do(args ...string) {
	f.h.t.Helper()
	if out, err := exec.Command("fail2ban-client", append(f.files(), args...)...).CombinedOutput(); err != nil {
		f.h.t.Fatalf("fail2ban-client %q: %v\n%s", args, err, out)
	}
}

// eventually waits until something holds.
func (h *host) eventually(what string, holds func() bool) {
	h.t.Helper()
	wait.For(h.t, what, holds)
}

// entry returns the manual entry of a list for an address, nil for none.
func (h *host) entry(list, text string) *api.Entry {
	h.t.Helper()
	page, err := h.api.Entries(h.t.Context(), api.EntriesQuestion{List: list, Limit: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range page.Entries {
		if e.Entry == text {
			return &e
		}
	}
	return nil
}

// The action for Fail2Ban bans with the jail's name and the ban's time, accepts a
// second ban, lifts a ban, and never lifts what another list blocks.
func TestFail2ban(t *testing.T) {
	t.Parallel()
	lab.Tool(t, "fail2ban-server")
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	h.start(releases[0])
	f := startFail2ban(h, "10m")

	f.refuse("192.0.2.1")
	h.eventually("192.0.2.1 is banned", func() bool { return h.entry("jail", "192.0.2.1") != nil })
	h.explain("192.0.2.1", true)
	e := h.entry("jail", "192.0.2.1")
	if e.Expires == nil || e.Expires.Sub(e.Added).Round(time.Second) != 10*time.Minute || e.Reason != "fail2ban weir, failures: 1" {
		t.Errorf("%+v", e)
	}
	f.refuse("2001:db8::1")
	h.eventually("2001:db8::1 is banned", func() bool { return h.entry("jail", "2001:db8::1") != nil })

	// Unblocking by hand does not keep Fail2Ban from banning again.
	h.succeeds("", "unblock", "--list", "jail", "192.0.2.1")
	f.do("set", "weir", "unbanip", "192.0.2.1")
	f.do("set", "weir", "banip", "192.0.2.1")
	h.eventually("192.0.2.1 is banned again", func() bool { return h.entry("jail", "192.0.2.1") != nil })
	h.succeeds("", "block", "192.0.2.1")
	f.do("set", "weir", "unbanip", "192.0.2.1")
	h.eventually("the ban is lifted", func() bool { return h.entry("jail", "192.0.2.1") == nil })
	h.explain("192.0.2.1", true) // as it is in list manual
	h.succeeds("", "block", "--list", "jail", "--ttl", "1h", "192.0.2.9")
	f.do("set", "weir", "banip", "192.0.2.9")
	h.eventually("an entry takes the time of the ban", func() bool {
		e := h.entry("jail", "192.0.2.9")
		return e != nil && strings.HasPrefix(e.Reason, "fail2ban")
	})

	f.do("set", "weir", "bantime", "-1")
	f.do("set", "weir", "banip", "192.0.2.8")
	h.eventually("192.0.2.8 is banned for good", func() bool { e := h.entry("jail", "192.0.2.8"); return e != nil && e.Expires == nil })
	f.healthy()
}

// Bans stay while Fail2Ban restarts, and are renewed by it; a reload keeps them, and unban --all
// lifts those of the jail alone.
func TestFail2banRestarts(t *testing.T) {
	t.Parallel()
	lab.Tool(t, "fail2ban-server")
	bans := long.Or(300, 2_000)
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	h.start(releases[0])
	f := startFail2ban(h, "1h")
	h.succeeds("", "block", "--list", "jail", "198.18.0.1")
	began := time.Now()
	all := lines(addresses(commandBlock, 0, bans))
	for some := range slices.Chunk(all, 1000) {
		f.do(append([]string{"set", "weir", "banip"}, some...)...)
	}
	h.eventually("all are banned", func() bool { return h.list("jail").Manual == bans+1 })
	t.Logf("%d bans in %v", bans, time.Since(began))
	before := h.entry("jail", all[0])

	f.do("reload")
	began = time.Now()
	f.stop()
	t.Logf("Fail2Ban stopped in %v", time.Since(began))
	if n := h.list("jail").Manual; n != bans+1 {
		t.Errorf("after the stop, there are %d entries", n)
	}
	h.explain(all[bans-1], true)
	began = time.Now()
	f.start()
	h.eventually("all bans are restored", func() bool {
		log, _ := os.ReadFile(h.path("fail2ban.log"))
		return strings.Count(string(log), "Restore Ban") >= bans
	})
	t.Logf("%d bans restored in %v", bans, time.Since(began))
	h.eventually("the last one is renewed", func() bool { e := h.entry("jail", all[0]); return e != nil && !e.Added.Equal(before.Added) })
	if e := h.entry("jail", all[0]); e.Expires == nil || e.Expires.Sub(*before.Expires).Abs() > 5*time.Second {
		t.Errorf("restored until %v, want %v", e.Expires, before.Expires)
	}
	if n := h.list("jail").Manual; n != bans+1 {
		t.Errorf("after the start, there are %d entries", n)
	}
	f.do("unban", "--all")
	h.eventually("all bans are lifted", func() bool { return h.list("jail").Manual == 1 })
	f.healthy()
}

// healthy checks that Fail2Ban has logged no errors.
func (f *fail2ban) healthy() {
	f.h.t.Helper()
	if log, err := os.ReadFile(f.h.path("fail2ban.log")); err != nil || strings.Contains(string(log), "ERROR") {
		f.h.t.Errorf("Fail2Ban's log has errors: %v", err)
	}
}

// Bans while the daemon is restarted, by a signal or by kill -9, are all enforced.
func TestFail2banDuringRestarts(t *testing.T) {
	t.Parallel()
	lab.Tool(t, "fail2ban-server")
	random := seed.New(t)
	restarts, bans := long.Or(2, 4), long.Or(20, 30) // bans of each restart
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}, always: {%s}}\n", h.feed(long.Or(1000, 1_000_000)))
	d := h.start(releases[0])
	f := startFail2ban(h, "1h")
	for i := range restarts {
		client := exec.Command("fail2ban-client", slices.Concat(f.files(), []string{"set", "weir", "banip"}, lines(addresses(commandBlock, i*bans, bans)))...)
		if err := start(client, ""); err != nil {
			t.Fatal(err)
		}
		h.eventually("the bans begin", func() bool { return h.list("jail").Manual > i*bans })
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		if i%2 == 0 {
			d.kill()
		} else {
			d.stop()
		}
		time.Sleep(time.Duration(random.Int64N(int64(500 * time.Millisecond))))
		d = h.start(releases[0])
		if err := client.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	h.eventually("all bans are enforced", func() bool { return h.list("jail").Manual == restarts*bans })
	for i := range restarts * bans {
		h.explain(address(commandBlock, i).String(), true)
	}
	audit := must.Read(t, h.path("state/audit.log"))
	waited := strings.Count(string(audit), `"given":`)
	t.Logf("%d bans during %d restarts, %d of which waited for the daemon", restarts*bans, restarts, waited)
	if waited == 0 {
		t.Error("no ban came while no daemon ran: this test proves nothing")
	}
	f.healthy()
}
