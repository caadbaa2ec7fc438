package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/tests/bench/measure"
	"weir/tests/must"
)

const docs = "../../docs"

// The page and its figures follow from the report and the template.
func TestPage(t *testing.T) {
	r, err := measure.ReadReport(filepath.Join(docs, directory, reportFile))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no %s: make bench-peers", reportFile)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Judge()
	dir := t.TempDir()
	figures, err := r.Plot(dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := render(&page{r, figures}, filepath.Join(docs, directory, templateFile))
	if err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(docs, pageFile), want)
	for _, f := range figures {
		want := must.Read(t, filepath.Join(dir, f.File))
		same(t, filepath.Join(docs, directory, f.File), want)
	}
}

func same(t *testing.T, file string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(file); err != nil {
		t.Error(err)
	} else if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: go run ./tests/peers", file)
	}
}

// TestTemplate renders the page of a report in which there is little.
func TestTemplate(t *testing.T) {
	r := measure.Report{
		Machine: measure.Machine{CPU: "a processor"},
		Results: []measure.Result{
			{Benchmark: "wire", Contender: "ipset", Set: "random", Entries: 1000, BeyondNS: 50},
			{Benchmark: "options", Contender: "bare", Set: "random", Entries: 1000, NS: 100},
			{Benchmark: "options", Contender: "weir-usual", Set: "random", Entries: 1000, NS: 158},
		},
		Bars: []measure.Bar{{Name: "a promise", Limit: 2, Value: 1, Reached: true}},
	}
	text, err := render(&page{report: &r}, filepath.Join(docs, directory, templateFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a processor", "| a promise | 1 |  | ≤ 2 | reached |", "| random 1k | 50.0 |", "1 of 1 bars are reached, 0 missed, 0 undecided",
		// 14.88 Mpps times 100 ns
		"| weir-usual | 1k | clean | 58 | 10.0 | 1.5 | 3.7 | 6.0 | 14.9 | 0.3 | 0.8 | 1.3 | 3.3 |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(string(text), "no value") {
		t.Error("the template uses a value that is missing")
	}
}
