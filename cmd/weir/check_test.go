package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	manual "weir/control/journal"
	"weir/control/list/listfile"
)

func TestCheck(t *testing.T) {
	good := file(t, "weir.yaml", "interfaces: [{name: lo, xdp: generic}, 'nosuch*']\nlists: {ours: {action: allow}}\n")
	code, out, log := weir(t, "", "check", good)
	if code != exitOK || log != "" || out != good+": no errors; interfaces: 2, lists: 1, entries: 0, trackers: 0, scans: 0\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	// 600 slices of ten million packets at 0.01 %.
	large := file(t, "large.yaml", "interfaces: [eth0]\ndigest: {rate: 10M/s, false_positive_rate: 0.01%}\n")
	if code, out, _ := weir(t, "", "check", large); code != exitOK || !strings.HasSuffix(out, "; digests: 21 GB of memory for each interface\n") {
		t.Errorf("exit code %d, %s", code, out)
	}
	// What is printed is a configuration, too, and the same.
	code, printed, _ := weir(t, "", "check", "--print", good)
	if code != exitOK || !strings.Contains(printed, "max_coverage: ") || !strings.Contains(printed, "- name: lo\n") {
		t.Errorf("exit code %d\n%s", code, printed)
	}
	if code, again, log := weir(t, "", "check", "--print", file(t, "printed.yaml", printed)); code != exitOK || again != printed {
		t.Errorf("exit code %d\n%s%s", code, again, log)
	}
	code, out, _ = weir(t, "", "check", "--json", good)
	var got struct {
		Findings []struct{ Check, Level string }
		File     string
		Errors   []any
		Warnings []string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || got.File != good || len(got.Findings) == 0 ||
		got.Errors == nil || len(got.Errors) > 0 || got.Warnings == nil || len(got.Warnings) > 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// What cannot be read is an error in JSON, too.
func TestCheckUnreadable(t *testing.T) {
	code, out, log := weir(t, "", "check", "--json", "nosuch.yaml")
	var got struct {
		File   string
		Errors []configError
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitFailure || got.File != "nosuch.yaml" || len(got.Errors) != 1 ||
		!strings.Contains(got.Errors[0].Error, "no such file") || !strings.Contains(log, got.Errors[0].Error) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, log := weir(t, "", "check", "nosuch.yaml"); code != exitFailure || out != "" || strings.Count(log, "\n") != 1 {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

// What the host does not have is a warning.
func TestCheckHost(t *testing.T) {
	bad := file(t, "weir.yaml", "interfaces: [lo, nosuch0]\n")
	if code, out, log := weir(t, "", "check", bad); code != exitOK || !strings.Contains(out, "no errors") ||
		!strings.Contains(log, "warning: interface nosuch0: it is not on this host") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}

func TestCheckTellsAllErrors(t *testing.T) {
	bad := file(t, "weir.yaml", "interfaces: [eth0]\nmod: exact\nlists:\n  drop: {interval: 1}\n")
	code, out, log := weir(t, "", "check", bad)
	if code != exitFailure || out != "" ||
		!containsAll(log, []string{bad + ":2:1: mod: unknown key \"mod\": did you mean mode?", bad + ":4:", "lists.drop.interval", "weir: " + bad + ": errors: 2\n"}) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "check", "--print", bad); code != exitFailure || out != "" {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, log = weir(t, "", "check", "--json", bad)
	var got struct {
		File   string
		Errors []struct {
			Line, Column int
			Path, Error  string
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitFailure || log != "weir: "+bad+": errors: 2\n" {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	if got.File != bad || len(got.Errors) != 2 || got.Errors[0].Line != 2 || got.Errors[0].Path != "mod" || got.Errors[1].Path != "lists.drop.interval" {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"check", bad + "x"}, exitFailure, bad + "x"},
		{[]string{"check"}, exitUsage, "CONFIG is missing"},
		{[]string{"check", "--print", "--json", bad}, exitUsage, "--print"},
	} {
		code, out, log := weir(t, "", c.args...)
		if code != c.code || out != "" || !strings.HasPrefix(log, "weir: ") || !strings.Contains(log, c.want) {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(c.args, " "), code, out, log)
		}
	}
}

// Flags make the configuration that a file would, with the same errors.
func TestCheckFlags(t *testing.T) {
	feed := file(t, "feed.txt", "192.0.2.1\n192.0.2.0/24\nbad\n")
	flags := []string{"--iface", "eth0,wan*", "--netns", "lab", "--block", feed, "--allow", feed, "--max-bad", "50%", "--lenient",
		"--failsafe-port", "22/tcp", "--failsafe", "10.0.0.0/8", "--monitor", "--wide", "--mode", "approx", "--bits-per-entry", "12",
		"--direction", "both", "--malformed", "drop", "--xdp", "generic", "--keep", "--learn", "100", "--metrics", "127.0.0.1:9477",
		"--socket", "", "--pins", "/sys/fs/bpf/x", "--track", "key=src,threshold=50kpps+1%,action=limit,limit=1kpps,burst=64k,duration=1d"}
	code, printed, log := weir(t, "", append([]string{"check", "--print"}, flags...)...)
	if code != exitOK {
		t.Fatalf("exit code %d\n%s", code, log)
	}
	code, again, log := weir(t, "", "check", "--print", file(t, "printed.yaml", printed))
	if code != exitOK || again != printed {
		t.Errorf("exit code %d\n%s\n%s\nwant\n%s", code, log, again, printed)
	}
	code, out, log := weir(t, "", append([]string{"check"}, flags...)...)
	if code != exitOK || !strings.HasPrefix(out, "command line: no errors; interfaces: 2, lists: 2, entries: 4, trackers: 1") ||
		strings.Count(log, "warning: "+feed+":3: ") != 2 {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	for _, c := range []struct{ flag, value, want string }{
		{"--bits-per-entry", "0.5", "bits_per_entry: 0.5 is not between 1 and 256"},
		{"--max-bad", "0%", "bad"},
		{"--block", feed + ",format=csv,column=2", "no column 2"},
		{"--block", feed + ",format=xml", "unknown format"},
		{"--block", feed + "x", "feed.txtx: no such file or directory"},
		{"--iface", "a/b", `"a/b" cannot be an interface`},
		{"--track", "key=src,threshold=1pps,interval=100ms", "threshold"},
	} {
		code, out, log := weir(t, "", append([]string{"check"}, append(flags, c.flag, c.value)...)...)
		if code == exitOK || out != "" || !strings.Contains(log, c.want) {
			t.Errorf("%s %s: exit code %d, want %q\n%s%s", c.flag, c.value, code, c.want, out, log)
		}
	}
}

// A list that has not what its source contains is never called fine.
func TestCheckSources(t *testing.T) {
	refused, absent := file(t, "refused.txt", "0.0.0.0/0\n"), file(t, "x", "")+"absent"
	bad := file(t, "weir.yaml", "interfaces: [lo]\nlists:\n  a: {sources: [{file: "+refused+"}]}\n  b: {sources: [{file: "+absent+"}]}\n  c.d: {sources: [{file: "+absent+"}]}\n")
	code, out, log := weir(t, "", "check", bad)
	if code != exitFailure || out != "" || !containsAll(log, []string{
		"error: " + bad + ":3:3: lists.a: it would cover 100 % of IPv4", "error: " + bad + ":4:3: lists.b: stat " + absent + ": no such file or directory",
		"error: " + bad + ":5:3: lists.\"c.d\": stat " + absent + ": no such file or directory",
		"weir: " + bad + ": sources that could not be read, or are refused: 3\n",
	}) {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, _ := weir(t, "", "check", "--json", bad); code != exitFailure || strings.Count(out, `"error":`) != 3 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if code, out, log := weir(t, "", "check", "--print", bad); code != exitFailure || !strings.Contains(out, "interfaces:") || strings.Count(log, ": lists.") != 3 {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	dir := t.TempDir()
	j, err := manual.Open(filepath.Join(dir, "entries"), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := listfile.ParseEntry("tcp 192.0.2.1:* > 198.51.100.7:443")
	if err != nil {
		t.Fatal(err)
	}
	added := manual.Entry{List: "manual", Key: entries.Flows[0], Added: time.Now(), UID: api.NoUID}
	if err := errors.Join(j.Apply([]manual.Change{{Entry: added}}), j.Close()); err != nil {
		t.Fatal(err)
	}
	own := file(t, "own.yaml", "interfaces: [lo]\nstate_dir: "+dir+"\nlists: {c: {sources: [{file: "+file(t, "one.txt", "192.0.2.9\n")+"}]}}\n")
	if code, out, log := weir(t, "", "check", own); code != exitOK || !strings.Contains(out, "entries: 2 (1 in no source), ") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	url := file(t, "url.yaml", "interfaces: [lo]\nstate_dir: \"\"\nlists: {c: {sources: [{url: 'https://192.0.2.1/c'}]}}\n")
	code, out, log = weir(t, "", "check", url)
	if code != exitOK || !strings.Contains(out, "lists: 1 (1 source not checked), entries: 0") ||
		!strings.Contains(log, "warning: list c: https://192.0.2.1/c: not checked, since nothing of it is saved") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
}
