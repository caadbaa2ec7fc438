package main

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"weir/tests/must"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		args []string
		keys []string
	}{
		{[]string{"--entries", "1M", "--mode", "approx", "--zipf", "1.1", "--flows", "100k", "--hot", "1k"},
			[]string{"entries", "mode", "kernel_bytes", "daemon_bytes", "exact_bytes", "false_drop", "standard", "traffic"}},
		{[]string{"fpr", "--m", "8192", "--n", "1000", "--k", "6"}, []string{"classic", "exact", "bloom1970"}},
		{[]string{"fpr", "--m", "8192", "--n", "1000"}, []string{"classic", "exact", "bloom1970", "k"}},
		{[]string{"fpr", "--n", "1000", "--fpr", "1e-3"}, []string{"m", "k", "exact"}},
		{[]string{"loop", "--bits", "128", "--hops", "16"}, []string{"k", "false_alarm"}},
		{[]string{"counting", "--m", "65536", "--n", "8192"}, []string{"k", "rate", "overflow"}},
		{[]string{"scan", "--pairs", "1M", "--memory", "512KiB", "--scan", "1000"}, []string{"capacity", "windows", "missed", "found_from", "found"}},
		{[]string{"digest", "--packets", "100k"}, []string{"bytes", "lines", "bits", "rate", "standard"}},
		{[]string{"multicast", "--ports", "8", "--groups", "1k"}, []string{"bytes", "lines", "rate"}},
		{[]string{"police", "--flows", "100"}, []string{"levels", "bins", "punished", "suspended"}},
		{[]string{"stable", "--memory", "16KiB", "--gap", "1k", "--shares", "5,1,1,1,1,1,1"}, []string{"memory", "gap", "filters"}},
		{[]string{"sketch", "--flows", "1M", "--total", "10M", "--threshold", "50k"}, []string{"memory", "counters", "room", "heavy", "passing", "excess"}},
		{[]string{"invertible", "--elements", "20k"}, []string{"cells", "bytes", "bytes_per_element", "fails"}},
		{[]string{"summary", "--entries", "100k", "--changes", "1k"}, []string{"m", "k", "rate", "wasted", "owner_bytes", "replica_bytes", "snapshot_bytes", "delta_bytes", "stale"}},
		{[]string{"compress", "--n", "10000", "--sent", "8", "--memory", "14"}, []string{"k", "rate", "sent_bits"}},
	} {
		args := append([]string{"plan"}, c.args...)
		code, out, log := weir(t, "", append(args, "--json")...)
		if code != exitOK || log != "" {
			t.Errorf("%v: exit code %d\n%s", args, code, log)
			continue
		}
		got := map[string]any{}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		for _, k := range c.keys {
			if got[k] == nil {
				t.Errorf("%v: no %q in %s", args, k, out)
			}
		}
		if code, out, _ := weir(t, "", args...); code != exitOK || out == "" {
			t.Errorf("%v: exit code %d\n%s", args, code, out)
		}
	}
}

// The entries of a file are counted, in its format.
func TestPlanFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "feed.csv")
	must.Write(t, file, "a,192.0.2.1\nb,192.0.2.0/31\nc,198.51.100.0-198.51.100.2\nd,2001:db8::/48\n")
	code, out, log := weir(t, "", "plan", "--from", file+",format=csv,column=2", "--json")
	if code != exitOK || !strings.Contains(out, `"entries": 5,`) || log != "" {
		t.Errorf("exit code %d: %s%s", code, out, log)
	}
	for _, args := range [][]string{{"--from", file, "--entries", "1"}, {"--from", file + ",format=cvs"}} {
		if code, _, log := weir(t, "", append([]string{"plan"}, args...)...); code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, code, log)
		}
	}
	if code, _, log := weir(t, "", "plan", "--from", file+".none"); code != exitFailure {
		t.Errorf("no file: exit code %d: %s", code, log)
	}
}

// JSON has the names that scripts rely on, and the figures of the papers.
func TestPlanJSON(t *testing.T) {
	code, out, _ := weir(t, "", "plan", "fpr", "--m", "32", "--n", "8", "--k", "3", "--json")
	var rates map[string]float64
	if err := json.Unmarshal([]byte(out), &rates); code != exitOK || err != nil || len(rates) != 4 || rates["k"] != 3 ||
		math.Abs(rates["exact"]-0.15574079) > 5e-9 || rates["classic"] >= rates["exact"] || rates["bloom1970"] <= rates["exact"] {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	code, out, _ = weir(t, "", "plan", "loop", "--bits", "128", "--hops", "16", "--json")
	var loop map[string]float64
	if err := json.Unmarshal([]byte(out), &loop); code != exitOK || err != nil || len(loop) != 2 ||
		loop["k"] != 7 || math.Abs(loop["false_alarm"]-0.054) > 0.0005 {
		t.Errorf("exit code %d, %v: %s", code, err, out)
	}
	// People read the same figures: 14 bits in memory for each of 10,000, and at most 8 sent.
	if code, out, _ := weir(t, "", "plan", "compress", "--n", "10000", "--sent", "8", "--memory", "14"); code != exitOK || !strings.Contains(out, " 140,000, 79,231 sent\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// A request that makes no sense is a usage error that names the flag; one that
// no filter can meet is a failure.
func TestPlanRefuses(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"plan", exitUsage, "--entries or --from is missing"},
		{"plan --entries many", exitUsage, `invalid number "many": want an integer`},
		{"plan --entries 1M --memory 3parsec", exitUsage, `invalid size "3parsec": want bytes`},
		{"plan --entries 1M --fpr 1e-4 --memory 32MB", exitUsage, "more than one is given"},
		{"plan --entries 1M --mode exact --fpr 1e-4", exitUsage, "exact mode"},
		{"plan --entries 1M --mode fuzzy", exitUsage, `"fuzzy"`},
		{"plan --entries 1M --zipf 1.1", exitUsage, "of no flows"},
		{"plan --entries 20M --mode exact --memory 32MB", exitFailure, "exact mode takes"},
		{"plan --entries 10M --memory 1MB", exitFailure, "less than a bit"},
		{"plan fpr --m 8 --k 1", exitUsage, "--n is missing"},
		{"plan fpr --n 8 --k 1", exitUsage, "--m is missing"},
		{"plan fpr --m 0 --n 1 --k 1", exitUsage, "m=0"},
		{"plan fpr --n 8 --m 9 --fpr 0.1", exitUsage, "--fpr"},
		{"plan fpr --n 8 --fpr 2", exitUsage, "rate 2"},
		{"plan loop --bits 100", exitUsage, "100"},
		{"plan loop --hops 0", exitUsage, "hops"},
		{"plan counting --m 8", exitUsage, "--n is missing"},
		{"plan compress --sent 8", exitUsage, "--n is missing"},
		{"plan compress --n 8 --sent 0", exitUsage, "0 bits"},
		{"plan scan", exitUsage, "--pairs is missing"},
		{"plan digest", exitUsage, "--packets is missing"},
		{"plan digest --packets 1k --fpr 2", exitUsage, "rate 2"},
		{"plan digest --packets 2G --fpr 1e-9", exitFailure, "512 MiB"},
		{"plan multicast --ports 1", exitUsage, "--groups is missing"},
		{"plan multicast --ports 0 --groups 1", exitUsage, "0 ports"},
		{"plan police", exitUsage, "--flows is missing"},
		{"plan police --flows -1", exitUsage, "-1"},
		{"plan scan --pairs 1M --memory 1KB", exitUsage, "16KiB to 1GiB"},
		{"plan scan --pairs 2.14G", exitFailure, "more than 1 GiB"},
		{"plan stable --gap 1", exitUsage, "--memory is missing"},
		{"plan stable --memory 16KiB --gap 1 --algorithm bf", exitUsage, "want one of sbf, ibf-2c, ibf-mc, ibf-h"},
		{"plan stable --memory 16KiB --gap 1 --shares 1,2", exitUsage, "7 levels"},
		{"plan stable --memory 1 --gap 1 --fpr 1e-9", exitFailure, "no filter of 1 bytes"},
		{"plan sketch --flows 1", exitUsage, "--total is missing"},
		{"plan sketch --flows 1 --total 1 --threshold 2", exitUsage, "threshold"},
		{"plan sketch --flows 1G --total 1G --threshold 1", exitFailure, "more than 1 GiB"},
		{"plan invertible", exitUsage, "--elements is missing"},
		{"plan summary --entries 1 --peers 0", exitUsage, "peers"},
		{"plan first-seen", exitUsage, "--flows is missing"},
		{"plan first-seen --flows 1M --memory 1KB", exitUsage, "4KiB to 1GiB"},
	} {
		code, out, log := weir(t, "", strings.Fields(c.line)...)
		if code != c.code || out != "" || !strings.HasPrefix(log, "weir: ") || !strings.Contains(log, c.want) {
			t.Errorf("weir %s: exit code %d, want %d and %q\n%s%s", c.line, code, c.code, c.want, out, log)
		}
	}
}
