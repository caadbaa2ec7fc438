package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/must"
)

// crowdsec is a local API of CrowdSec with files of its own.
type crowdsec struct {
	h            *host
	cscli        string
	config, addr string
	log          locked
}

// locked is a log that is written while it is read.
type locked struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *locked) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.String()
}

// crowdsecTool returns the path of one of its programs: installed, or unpacked by
// crowdsec.bash.
func crowdsecTool(t *testing.T, name string) string {
	t.Helper()
	unpacked, err := filepath.Abs("../../.tools/crowdsec/usr/bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unpacked); err == nil {
		return lab.Tool(t, unpacked)
	}
	return lab.Tool(t, name) // tests/daemon/crowdsec.bash .tools/crowdsec unpacks it
}

func startCrowdSec(t *testing.T, h *host) *crowdsec {
	t.Helper()
	program := crowdsecTool(t, "crowdsec")
	c := &crowdsec{h: h, cscli: crowdsecTool(t, "cscli"), addr: lab.FreeAddress(t)}
	dir := h.path("crowdsec")
	if err := os.MkdirAll(filepath.Join(dir, "hub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"console.yaml": "", "simulation.yaml": "simulation: false\n", "profiles.yaml": "name: none\nfilters: [\"false\"]\n",
		"client.yaml": "url: http://" + c.addr + "\nlogin: test\npassword: test\n", "hub/.index.json": "{}\n",
		"config.yaml": strings.NewReplacer("DIR", dir, "ADDR", c.addr).Replace(`
common: {daemonize: false, log_media: stdout, log_level: info, working_dir: DIR}
config_paths: {config_dir: DIR, data_dir: DIR, simulation_path: DIR/simulation.yaml, hub_dir: DIR/hub, index_path: DIR/hub/.index.json, notification_dir: DIR, plugin_dir: DIR}
crowdsec_service: {acquisition_path: DIR/acquis.yaml}
cscli: {output: human}
db_config: {log_level: info, type: sqlite, db_path: DIR/crowdsec.db, use_wal: true}
api:
  client: {credentials_path: DIR/client.yaml}
  server: {log_level: info, listen_uri: "ADDR", profiles_path: DIR/profiles.yaml, console_path: DIR/console.yaml}
prometheus: {enabled: false}
`),
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	c.config = filepath.Join(dir, "config.yaml")
	c.do("machines", "add", "test", "--password", "test", "-f", filepath.Join(dir, "client.yaml"), "-u", "http://"+c.addr, "--force")
	server := exec.Command(program, "-c", c.config, "-no-cs")
	server.Stdout, server.Stderr = &c.log, &c.log
	if err := start(server, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
		if t.Failed() {
			t.Logf("CrowdSec's log:\n%s", c.log.text())
		}
	})
	h.eventually("CrowdSec's local API", func() bool {
		r, err := http.Get("http://" + c.addr + "/")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	return c
}

// do runs a command of cscli, and returns what it prints. CrowdSec writes the time of
// each pull to its database, and refuses a command that meets it there: such a command
// is run again, at most four times.
func (c *crowdsec) do(args ...string) string {
	c.h.t.Helper()
	for try := 1; ; try++ {
		var errs bytes.Buffer
		cmd := exec.Command(c.cscli, append([]string{"-c", c.config}, args...)...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
		if try == 5 || !strings.Contains(errs.String(), "database is locked") {
			c.h.t.Fatalf("cscli %q: %v\n%s%s", args, err, out, &errs)
		}
	}
}

// The real CrowdSec's decisions are active within an interval, shown with origin,
// scenario and expiry, and end with it; it knows weir as a bouncer with a version.
func TestCrowdSec(t *testing.T) {
	t.Parallel()
	crowdsecTool(t, "cscli")
	h := newHost(t)
	c := startCrowdSec(t, h)
	key := c.do("bouncers", "add", "weir", "-o", "raw")
	h.configure(h.B.Iface, "lists: {crowdsec: {format: crowdsec, interval: 1s, sources: [{url: \"http://%s\", headers: {X-Api-Key: %s}}]}}\n", c.addr, key)
	d := h.start(releases[0])
	h.settled("crowdsec")
	c.do("decisions", "add", "--ip", "192.0.2.1", "--duration", "10m", "--reason", "scans ssh")
	c.do("decisions", "add", "--range", "198.51.100.0/24", "--duration", "1h", "--reason", "crowdsecurity/http-probing")
	c.do("decisions", "add", "--ip", "2001:db8::1", "--duration", "10m", "--type", "captcha")
	h.eventually("both bans are active", func() bool { return h.list("crowdsec").Entries == 2 })
	h.explain("192.0.2.1", true)
	h.explain("198.51.100.7", true)
	h.explain("2001:db8::1", false)

	e, err := h.api.Explain(t.Context(), "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	m := e.Answers[0].Matches[0]
	if m.Reason != "scans ssh" || m.Origin != "cscli" || m.Expires == nil || time.Until(*m.Expires) > 11*time.Minute || time.Until(*m.Expires) < 8*time.Minute {
		t.Errorf("%+v", m)
	}
	if out := h.succeeds("", "explain", "198.51.100.7"); !strings.Contains(out, "crowdsecurity/http-probing (cscli)") || !strings.Contains(out, "expires in 59m") && !strings.Contains(out, "expires in 60m") {
		t.Error(out)
	}
	if out := h.succeeds("", "entries", "crowdsec"); !strings.Contains(out, "198.51.100.0/24") || !strings.Contains(out, "scans ssh") || !strings.Contains(out, "cscli") {
		t.Error(out)
	}
	if out := h.succeeds("", "entries", "crowdsec", "--manual"); strings.Contains(out, "192.0.2.1") {
		t.Error(out)
	}
	if out := h.succeeds("", "entries", "crowdsec", "--expiring", "20m"); !strings.Contains(out, "192.0.2.1") || strings.Contains(out, "198.51.100.0/24") {
		t.Error(out)
	}

	c.do("decisions", "delete", "--ip", "192.0.2.1")
	h.eventually("the ban is lifted", func() bool { return h.list("crowdsec").Entries == 1 })
	h.explain("192.0.2.1", false)
	c.do("decisions", "add", "--ip", "192.0.2.2", "--duration", "15s")
	h.eventually("192.0.2.2 is banned", func() bool { return h.list("crowdsec").Entries == 2 })
	h.eventually("the ban of 192.0.2.2 is over", func() bool { return h.list("crowdsec").Entries == 1 })

	var bouncers []struct{ Name, Type, Version string }
	if err := json.Unmarshal([]byte(c.do("bouncers", "list", "-o", "json")), &bouncers); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(bouncers); got != "[{weir crowdsec-weir-bouncer "+releases[0].version+"}]" {
		t.Errorf("bouncers %s", got)
	}
	if log := c.log.text(); strings.Contains(log, "bad user agent") {
		t.Errorf("CrowdSec's log:\n%s", log)
	}
	d.complain()
}
