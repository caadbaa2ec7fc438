package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestQuantities(t *testing.T) {
	for text, want := range map[string]quantity{"0": 0, "65536": 65536, "10M": 1e7, "1.5k": 1500, "1e6": 1e6} {
		if got, err := parseQuantity(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1.5", "-1", "10 apples", "10MB", "1e300", "NaN", "Inf"} {
		if got, err := parseQuantity(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	for text, want := range map[string]quantity{"32MB": 32e6, "1GiB": 1 << 30, "1000": 1000} {
		if got, err := parseMemory(text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestPlan(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "plan.svg")
	for _, c := range []struct {
		args []string
		keys []string
	}{
		{[]string{"--entries", "1M", "--mode", "approx", "--zipf", "1.1", "--flows", "100k", "--hot", "1k", "--plot", plot},
			[]string{"entries", "mode", "kernel_bytes", "daemon_bytes", "false_drop", "standard", "traffic"}},
		{[]string{"fpr", "--m", "8192", "--n", "1000", "--k", "6"}, []string{"classic", "exact", "bloom1970"}},
		{[]string{"fpr", "--n", "1000", "--fpr", "1e-3"}, []string{"m", "k", "exact"}},
		{[]string{"loop", "--bits", "128", "--hops", "16"}, []string{"k", "false_alarm"}},
		{[]string{"counting", "--m", "65536", "--n", "8192"}, []string{"k", "rate", "overflow"}},
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
	if info, err := os.Stat(plot); err != nil || info.Size() == 0 {
		t.Errorf("plot: %v, %v", info, err)
	}
	if code, _, _ := weir(t, "", "plan"); code != exitUsage {
		t.Errorf("a plan for nothing: exit code %d", code)
	}
	if code, _, _ := weir(t, "", "plan", "fpr", "--m", "0"); code != exitFailure {
		t.Errorf("a filter without bits: exit code %d", code)
	}
}
