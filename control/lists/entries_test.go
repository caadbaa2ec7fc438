package lists

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// Pages of any length have each entry once, in order, and filters leave out what
// they should.
func TestFirstEntries(t *testing.T) {
	j, err := journal.Open("", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	const n = 1000
	var keys []key.Key
	var batch []journal.Change
	for i := range n {
		text := fmt.Sprintf("192.0.%d.%d", i*7919%n/250, i*7919%250)
		if i%3 == 0 {
			text = "> " + text
		}
		if i%5 == 0 {
			text = fmt.Sprintf("2001:db8::%x", i)
		}
		e, err := listfile.ParseEntry(text)
		if err != nil {
			t.Fatal(err)
		}
		k := e.Set()
		for one := range k.All() {
			entry := journal.Entry{List: "manual", Key: one, Added: now}
			if i%2 == 0 {
				entry.Expires = now.Add(time.Duration(i) * time.Minute)
			}
			if i%4 == 1 {
				entry.UID, entry.Reason = api.NoUID, ReasonLeft
			}
			keys, batch = append(keys, one), append(batch, journal.Change{Entry: entry})
		}
	}
	if err := j.Apply(batch); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(keys, key.Key.Compare)
	keys = slices.Compact(keys)
	contents := ManualEntries{Journal: j, Name: "manual", Action: api.Block, Contents: list.SetOf(keys...)}
	for _, c := range []struct {
		asked api.EntriesQuestion
		want  func(journal.Entry) bool
	}{
		{api.EntriesQuestion{}, func(journal.Entry) bool { return true }},
		{api.EntriesQuestion{Expiring: time.Hour}, func(e journal.Entry) bool {
			return !e.Expires.IsZero() && !e.Expires.After(now.Add(time.Hour))
		}},
		{api.EntriesQuestion{Manual: true}, func(e journal.Entry) bool { return e.Reason != ReasonLeft }},
	} {
		var want []key.Key
		for _, k := range keys {
			if e, ok := j.Get("manual", k); ok && c.want(e) {
				want = append(want, k)
			}
		}
		if len(want) == 0 || len(want) == len(keys) && c.asked != (api.EntriesQuestion{}) {
			t.Fatalf("%+v: %d of %d", c.asked, len(want), len(keys))
		}
		for _, limit := range []int{1, 7, 100, 2 * n} {
			var got []key.Key
			for {
				var after *key.Key
				if len(got) > 0 {
					after = &got[len(got)-1]
				}
				page := contents.first(t.Context(), after, c.asked, now, limit)
				for _, e := range page {
					got = append(got, e.Key)
				}
				if len(page) < limit {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v, in pages of %d: got %d, want %d", c.asked, limit, len(got), len(want))
			}
		}
	}
}

func FuzzCursor(f *testing.F) {
	f.Add(pageCursor{"manual", key.Source(netip.MustParsePrefix("192.0.2.1/32"))}.text())
	f.Add("")
	f.Add("AA")
	f.Add("eA")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parsePageCursor(text)
		if err != nil || text == "" {
			return
		}
		if again, err := parsePageCursor(c.text()); err != nil || again != c {
			t.Fatalf("%q: %+v is %+v, %v", text, c, again, err)
		}
	})
}
