package explain

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/ruleset"
	"weir/control/status"
	"weir/filter/membership"
	"weir/filter/verdict"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func explain(t *testing.T, query string, r ruleset.Rules) *Explanation {
	t.Helper()
	e, err := Explain(query, r, nil)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return e
}

// lines are the numbers of the lines that match.
func lines(matches []Match) []int {
	var n []int
	for _, m := range matches {
		n = append(n, m.Line)
	}
	return n
}

func TestExplain(t *testing.T) {
	block := write(t, "block.txt", strings.Join([]string{
		/* 1 */ "10.0.0.0/8",
		/* 2 */ "10.1.0.0/16",
		/* 3 */ "what is this",
		/* 4 */ "10.1.2.3",
		/* 5 */ "tcp 192.0.2.0/24:* > 198.51.100.7:443",
		/* 6 */ "any 192.0.2.1:* > *:*",
		/* 7 */ "> 203.0.113.9",
		/* 8 */ "2001:db8::-2001:db8::ff",
	}, "\n"))
	allow := write(t, "allow.txt", "10.1.2.0/24\nudp 10.0.0.5:* > *:53\n")
	r := ruleset.Rules{Block: []string{block}, Allow: []string{allow}, MaxBad: 0.5}
	r.FailsafePrefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	for _, c := range []struct {
		query   string
		reasons []string // of the answers
		lines   []int    // that match, of both lists, in the first answer
		depends int      // lines that may matter to it
	}{
		{"10.2.0.1", []string{"blocked", "clean"}, []int{1}, 0},
		{"10.1.9.9", []string{"blocked", "clean"}, []int{2, 1}, 0},
		{"10.1.2.3", []string{"allowed", "clean"}, []int{4, 1, 2, 1}, 0},
		{"10.0.0.5", []string{"blocked", "clean"}, []int{1}, 1},
		{"10.9.0.1", []string{"failsafe", "clean"}, []int{1}, 0},
		{"192.0.2.1", []string{"blocked", "clean"}, []int{6}, 0},
		{"192.0.2.2", []string{"clean", "clean"}, nil, 1},
		{"203.0.113.9", []string{"clean", "blocked"}, nil, 0},
		{"> 203.0.113.9", []string{"blocked"}, []int{7}, 1},
		{"2001:db8::7f", []string{"blocked"}, []int{8}, 0},
		{"2001:db8::100", []string{"clean"}, nil, 0},
		{"tcp 192.0.2.9:1 > 198.51.100.7:443", []string{"blocked"}, []int{5}, 0},
		{"tcp 192.0.2.9:1 > 198.51.100.7:80", []string{"clean"}, nil, 0},
		{"udp 192.0.2.9:1 > 198.51.100.7:443", []string{"clean"}, nil, 0},
		{"tcp 192.0.2.9:* > 198.51.100.7:*", []string{"clean"}, nil, 0}, // a later fragment
		{"icmp 192.0.2.1:* > 198.51.100.7:*", []string{"blocked"}, []int{6}, 0},
		{"udp 10.0.0.5:9 > 192.0.2.7:53", []string{"allowed"}, []int{1, 2}, 0},
		{"udp 192.0.2.1:68 > 203.0.113.9:67", []string{"dhcp"}, []int{6, 7}, 0},
	} {
		e := explain(t, c.query, r)
		var reasons []string
		for _, a := range e.Answers {
			reasons = append(reasons, a.Reason)
		}
		if !slices.Equal(reasons, c.reasons) {
			t.Errorf("%s: reasons %q, want %q", c.query, reasons, c.reasons)
			continue
		}
		got, want := lines(e.Answers[0].Matches), slices.Clone(c.lines)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: lines %v, want %v", c.query, got, want)
		}
		if got := len(e.Answers[0].Depends); got != c.depends {
			t.Errorf("%s: %d lines may matter, want %d: %+v", c.query, got, c.depends, e.Answers[0].Depends)
		}
		if e.Drops() != slices.Contains(reasons, "blocked") {
			t.Errorf("%s: verdict %s", c.query, e.Verdict)
		}
	}
	if e := explain(t, "10.1.9.9", r); !slices.Equal(lines(e.Answers[0].Matches), []int{2, 1}) {
		t.Errorf("the most specific match is not the first: %+v", e.Answers[0].Matches)
	}
}

// An address says nothing of ports, and some of them pass.
func TestFailsafePortsAreNoted(t *testing.T) {
	r := ruleset.Rules{Block: []string{write(t, "block.txt", "10.0.0.1\n")}}
	if e := explain(t, "10.0.0.1", r); len(e.Notes) != 0 {
		t.Errorf("notes %q", e.Notes)
	}
	r.FailsafePorts = []verdict.FailsafePort{{Proto: 6, Port: 22}}
	if e := explain(t, "10.0.0.1", r); len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "tcp/22") {
		t.Errorf("notes %q", e.Notes)
	}
	// A flow is answered for its very ports.
	e := explain(t, "tcp 10.0.0.1:1 > 192.0.2.1:22", r)
	if len(e.Notes) != 0 || e.Answers[0].Reason != "failsafe" {
		t.Errorf("notes %q, %+v", e.Notes, e.Answers)
	}
}

func TestChanged(t *testing.T) {
	file := write(t, "block.txt", "10.0.0.1\n")
	loaded, err := ruleset.Rules{Block: []string{file}}.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := status.Lists(loaded)[0]
	if changed(l) {
		t.Error("changed, though nobody wrote")
	}
	// An older one of another size, and of the same size.
	for _, text := range []string{"10.0.0.1\n10.0.0.2\n", "10.0.0.3\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		old := l.Written.Add(-time.Hour)
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
		}
		if !changed(l) {
			t.Errorf("%q in its place is no change", text)
		}
	}
}

func TestRefusedQueries(t *testing.T) {
	for _, query := range []string{
		"", "what", "192.0.2.0/24", "192.0.2.1-192.0.2.9", "fe80::1%eth0", "192.0.2.1\n192.0.2.2",
		"tcp 192.0.2.1:* > *:443", "any 192.0.2.1:1 > 192.0.2.2:2", "tcp 192.0.2.1:1 > 192.0.2.2:*", "> 192.0.2.0/24",
	} {
		if _, err := Explain(query, ruleset.Rules{}, nil); err == nil {
			t.Errorf("%q was answered", query)
		}
	}
}

// In approximate mode the filter may block what no line lists, and the answer
// says that it does.
func TestFalsePositive(t *testing.T) {
	var text strings.Builder
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		fmt.Fprintf(&text, "10.%d.%d.%d\n", random.IntN(256), random.IntN(256), random.IntN(256))
	}
	r := ruleset.Rules{Block: []string{write(t, "block.txt", text.String())}}
	r.Mode, r.BitsPerKey, r.Direction = membership.Approximate, 1, engine.Source
	found := 0
	for i := range 40 { // at one bit an entry, most are found listed
		e := explain(t, fmt.Sprintf("10.200.%d.1", i), r)
		a := e.Answers[0]
		if a.FalsePositive != (a.Verdict == "drop" && len(a.Matches) == 0) {
			t.Fatalf("%+v", a)
		}
		if a.FalsePositive {
			found++
		}
	}
	if found == 0 {
		t.Error("no false positive at one bit an entry")
	}
}
