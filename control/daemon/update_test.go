package daemon

import (
	"net/netip"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/journal"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// verdictOf returns what becomes of packets from an address.
func verdictOf(t *testing.T, d *Daemon, from string) verdict.Action {
	t.Helper()
	asked, err := engine.ParseQuestion(from)
	if err != nil {
		t.Fatal(err)
	}
	a, err := d.Explain(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	return a[0].Verdict
}

// An expired entry that could not be removed is removed later, also where the
// list's feed has changed meanwhile.
func TestBehind(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	if _, err := d.Change(t.Context(), api.Change{Action: api.Block, List: "feed", Entries: []string{cleanSource}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(t.Context(), func() error { // as expire leaves it where the change fails
		l := d.prepared.list("feed")
		l.behind, d.retry = true, time.Now().Add(time.Hour)
		k := key.Source(netip.PrefixFrom(netip.MustParseAddr(cleanSource), 32))
		return d.journal.Apply([]journal.Change{{Remove: true, Entry: journal.Entry{List: "feed", Key: k}}})
	}); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, cleanSource); got != verdict.Drop {
		t.Fatalf("the entry is gone: %v", got)
	}
	write(t, string(r.c.Lists[0].Sources[0].File), firstSource+"\n"+secondSource+"\n")
	if all, err := d.Refresh(t.Context(), "feed", false); err != nil || len(all) != 1 || all[0].Error != "" {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := d.Do(t.Context(), func() error { return d.catchUpAll() }); err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(t, d.Daemon, cleanSource); got != verdict.Pass {
		t.Errorf("the expired entry is active: %v", got)
	}
	if got := verdictOf(t, d.Daemon, secondSource); got != verdict.Drop {
		t.Errorf("the new entry is not active: %v", got)
	}
}
