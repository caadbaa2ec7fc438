package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/doctor"
	"weir/tests/must"
)

// A daemon that does not answer is a problem by itself, and none that does not run.
func TestDoctorOfSilentDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "weir.sock")
	examine := func() (code int, got []doctor.Finding, own bool) {
		t.Helper()
		code, out, log := weir(t, "", "doctor", "--iface", "lo", "--json", "--socket", socket)
		var all struct{ Findings []doctor.Finding }
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("exit code %d: %v\n%s%s", code, err, out, log)
		}
		for _, f := range all.Findings {
			if f.Check == "daemon" {
				got = append(got, f)
			}
			own = own || f.Check == "capabilities"
		}
		return code, got, own
	}
	if _, got, own := examine(); len(got) > 0 || !own {
		t.Errorf("without a daemon: %+v; this process was looked at: %t", got, own)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusRequestTimeout) // as a daemon that is too busy
		fmt.Fprint(w, `{"error": "too late"}`)
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	if code, got, own := examine(); code != exitProblem || len(got) != 1 || got[0].Level != doctor.Problem || !strings.Contains(got[0].Text, "the daemon has not answered, at "+socket) || own {
		t.Errorf("exit code %d, %+v; this process was looked at: %t", code, got, own)
	}
	s.Close()
	must.Write(t, socket, "")
	if code, got, _ := examine(); code != exitProblem || len(got) != 1 || !strings.Contains(got[0].Text, "is not a socket") {
		t.Errorf("exit code %d, %+v", code, got)
	}
}

// The state is where the daemon that runs saves it, which may not be that of the service.
// Doctor, check and a start warn of the same.
func TestDoctorAdvises(t *testing.T) {
	for text, want := range map[string][]string{
		"lists: {drop: {entries: [192.0.2.1]}}\n":                                                       {"nothing is failsafe"},
		"lists: {drop: {entries: [192.0.2.1]}}\nfailsafe: {ports: [tcp/22]}\n":                          nil,
		"lists: {drop: {enforce: false, entries: [192.0.2.1]}}\n":                                       nil,
		"monitor: true\nlists: {drop: {entries: [192.0.2.1]}}\ntrackers: [{key: src, action: block}]\n": {"trackers[0]: action block"},
	} {
		conf := file(t, "weir.yaml", "interfaces: [lo]\nstate_dir: \"\"\n"+text)
		_, out, log := weir(t, "", "doctor", "-c", conf, "--socket", filepath.Join(t.TempDir(), "none"))
		_, checked, warned := weir(t, "", "check", conf)
		for _, advice := range []string{"nothing is failsafe", "trackers[0]: action block"} {
			wanted := slices.Contains(want, advice)
			if strings.Contains(out, advice) != wanted || strings.Contains(warned, advice) != wanted {
				t.Errorf("%s: want %q: %t\n%s%s\n%s%s", text, advice, wanted, out, log, checked, warned)
			}
		}
	}
}

func TestDoctorStateDir(t *testing.T) {
	of := func(dir string, running bool) *status {
		return &status{Attachments: []attach.Status{{Running: running, Metadata: attach.Metadata{StateDir: dir}}}}
	}
	unknown := doctor.Subject{StateDir: "/var/lib/weir"}
	found := doctor.Subject{StateDir: "/srv/weir", Config: config.Default()}
	for _, c := range []struct {
		s    *status
		of   doctor.Subject
		want string
	}{
		{&status{}, unknown, "/var/lib/weir"},
		{of("/other", false), unknown, "/var/lib/weir"},
		{of("/other", true), unknown, "/other"},
		{of("", true), unknown, ""},
		{of("/other", true), found, "/other"},
		{of("", true), found, "/srv/weir"},
	} {
		if got := c.s.stateDir(c.of); got != c.want {
			t.Errorf("%+v, %+v: %q, want %q", c.s.Attachments, c.of, got, c.want)
		}
	}
}
