package observe

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/history"
	"weir/filter/verdict"
	"weir/tests/rules"
)

// A list is credited for each address that was dropped and that it has, and alone for those that no other
// list would have dropped.
func TestCredit(t *testing.T) {
	p := rules.Read(t)
	flows := make(map[DroppedFlow]DropCount)
	for text, n := range map[string]uint64{"192.0.2.9": 3, "192.0.2.8": 5, "198.51.100.1": 7, "203.0.113.1": 11} {
		flows[DroppedFlow{Remote: netip.MustParseAddr(text), Reason: verdict.Blocked}] = DropCount{Packets: n}
	}
	flows[DroppedFlow{Remote: netip.MustParseAddr("192.0.2.9"), Reason: verdict.Malformed}] = DropCount{Packets: 100}
	lists := make([]api.ListWorth, len(p.Lists))
	for i, l := range p.Lists {
		lists[i].Name = l.Name
	}
	credit(p, lists, flows)
	for _, got := range lists {
		want := map[string]api.ListWorth{
			"a": {Addresses: 3, AddressPackets: 15, Alone: 2, AlonePackets: 12, Seen: 2},
			"b": {Addresses: 1, AddressPackets: 3, Seen: 1},
		}[got.Name]
		if got.Addresses != want.Addresses || got.AddressPackets != want.AddressPackets || got.Alone != want.Alone || got.AlonePackets != want.AlonePackets || got.Seen != want.Seen {
			t.Errorf("%s: %+v, want %+v", got.Name, got, want)
		}
	}
}

// What a list has matched in a month is a sum, and with how many it has conversed in a day is the most.
func TestMonths(t *testing.T) {
	record := func(month time.Month, day, packets, alone, conversed int) history.Record {
		return history.Record{Begin: time.Date(2026, month, day, 0, 0, 0, 0, time.UTC), Lists: []history.List{
			{Name: "a", Count: history.Count{Packets: uint64(packets)}, Alone: uint64(alone), Conversed: conversed},
			{Name: "b", Conversed: day},
		}}
	}
	got := monthsOf([]history.Record{record(9, 30, 1, 2, 4), record(10, 1, 10, 20, 3), record(10, 2, 100, 200, 7), record(10, 31, 1000, 2000, 5)})
	want := map[string][]api.MonthPackets{
		"a": {{Month: "2026-10", Packets: 1110, Alone: 2220, Conversed: 7}, {Month: "2026-09", Packets: 1, Alone: 2, Conversed: 4}},
		"b": {{Month: "2026-10", Conversed: 31}, {Month: "2026-09", Conversed: 30}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
