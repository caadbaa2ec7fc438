package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"weir/tests/lab"
	"weir/tests/must"
)

var update = flag.Bool("update", false, "write the tables of "+page)

// The files that document or use the metrics.
const (
	page      = "../../docs/observability.md"
	dashboard = "../../docs/observability/dashboard.json"
	alerts    = "../../docs/observability/alerts.yaml"
	alertTest = "testdata/alerts_test.yaml"
)

// metric describes an exported metric.
type metric struct {
	kind, help string
	labels     []string
}

func exported(t *testing.T) map[string]metric {
	t.Helper()
	s := fake(whole(t))
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(collector{&s}, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	hub := fakeHub(wholeHub(t))
	ofHub := prometheus.NewPedanticRegistry()
	ofHub.MustRegister(hubCollector{&hub})
	all, err := r.Gather()
	more, bad := ofHub.Gather()
	if err = errors.Join(err, bad); err != nil {
		t.Fatal(err)
	}
	metrics := map[string]metric{}
	for _, f := range append(all, more...) {
		m := metric{kind: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
		for _, l := range f.GetMetric()[0].GetLabel() {
			m.labels = append(m.labels, l.GetName())
		}
		metrics[f.GetName()] = m
		if m.kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				metrics[f.GetName()+suffix] = metric{labels: append(m.labels, "le")}
			}
		}
	}
	return metrics
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b := must.Read(t, file)
	return b
}

// TestTable compares the page's tables with the code.
func TestTable(t *testing.T) {
	compareTable(t, "| metric | type | labels | |\n|---|---|---|---|\n", families)
	compareTable(t, "| metric of a hub | type | labels | |\n|---|---|---|---|\n", hubFamilies)
}

func compareTable(t *testing.T, head string, families []*prometheus.Desc) {
	t.Helper()
	want := head
	metrics := exported(t)
	for _, d := range families { // in their order there
		_, name, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ = strings.Cut(name, `"`)
		m := metrics[name]
		labels := ""
		if len(m.labels) > 0 {
			labels = "`" + strings.Join(m.labels, "`, `") + "`"
		}
		want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, m.kind, labels, m.help)
	}
	text := string(read(t, page))
	at := strings.Index(text, head)
	if at < 0 {
		t.Fatalf("%s has no table with the head\n%s", page, head)
	}
	end := at
	for strings.HasPrefix(text[end:], "|") {
		end += strings.Index(text[end:]+"\n", "\n") + 1
	}
	if *update {
		if err := os.WriteFile(page, []byte(text[:at]+want+text[end:]), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text[at:end] != want {
		t.Errorf("%s does not list what is exported: go test ./control/metrics -run TestTable -update", page)
	}
}

// use is an expression that uses metrics.
type use struct {
	where string
	expr  string // of PromQL
	text  string // with label names in it
}

// panel contains the tested fields of a dashboard's panel.
type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ UID string }
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct{ RefID, Expr, LegendFormat string }
	// Unit is Grafana's name of a unit.
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

// units and types are the ones that the dashboard uses.
var (
	units = []string{"", "short", "pps", "bps", "s", "bytes", "percentunit"}
	types = []string{"row", "stat", "timeseries", "table"}
)

func dashboardUses(t *testing.T) (uses []use, panels []panel) {
	t.Helper()
	var d struct {
		UID           string
		SchemaVersion int
		Panels        []panel
		Annotations   struct {
			List []struct{ Name, Expr, TextFormat string }
		}
		Templating struct {
			List []struct {
				Name, Type string
				Definition string
			}
		}
	}
	if err := json.Unmarshal(read(t, dashboard), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != "weir" || d.SchemaVersion < 39 { // Grafana 11
		t.Errorf("%s: uid %q, schema %d", dashboard, d.UID, d.SchemaVersion)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			uses = append(uses, use{p.Title, target.Expr, target.LegendFormat})
		}
	}
	for _, a := range d.Annotations.List {
		if a.Expr != "" {
			uses = append(uses, use{a.Name, a.Expr, a.TextFormat})
		}
	}
	variable := regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		m := variable.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Fatalf("%s: variable %s: %q has no values of a label", dashboard, v.Name, v.Definition)
		}
		uses = append(uses, use{v.Name, m[1], "{{" + m[2] + "}}"})
	}
	return uses, d.Panels
}

func alertUses(t *testing.T) (uses []use) {
	t.Helper()
	var a struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, alerts), &a); err != nil {
		t.Fatal(err)
	}
	for _, g := range a.Groups {
		for _, r := range g.Rules {
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: no summary, description or severity", r.Alert)
			}
			uses = append(uses, use{r.Alert, r.Expr, r.Annotations["summary"] + r.Annotations["description"]})
		}
	}
	return uses
}

var (
	namePattern   = regexp.MustCompile(`\b((?:weir|process|up)(?:_[a-z_]+|\b))\s*(?:\{([^}]*)\})?`)
	matchPattern  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	groupPattern  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	stringPattern = regexp.MustCompile(`"[^"]*"`)
	inTextPattern = regexp.MustCompile(`(?:\{\{|\$labels\.)([a-z_]+)`)
	metricPattern = regexp.MustCompile(`\bweir_[a-z_]+`)
)

// Metrics and labels that the dashboard and the rules use are exported.
func TestUses(t *testing.T) {
	metrics := exported(t)
	metrics["up"] = metric{}
	known := []string{"job", "instance", "le"}
	for _, m := range metrics {
		known = append(known, m.labels...)
	}
	uses, _ := dashboardUses(t)
	uses = append(uses, alertUses(t)...)
	for _, u := range uses {
		names := namePattern.FindAllStringSubmatch(u.expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: %q asks for no metric", u.where, u.expr)
		}
		for _, n := range names {
			m, ok := metrics[n[1]]
			if !ok {
				t.Errorf("%s: %s is not exported", u.where, n[1])
				continue
			}
			for _, l := range matchPattern.FindAllStringSubmatch(n[2], -1) {
				if !slices.Contains(append(m.labels, known[:3]...), l[1]) {
					t.Errorf("%s: %s has no label %s", u.where, n[1], l[1])
				}
			}
		}
		var labels []string
		for _, g := range groupPattern.FindAllStringSubmatch(stringPattern.ReplaceAllString(u.expr, `""`), -1) {
			labels = append(labels, strings.FieldsFunc(g[1], func(r rune) bool { return r == ',' || r == ' ' })...)
		}
		for _, l := range inTextPattern.FindAllStringSubmatch(u.text, -1) {
			labels = append(labels, l[1])
		}
		for _, l := range labels {
			if !slices.Contains(known, l) {
				t.Errorf("%s: nothing has a label %s", u.where, l)
			}
		}
	}
	// Names in prose and in comments, too.
	for _, file := range []string{page, alerts} {
		for _, name := range metricPattern.FindAllString(string(read(t, file)), -1) {
			if _, ok := metrics[name]; !ok {
				t.Errorf("%s: %s is not exported", file, name)
			}
		}
	}
}

func TestDashboard(t *testing.T) {
	_, panels := dashboardUses(t)
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range panels {
		if p.Title == "" || ids[p.ID] {
			t.Errorf("panel %d, %q: no title, or a number twice", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Datasource.UID != "${datasource}" || len(p.Targets) == 0) {
			t.Errorf("%s: it asks nothing, or not what the user has chosen", p.Title)
		}
		if unit := p.FieldConfig.Defaults.Unit; !slices.Contains(units, unit) || !slices.Contains(types, p.Type) {
			t.Errorf("%s: unit %q, type %q", p.Title, unit, p.Type)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.RefID == "" || refs[target.RefID] {
				t.Errorf("%s: reference %q is not there, or twice", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W*p.GridPos.H == 0 {
			t.Errorf("%s: at %+v", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
}

// Every rule has its place in the test that promtool runs.
func TestAlertsTested(t *testing.T) {
	text := string(read(t, alertTest))
	for _, u := range alertUses(t) {
		if !strings.Contains(text, `alertname="`+u.where+`"`) {
			t.Errorf("%s says nothing of %s", alertTest, u.where)
		}
	}
}

// promtool accepts the metrics, every expression and the rules, and the rules fire
// when they should.
func TestPromtool(t *testing.T) {
	path := lab.Tool(t, "promtool")
	promtool := func(t *testing.T, stdin string, args ...string) {
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", cmd, err, out)
		}
	}
	t.Run("metrics", func(t *testing.T) { promtool(t, scrapeWhole(t), "check", "metrics") })
	t.Run("metrics of a hub", func(t *testing.T) { promtool(t, scrapeHub(t), "check", "metrics") })
	t.Run("rules", func(t *testing.T) { promtool(t, "", "check", "rules", alerts) })
	t.Run("alerts", func(t *testing.T) { promtool(t, "", "test", "rules", alertTest) })
	t.Run("dashboard", func(t *testing.T) {
		uses, _ := dashboardUses(t)
		type rule struct{ Record, Expr string }
		var rules []rule
		for i, u := range uses {
			expr := strings.ReplaceAll(u.expr, "$__rate_interval", "5m")
			rules = append(rules, rule{fmt.Sprintf("dashboard:%d", i), expr})
		}
		type group struct {
			Name  string
			Rules []rule
		}
		var text bytes.Buffer
		if err := yaml.NewEncoder(&text).Encode(map[string][]group{"groups": {{"dashboard", rules}}}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rules.yaml")
		must.Write(t, file, text.Bytes())
		promtool(t, "", "check", "rules", file)
	})
}
