package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/api"
)

// maxOverlaps bounds the other lists that a line of weir lists --worth names.
const maxOverlaps = 3

func printWorth(out io.Writer, w *api.ListsWorth, now time.Time) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%10s\t%13s\t%11s\t%11s\t%8s\t%9s\t%s\t%s\n"
	fmt.Fprintf(t, row, "list", "action", "entries", "month", "last hour", "alone", "seen", "conversed", "age", "also in")
	for _, l := range w.Lists {
		count := func(n uint64) string {
			if l.Packets == nil {
				return "-"
			}
			return humanize.Comma(int64(n))
		}
		recent := func(n uint64) string {
			if !w.Tracked || l.Action == api.Allow {
				return "-"
			}
			return humanize.Comma(int64(n))
		}
		conversed := "-"
		if l.Collateral != nil {
			conversed = humanize.Comma(int64(*l.Collateral))
		}
		month := uint64(0)
		for _, m := range l.Months {
			month += m.Packets
		}
		fmt.Fprintf(t, row, l.Name, l.Action, humanize.Comma(int64(l.Entries)), count(month), recent(l.AddressPackets), recent(l.AlonePackets),
			recent(uint64(l.Seen)), conversed, l.Ages, l.AlsoIn(maxOverlaps))
	}
	t.Flush()
	if !w.Tracked {
		fmt.Fprintln(out, "\nDropped addresses are not known: set track_drops: true.")
		return
	}
	fmt.Fprintf(out, "\nLast hour, alone and seen: by the dropped addresses that are known since %s.\n", relative(&w.Since, now))
}
