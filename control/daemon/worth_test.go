package daemon

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/tests/lab"
	"weir/tests/wait"
)

// The worth of lists follows from the packets that were sent: addresses in several lists count for none of
// them alone, prefixes cover the addresses of others, and entries that nothing has matched are not seen.
func TestWorth(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	b := feedFile(t, "b.txt", "198.51.100.1\n192.0.2.9\n203.0.113.7\n")
	r.lists(t, feedFile(t, "a.txt", "198.51.100.1\n198.51.100.2\n192.0.2.0/24\n"), b, feedFile(t, "c.txt", "198.51.100.200\n"))
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	if err := d.loop.Do(t.Context(), func() error { return nil }); err != nil { // from now on, history counts
		t.Fatal(err)
	}
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"203.0.113.99"}}); err != nil {
		t.Fatal(err)
	}
	worth := func() (of map[string]api.ListWorth, w api.ListsWorth) {
		t.Helper()
		w, err := d.api.Appraiser.Worth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		of = make(map[string]api.ListWorth)
		for _, l := range w.Lists {
			of[l.Name] = l
		}
		return of, w
	}
	month := func(l api.ListWorth) (n uint64) {
		for _, m := range l.Months {
			n += m.Packets
		}
		return n
	}
	// The tracker of dropped packets does not know all of those that send little.
	sent := uint64(0)
	for deadline := wait.Deadline(); ; {
		sent++
		for source, n := range map[string]int{"198.51.100.1": 5, "198.51.100.2": 7, "192.0.2.9": 3, "203.0.113.7": 2, "203.0.113.200": 11} {
			send(t, l, n, source)
		}
		of, _ := worth()
		if of["a"].Addresses+of["b"].Addresses == 6 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", of)
		}
		time.Sleep(10 * time.Millisecond)
	}
	await(t, "history", 17*sent, func() uint64 {
		of, _ := worth()
		return month(of["a"]) + month(of["b"])
	})
	type figures struct {
		addresses, alone int
		all              uint64
		seen, entries    int
		overlaps         []api.Overlap
	}
	of, w := worth()
	for name, want := range map[string]figures{
		"a":      {3, 1, 12 * sent, 3, 3, []api.Overlap{{List: "b", Entries: 1}}},
		"b":      {3, 1, 5 * sent, 3, 3, []api.Overlap{{List: "a", Entries: 2}}},
		"c":      {0, 0, 0, 0, 1, nil},
		"manual": {0, 0, 0, 0, 1, nil},
	} {
		l := of[name]
		got := figures{l.Addresses, l.Alone, month(l), l.Seen, l.Entries, l.Overlaps}
		if !reflect.DeepEqual(got, want) || *l.Packets != want.all {
			t.Errorf("%s: %+v, want %+v, of %d packets", name, got, want, *l.Packets)
		}
		if some := want.all > 0; some != (l.AlonePackets > 0) || some != (l.AddressPackets > l.AlonePackets) || l.AddressPackets > 30*sent {
			t.Errorf("%s: %d packets of known addresses, %d of its own, of %d rounds", name, l.AddressPackets, l.AlonePackets, sent)
		}
		now := time.Now().Format("2006-01")
		if want.all > 0 && !slices.ContainsFunc(l.Months, func(m api.MonthPackets) bool { return m.Month == now }) {
			t.Errorf("%s: %+v without %s", name, l.Months, now)
		}
	}
	// The history takes it over once, by list and month.
	d.api.Appraiser.Value(t.Context(), time.Now())
	d.api.Appraiser.Value(t.Context(), time.Now())
	h, err := d.observers.history.History(t.Context(), api.HistoryQuestion{Since: time.Hour, Step: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	after, _ := worth()
	for _, name := range []string{"a", "b"} {
		alone, byMonth := uint64(0), uint64(0)
		for _, l := range h.Total.Lists {
			if l.List == name {
				alone += l.Alone
			}
		}
		for _, m := range after[name].Months {
			byMonth += m.Alone
		}
		// The tracker may have read the last packets in between.
		if least, most := of[name].AlonePackets, after[name].AlonePackets; alone < least || alone > most || byMonth != alone {
			t.Errorf("%s: the history has %d packets of it alone, %d by month, want %d to %d", name, alone, byMonth, least, most)
		}
	}
	if !w.Tracked || time.Since(w.Since) > time.Minute {
		t.Errorf("%+v", w)
	}
	if a := of["manual"].Ages; a != (api.EntryAges{Day: 1}) {
		t.Errorf("manual entries: %+v", a)
	}

	write(t, b, "198.51.100.1\n192.0.2.9\n203.0.113.7\n203.0.113.8\n")
	if _, err := d.api.Refresh(t.Context(), "b", false); err != nil {
		t.Fatal(err)
	}
	if of, _ = worth(); of["b"].Ages != (api.EntryAges{Day: 1, Unknown: 3}) || of["b"].Entries != 4 {
		t.Errorf("b after a change: %+v of %d", of["b"].Ages, of["b"].Entries)
	}

	r.change(func(c *config.Config) { c.TrackDrops = false })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, w = worth(); w.Tracked {
		t.Error("addresses are known without track_drops")
	}
}
