package ruleset

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/filter/key"
	"weir/tests/must"
)

// readText returns the rule set of a configuration, without its state.
func readText(t *testing.T, text string) *Ruleset {
	t.Helper()
	c, err := config.Parse("weir.yaml", []byte("interfaces: [lo]\nstate_dir: \"\"\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open("", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Read(t.Context(), c, Options{Log: log, Journal: j, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sourceKey(text string) key.Key { return key.Source(netip.MustParsePrefix(text)) }

// A rule set has the entries of its lists, without those that cover what is failsafe, and with the prefixes
// that others derive; changes of entries change these, too.
func TestRead(t *testing.T) {
	p := readText(t, `
failsafe: {prefixes: [198.51.100.7/32]}
lists:
  bad: {entries: [198.51.100.0/24, 192.0.2.1, 203.0.113.1, 203.0.113.2], aggregate: {ipv4: 24, at: 3}}
`)
	l := p.List("bad")
	if l == nil || p.Contents(l.SourceNumber).Len() != 3 || l.Left.Entries() != 1 || p.List("others") != nil {
		t.Fatalf("%+v", l)
	}
	if n := p.Contents(l.DerivedNumber).Len(); n != 0 {
		t.Errorf("%d derived prefixes of two addresses", n)
	}
	changes := []engine.Change{{List: l.ManualNumber, Delta: list.Delta{Add: list.SetOf(sourceKey("203.0.113.3/32"))}}}
	all, derived, n, err := p.WithDerived(changes)
	if err != nil || n != 1 || len(all) != 2 || !all[1].Add.Has(sourceKey("203.0.113.0/24")) {
		t.Fatalf("%+v, %d, %v", all, n, err)
	}
	next := p.Copy()
	if next.Rules, _, err = engine.With(p.Rules, all); err != nil {
		t.Fatal(err)
	}
	next.SettleDerived(derived, slog.New(slog.DiscardHandler))
	if p.Entries() != 3 || next.Entries() != 5 {
		t.Errorf("%d entries, and then %d", p.Entries(), next.Entries())
	}
	if _, _, n, err := next.WithDerived(nil); n != 0 || err != nil {
		t.Errorf("%d derived prefixes change again, %v", n, err)
	}
}

// What a required list waits for delays no other list.
func TestWaitOfEach(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	must.Write(t, file, "192.0.2.1\n")
	var asked atomic.Uint32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprintln(w, "192.0.2.2")
	}))
	defer s.Close()
	c, err := config.Parse("weir.yaml", fmt.Appendf(nil, "interfaces: [lo]\nstate_dir: \"\"\n"+
		"lists: {a: {required: true, sources: [{file: %s}]}, b: {sources: [{url: '%s'}]}}\n", file, s.URL))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	j, err := journal.Open("", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []bool{false, true} {
		how := Options{Log: log, Journal: j}
		if !first {
			how.Last = new(Ruleset)
		}
		feeds, err := OpenFeeds(t.Context(), c, how)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := feeds["a"].Status().Entries, feeds["b"].Status().Entries; a != 1 || b != int(asked.Load()) || first != (b == 1) {
			t.Errorf("at the first start %t: %d and %d entries, the server was asked %d times", first, a, b, asked.Load())
		}
	}
}

// A start goes on with what a required list had before its settings changed, where its source cannot be
// read.
func TestRequiredHasFormer(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	path := filepath.Join(dir, "list")
	must.Write(t, path, "a,192.0.2.1\n")
	j, err := journal.Open("", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	read := func(column string, last *Ruleset) (*Ruleset, error) {
		t.Helper()
		c, err := config.Parse("weir.yaml", fmt.Appendf(nil, "interfaces: [lo]\nstate_dir: %s/state\n"+
			"lists: {bad: {required: true, sources: [{file: %s}], format: {kind: csv, column: %s}}}\n", dir, path, column))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Read(t.Context(), c, Options{Log: log, Journal: j, Last: last, Reload: last != nil})
		if err == nil {
			lists.SettleAll(p.Decisions(), log)
		}
		return p, err
	}
	last, err := read("2", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := read("3", last); err != nil {
		t.Fatal(err)
	}
	p, err := read("3", nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Contents(p.List("bad").SourceNumber).Len(); n != 1 {
		t.Errorf("%d entries", n)
	}
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	if _, err := read("3", nil); err == nil {
		t.Error("it starts without entries")
	}
}
