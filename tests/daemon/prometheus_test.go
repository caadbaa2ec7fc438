package daemon

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/filter/icarus"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

const observability = "../../docs/observability/"

// Prometheus scrapes a daemon under traffic: every query of the dashboard has
// an answer, and the alert rules fire when they should.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	path := lab.Tool(t, "prometheus")
	h := newHost(t)
	metrics := freeAddress(t)
	// In approximate mode, with sources that fail, a tracker that acts, a guard, a policer,
	// first-seen flows, and all that looks for loops, records and copies packets, no panel has
	// a reason to be empty.
	h.write("weir.yaml", fmt.Appendf(nil, `
interfaces: [{name: %q, netns: %s, police: 100Gbit/s}]
mode: approx
pins: %s
state_dir: %s
api: {socket: %s}
metrics: {listen: %q}
trackers: [{key: src, threshold: 1M/s, action: limit, limit: 1M/s}]
scans: [{key: src}]
first_seen: {key: flow, filter: ibf-mc, importance: [size], window: 1s}
loop: {node: 1, key_file: %s, size: 64, k: 6}
digest: {rate: 100k/s, archive: {size: 10MiB}}
multicast: {interfaces: [gone]}
lists:
  always: {%s}
  absent: {sources: [{file: %s}], interval: 1s, jitter: 0s}
  broken: {sources: [{file: %s}], interval: 1s, jitter: 0s}
`, h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock"), metrics,
		h.write("loop.key", make([]byte, len(icarus.Key{}))), h.feed(20_000),
		h.path("absent.txt"), h.write("broken.txt", []byte("<html>no list</html>\n"))))
	load := h.flood()
	d := h.start(releases[0])
	load.run()
	p := h.startPrometheus(path, metrics)
	inside := h.A.Sender(t)
	marked := h.marked()

	asked := slices.DeleteFunc(questions(t, metrics), func(q question) bool { return strings.Contains(q.expr, "weir_hub_") }) // no hub runs
	for deadline, round := wait.Deadline(), 0; len(asked) > 0; round++ {
		// First what takes long: rates are asked of the last two seconds.
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		// An increase is visible only if Prometheus has scraped before.
		h.mustChange("", false, address(commandBlock, round).String())
		if err := inside.Send(marked); err != nil {
			t.Fatal(err)
		}
		for _, flow := range froms(addresses(cleanBlock, 1000*round, 100)...) { // new ones
			if err := inside.Send(packet.Frame(flow)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * scrapeInterval)
		asked = slices.DeleteFunc(asked, func(q question) bool { return p.answers(q) })
		if time.Now().After(deadline) {
			break
		}
	}
	for _, q := range asked {
		t.Errorf("%s: no answer to %s", q.who, q.expr)
	}
	p.fires("WeirFeedStale", "WeirFeedRefused", "WeirMulticastInterfaceAbsent")
	load.stop() // approximate mode drops some unlisted packets
	d.kill()
	p.fires("WeirDown")
}

// marked is a packet with a loop filter, as another node of the domain sends it.
func (h *host) marked() []byte {
	h.t.Helper()
	other, err := icarus.NewNode(2, 0, icarus.Key{}, icarus.Geometry{Size: 64, K: 6, Confirm: 1})
	if err != nil {
		h.t.Fatal(err)
	}
	f := packet.Frame(from(address(cleanBlock, 0)))
	pkt, outcome := other.Insert(f[14:], 1500)
	if outcome != icarus.Inserted {
		h.t.Fatal(outcome)
	}
	return slices.Concat(h.B.MAC, h.A.MAC, f[12:14], pkt)
}

// freeAddress returns an unused loopback address that no one else is assigned
// before it is used.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 1+rand.N(254), rand.N(256), 1+rand.N(254)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// question is the query of a panel, a variable or an annotation.
type question struct {
	who   string
	expr  string
	label string // that the answer must have
}

// questions are the queries of the dashboard, with its variables set as Grafana sets
// them: to a choice of values, and to four times the scrape interval.
func questions(t *testing.T, instance string) (all []question) {
	t.Helper()
	type target struct{ Expr string }
	var d struct {
		Panels []struct {
			Title   string
			Targets []target
		}
		Annotations struct {
			List []struct{ Name, Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	b, err := os.ReadFile(observability + "dashboard.json")
	if err == nil {
		err = json.Unmarshal(b, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer(
		"$__rate_interval", (4 * scrapeInterval).String(),
		"$instance", strings.ReplaceAll(regexp.QuoteMeta(instance), `\`, `\\`),
		"$interface", ".*",
	)
	ask := func(who, expr, label string) {
		if expr != "" {
			all = append(all, question{who, variables.Replace(expr), label})
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			ask(p.Title, target.Expr, "")
		}
	}
	for _, a := range d.Annotations.List {
		ask(a.Name, a.Expr, "")
	}
	values := regexp.MustCompile(`^label_values\((.*), (.*)\)$`)
	for _, v := range d.Templating.List {
		if m := values.FindStringSubmatch(v.Definition); m != nil {
			ask(v.Name, m[1], m[2])
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d questions: is the dashboard read as it should be?", len(all))
	}
	return all
}

const scrapeInterval = 500 * time.Millisecond

// prom is a process of Prometheus.
type prom struct {
	t   *testing.T
	url string
}

// startPrometheus has it scrape an address as docs/observability.md says, and
// apply the alert rules without waiting as long as they do.
func (h *host) startPrometheus(path, metrics string) *prom {
	h.t.Helper()
	rules := must.Read(h.t, observability+"alerts.yaml")
	rules = regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(rules, nil)
	address := freeAddress(h.t.(*testing.T))
	config := h.write("prometheus.yaml", fmt.Appendf(nil, `
global: {scrape_interval: %[1]v, scrape_timeout: %[1]v, evaluation_interval: %[1]v}
scrape_configs:
  - job_name: weir
    static_configs: [{targets: [%q]}]
rule_files: [%s]
`, scrapeInterval, metrics, h.write("rules.yaml", rules)))
	c := exec.Command(path, "--config.file="+config, "--storage.tsdb.path="+h.path("tsdb"),
		"--web.listen-address="+address, "--log.level=warn")
	var log strings.Builder
	c.Stderr = &log
	if err := start(c, ""); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		c.Process.Kill()
		c.Wait() // it was killed
		if h.t.Failed() {
			h.t.Logf("log of prometheus:\n%s", log.String())
		}
	})
	return &prom{h.t.(*testing.T), "http://" + address + "/api/v1/"}
}

// get queries its API, and reports whether there is an answer: not before it is
// up.
func (p *prom) get(path string, data any) bool {
	p.t.Helper()
	r, err := http.Get(p.url + path)
	if err != nil {
		return false
	}
	defer r.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if r.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %s %s %v", path, r.Status, answer.Error, err)
	}
	return true
}

// answers reports whether there is a series with a number.
func (p *prom) answers(q question) bool {
	p.t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any // a time, and a number as text
		}
	}
	if !p.get("query?query="+url.QueryEscape(q.expr), &data) {
		return false
	}
	for _, r := range data.Result {
		if r.Value[1] != "NaN" && (q.label == "" || r.Metric[q.label] != "") {
			return true
		}
	}
	return false
}

// fires waits until alerts do. No rule may fail.
func (p *prom) fires(alerts ...string) {
	p.t.Helper()
	for deadline := wait.Deadline(); len(alerts) > 0; time.Sleep(scrapeInterval) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, State, Health, LastError string }
			}
		}
		p.get("rules", &data)
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					p.t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.State == "firing" {
					alerts = slices.DeleteFunc(alerts, func(a string) bool { return a == r.Name })
				}
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("not firing: %q of %+v", alerts, data.Groups)
		}
	}
}
