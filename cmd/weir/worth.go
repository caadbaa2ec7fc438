package main

import (
	"fmt"
	"io"
	"strings"
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
			recent(uint64(l.Seen)), conversed, ageOf(l.Ages), alsoIn(l))
	}
	t.Flush()
	if !w.Tracked {
		fmt.Fprintln(out, "\nDropped addresses are not known: set track_drops: true.")
		return
	}
	fmt.Fprintf(out, "\nLast hour, alone and seen: by the dropped addresses that are known since %s.\n", relative(&w.Since, now))
}

// ageOf returns the age of entries, of those whose age is known.
func ageOf(a api.EntryAges) string {
	known := a.Day + a.Week + a.Month + a.Older
	if known == 0 {
		return "-"
	}
	// The age that half of them have at most.
	for _, of := range []struct {
		n    int
		text string
	}{{a.Day, "1d or less"}, {a.Day + a.Week, "up to 7d"}, {a.Day + a.Week + a.Month, "up to 30d"}} {
		if 2*of.n >= known {
			return of.text
		}
	}
	return "over 30d"
}

// alsoIn returns which other lists cover most entries of a list.
func alsoIn(l api.ListWorth) string {
	if len(l.Overlaps) == 0 {
		return "-"
	}
	var all []string
	for _, o := range l.Overlaps[:min(len(l.Overlaps), maxOverlaps)] {
		all = append(all, fmt.Sprintf("%s %.0f%%", o.List, 100*float64(o.Entries)/float64(max(1, l.Entries))))
	}
	if more := len(l.Overlaps) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}
