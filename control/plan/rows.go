package plan

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// Rows returns the plan for readers.
func (s Sizing) Rows() (rows []Row) {
	row := func(name, format string, args ...any) {
		rows = append(rows, NewRow(name, format, args...))
	}
	row("entries", "%s, %s mode", humanize.Comma(int64(s.Entries)), s.Mode)
	if s.LaneBits > 0 {
		row("quotient table", "%s lines of 64 bytes, %d bits an entry", humanize.Comma(int64(s.Lines)), s.LaneBits)
		row("  spill", "%s buckets of 64 bytes", humanize.Comma(int64(s.Buckets)))
	} else {
		row("cascade", "%s lines of 64 bytes, %.2f bits an entry", humanize.Comma(int64(s.Lines)), s.BitsPerEntry)
		row("bits set", "%d in the first line, %d in others", s.First, s.Rest)
	}
	row("kernel memory", "%s, %.2f bytes an entry", humanize.IBytes(uint64(s.KernelBytes)), float64(s.KernelBytes)/float64(s.Entries))
	if s.DaemonBytes > 0 {
		row("  of the daemon", "%s for changes in place: a counter for each bit", humanize.IBytes(uint64(s.DaemonBytes)))
		row("  exact mode", "%s, %.2f bytes an entry of IPv4, and no false drops", humanize.IBytes(uint64(s.ExactBytes)), float64(s.ExactBytes)/float64(s.Entries))
	}
	row("false drops", "%.3g of unlisted keys", s.FalseDrop)
	row("  standard filter", "%.3g of as many bits with k = %d (classic formula: %.3g)", s.Standard.Exact, s.Standard.K, s.Standard.Classic)
	if s.SecondLine > 0 {
		row("second line", "read for %.3g of unlisted keys", s.SecondLine)
	}
	if t := s.Traffic; t != nil {
		text := fmt.Sprintf("%s flows, Zipf %g", humanize.Comma(int64(t.Flows)), t.Zipf)
		if t.Hot > 0 {
			text += fmt.Sprintf("; the %s hottest have %.1f %% of the packets", humanize.Comma(int64(t.Hot)), 100*t.HotShare)
		}
		row("traffic", "%s", text)
		row("  false drops", "%.3g of unlisted packets", t.Plain)
		if t.Hot > 0 && t.MostBits > 0 {
			row("  with weights", "%.3g, %.1f times fewer, at most %d bits a key", t.Weighted, t.Improvement, t.MostBits)
			row("  same memory", "%.3g without weights", t.SameMemory)
		}
	}
	return rows
}
