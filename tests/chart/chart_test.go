// Package chart tests the Helm chart by Helm's own engine and the types of Kubernetes' API. It is a
// module of its own, since these need more modules than weir; tests/packaging runs it.
package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	root = "../.."
	dir  = root + "/cmd/weir/packaging/chart"
)

var kubernetes = &chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}

func TestLint(t *testing.T) {
	for _, m := range lint.AllWithKubeVersion(dir, nil, "weir", kubernetes).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// rendered are the objects of a chart, by kind and name.
type rendered struct {
	configs map[string]core.ConfigMap
	pods    *apps.DaemonSet
	service *core.Service
	monitor *monitoring.ServiceMonitor
	rules   *monitoring.PrometheusRule
}

// render returns what an installation with these values applies. Every field of it must be one of
// the API's.
func render(t *testing.T, release, values string) (*rendered, error) {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	set, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *kubernetes
	all, err := chartutil.ToRenderValues(c, set, chartutil.ReleaseOptions{Name: release, Namespace: "weir", IsInstall: true}, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	r := &rendered{configs: make(map[string]core.ConfigMap)}
	for name, text := range files {
		if strings.HasSuffix(name, ".txt") || strings.TrimSpace(text) == "" {
			continue
		}
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		decode := func(to any) {
			t.Helper()
			if err := yaml.UnmarshalStrict([]byte(text), to); err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
			}
		}
		switch kind.Kind {
		case "ConfigMap":
			var c core.ConfigMap
			decode(&c)
			r.configs[c.Name] = c
		case "DaemonSet":
			r.pods = new(apps.DaemonSet)
			decode(r.pods)
		case "Service":
			r.service = new(core.Service)
			decode(r.service)
		case "ServiceMonitor":
			r.monitor = new(monitoring.ServiceMonitor)
			decode(r.monitor)
		case "PrometheusRule":
			r.rules = new(monitoring.PrometheusRule)
			decode(r.rules)
		default:
			t.Errorf("%s: no test of the kind %q", name, kind.Kind)
		}
	}
	return r, nil
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keep writes a configuration for tests/packaging, which checks it as weir does.
func keep(t *testing.T, name, config string) {
	t.Helper()
	if to := os.Getenv("WEIR_RENDERED"); to != "" {
		if err := os.WriteFile(filepath.Join(to, name), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// As installed, a pod has what docs/containers.md runs the image with, and no more.
func TestPrivileges(t *testing.T) {
	r, err := render(t, "weir", "")
	if err != nil {
		t.Fatal(err)
	}
	keep(t, "default.yaml", r.configs["weir"].Data["weir.yaml"])
	if r.monitor != nil || r.rules != nil || len(r.configs) != 1 {
		t.Error("the monitoring is there unless it is switched off")
	}
	doc := read(t, "docs/containers.md")
	documented := func(pattern string) []string {
		var all []string
		run := doc[strings.Index(doc, "podman run --detach"):]
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(run[:strings.Index(run, "\n    podman exec")], -1) {
			all = append(all, m[1])
		}
		return all
	}
	pod := r.pods.Spec.Template.Spec
	if !pod.HostNetwork || pod.HostPID || pod.HostIPC || len(pod.Containers) != 1 {
		t.Fatalf("%+v", pod)
	}
	c := pod.Containers[0]
	s := c.SecurityContext
	var added []string
	for _, capability := range s.Capabilities.Add {
		added = append(added, string(capability))
	}
	if want := strings.Split(documented(`--cap-add (\S+)`)[0], ","); !slices.Equal(added, want) || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("capabilities %q, documented are %q", added, want)
	}
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || (s.SeccompProfile.Type == core.SeccompProfileTypeUnconfined) != (len(documented(`(seccomp=unconfined)`)) > 0) {
		t.Errorf("%+v", s)
	}
	var mounts []string
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("no volume %s", m.Name)
		}
		if (m.MountPath == "/etc/weir") != m.ReadOnly {
			t.Errorf("%s: read-only is %v", m.MountPath, m.ReadOnly)
		}
		mounts = append(mounts, m.MountPath)
	}
	// podman makes /run for a container that is read-only.
	want := append(documented(`--volume \S+?:(/[^:\s]+)`), "/run/weir")
	slices.Sort(want)
	slices.Sort(mounts)
	if !slices.Equal(mounts, want) {
		t.Errorf("mounts %q, documented are %q", mounts, want)
	}
	if len(pod.Tolerations) != 1 || pod.Tolerations[0].Operator != core.TolerationOpExists || pod.Tolerations[0].Key != "" {
		t.Errorf("nodes with taints are not filtered: %+v", pod.Tolerations)
	}
	for key, value := range r.pods.Spec.Selector.MatchLabels {
		if r.pods.Spec.Template.Labels[key] != value || r.service.Spec.Selector[key] != value {
			t.Errorf("no pod has the label %s: %s", key, value)
		}
	}
}

// With everything switched on, the objects agree with each other, and with what they are made of.
func TestMonitoring(t *testing.T) {
	const values = `
image: {repository: registry.example.net/weir, tag: 1.2.3}
config:
  interfaces: ["en*", {name: "lxc*", hook: tc}]
  monitor: false
  failsafe: {ports: [tcp/22], prefixes: [10.0.0.0/8]}
  lists: {own: {sources: [{file: /etc/weir/own.txt}]}}
files: {own.txt: "203.0.113.0/24\n# {{ .Values.image }}\n"}
metrics: {port: 9999}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
rules: {enabled: true}
dashboard: {enabled: true}
seccomp: RuntimeDefault
capabilities: [BPF, NET_ADMIN, PERFMON, SYS_ADMIN]
podAnnotations: {a: b}
imagePullSecrets: [{name: secret}]
`
	r, err := render(t, "edge", values)
	if err != nil {
		t.Fatal(err)
	}
	const name = "edge-weir"
	config := r.configs[name].Data["weir.yaml"]
	keep(t, "monitoring.yaml", config)
	if !strings.Contains(config, "listen: :9999") || !strings.Contains(config, "monitor: false") || r.configs[name].Data["own.txt"] != "203.0.113.0/24\n# {{ .Values.image }}\n" {
		t.Errorf("%+v", r.configs[name].Data)
	}
	if c := r.pods.Spec.Template.Spec.Containers[0]; c.Image != "registry.example.net/weir:1.2.3" || c.Ports[0].ContainerPort != 9999 {
		t.Errorf("%+v", c)
	}
	if r.service.Spec.Ports[0].Port != 9999 || r.service.Spec.ClusterIP != "None" {
		t.Errorf("%+v", r.service.Spec)
	}
	// The rules are about the job "weir".
	if m := r.monitor; r.service.Labels[m.Spec.JobLabel] != "weir" || m.Labels["release"] != "prometheus" || m.Spec.Endpoints[0].Port != r.service.Spec.Ports[0].Name {
		t.Errorf("%+v", m.Spec)
	}
	for key, value := range r.monitor.Spec.Selector.MatchLabels {
		if r.service.Labels[key] != value {
			t.Errorf("the service has no label %s: %s", key, value)
		}
	}
	var rules monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict([]byte(read(t, "docs/observability/alerts.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	want, _ := yaml.Marshal(rules)
	if got, _ := yaml.Marshal(r.rules.Spec); len(rules.Groups) == 0 || string(got) != string(want) {
		t.Error("the rules are not those of docs/observability/alerts.yaml")
	}
	if got := r.configs[name+"-dashboard"].Data["weir.json"]; strings.TrimSpace(got) != strings.TrimSpace(read(t, "docs/observability/dashboard.json")) {
		t.Error("the dashboard is not docs/observability/dashboard.json")
	}

	again, err := render(t, "edge", strings.Replace(values, "203.0.113.0/24", "203.0.113.0/25", 1))
	if err != nil {
		t.Fatal(err)
	}
	const sum = "checksum/config"
	if a, b := r.pods.Spec.Template.Annotations[sum], again.pods.Spec.Template.Annotations[sum]; a == "" || a == b {
		t.Error("a changed list does not replace the pods")
	}
}

// Values that are wrong are refused.
func TestValues(t *testing.T) {
	for values, want := range map[string]string{
		"confg: {}":                  "confg",
		"config: {interfaces: null}": "interfaces",
		"files: {weir.yaml: x}":      "weir.yaml",
		"files: {a/b: x}":            "a/b",
		"stateDir: state":            "stateDir",
		"seccomp: none":              "seccomp",
		"metrics: {port: 70000}":     "port",
		"metrics: {port: 0}\nserviceMonitor: {enabled: true}": "takes metrics.port",
	} {
		if _, err := render(t, "weir", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
	// The example of the documentation.
	_, example, _ := strings.Cut(read(t, "docs/containers.md"), "files beside it:\n\n")
	example, _, _ = strings.Cut(example, "\n\n")
	shown, err := render(t, "weir", strings.ReplaceAll("\n"+example, "\n    ", "\n"))
	if err != nil || !strings.Contains(shown.configs["weir"].Data["own.txt"], "203.0.113.0/24") {
		t.Fatalf("%v\n%s", err, example)
	}
	keep(t, "example.yaml", shown.configs["weir"].Data["weir.yaml"])

	_, example, _ = strings.Cut(read(t, "docs/hosts/kubernetes.md"), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	if shown, err = render(t, "weir", example); err != nil {
		t.Fatalf("%v\n%s", err, example)
	}
	keep(t, "hosts.yaml", shown.configs["weir"].Data["weir.yaml"])

	r, err := render(t, "weir", "metrics: {port: 0}")
	if err != nil {
		t.Fatal(err)
	}
	keep(t, "without.yaml", r.configs["weir"].Data["weir.yaml"])
	if r.service != nil || len(r.pods.Spec.Template.Spec.Containers[0].Ports) > 0 || strings.Contains(r.configs["weir"].Data["weir.yaml"], "metrics") {
		t.Error("metrics without a port")
	}
}
