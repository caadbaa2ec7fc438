package main

import (
	"encoding/json"
	"testing"
	"time"

	"weir/control/api"
)

func TestListsWorth(t *testing.T) {
	d := &fakeDaemon{worth: api.ListsWorth{Since: time.Now().Add(-50*time.Minute - time.Second), Tracked: true, Lists: []api.ListWorth{
		{Name: "drop", Action: api.Block, Entries: 1204, Packets: new(uint64(12345)), Months: []api.MonthPackets{{Month: "2026-11", Packets: 3000}, {Month: "2026-10", Packets: 4000}},
			Addresses: 3, AddressPackets: 1500, Alone: 1, AlonePackets: 700, Seen: 2, Collateral: new(3), Ages: api.EntryAges{Day: 1, Week: 9, Unknown: 1000},
			Overlaps: []api.Overlap{{List: "a", Entries: 602}, {List: "b", Entries: 301}, {List: "c", Entries: 3}, {List: "d", Entries: 1}}},
		{Name: "ours", Action: api.Allow, Entries: 2, Ages: api.EntryAges{Older: 2}},
	}}}
	socket := serveDaemon(t, d)
	code, out, log := weir(t, "", "lists", "--worth", "--socket", socket)
	const want = `list  action     entries          month    last hour        alone      seen  conversed  age       also in
drop  block        1,204          7,000        1,500          700         2          3  up to 7d  a 50%, b 25%, c 0%, 1 more
ours  allow            2              -            -            -         -          -  over 30d  -

Last hour, alone and seen: by the dropped addresses that are known since 50m ago.
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	var w api.ListsWorth
	if code, out, log := weir(t, "", "lists", "--worth", "--json", "--socket", socket); code != exitOK || json.Unmarshal([]byte(out), &w) != nil || len(w.Lists) != 2 || w.Lists[0].AlonePackets != 700 || !w.Tracked {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, log := weir(t, "", "lists", "--worth", "--versions", "drop", "--socket", socket); code == exitOK {
		t.Errorf("both flags: exit code %d\n%s%s", code, out, log)
	}
}
