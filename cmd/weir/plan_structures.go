package main

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/plan"
	"weir/control/quantity"
)

func newPlanStable() *cobra.Command {
	var r plan.StableRequest
	c := &cobra.Command{
		Use:   "stable --memory SIZE --gap N",
		Short: "Filters that forget: what is remembered, by importance",
		Long: `Plans stable and importance-aware Bloom filters, which detect repetitions in
endless streams in constant memory: cells of --bits bits, of which --k belong to
an item, which sets them, the higher the more important it is; and --p others
sink by one for each item. So old and unimportant items are forgotten.

--gap is the number of items after which a repetition is still to be known. Each
filter is the best of its kind: with at most --fpr false positives, the fewest
false negatives, each of which counts as much as the importance of the item, a
level from 1 to 2^bits - 1. --shares are how many items have each level.`,
		Example: `  weir plan stable --memory 256KiB --gap 50k
  weir plan stable --memory 256KiB --gap 50k --shares 60,20,10,5,3,1,1
  weir plan stable --memory 16KiB --gap 5000 --algorithm ibf-mc --k 5 --p 10 --json`,
		Args: noArgs,
	}
	f := c.Flags()
	var memory quantity.Size
	f.TextVar(&memory, "memory", memory, "`size` of the filter")
	gap := plan.CountFlag(f, "gap", "`number` of items between two occurrences of one")
	algorithms := []string{"sbf", "ibf-2c", "ibf-mc", "ibf-h"}
	f.StringVar(&r.Algorithm, "algorithm", "", "`algorithm`: "+strings.Join(algorithms, ", ")+" (default all)")
	f.IntVar(&r.Bits, "bits", 3, "`bits` of a cell")
	f.IntVar(&r.K, "k", 0, "cells of an item, a `number` (default the best)")
	f.IntVar(&r.P, "p", 0, "cells that sink for an item, a `number` (default the least)")
	f.Float64Var(&r.Rate, "fpr", 0.01, "`rate` of false positives, at most, unless k and p are given")
	f.Float64SliceVar(&r.Shares, "shares", nil, "items of each level, `numbers` in any unit (default equal)")
	f.Lookup("shares").DefValue = "" // pflag would print []
	asJSON := jsonFlag(c)
	choices(c, "algorithm", algorithms...)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "memory", "gap"); err != nil {
			return err
		}
		r.Memory, r.Gap = int(memory), *gap
		s, err := plan.StableFor(r)
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, s, func(row func(string, string, ...any)) {
			row("memory", "%s, %s items between two occurrences", humanize.IBytes(uint64(s.Memory)), humanize.Comma(int64(s.Gap)))
			for _, x := range s.Filters {
				row(x.Algorithm, "%s cells of %d bits, k = %d, p = %d", humanize.Comma(int64(x.Cells)), x.Bits, x.K, x.P)
				row("  false positives", "%.3g", x.FP)
				row("  false negatives", "%.3g, weighted %.3g", x.FN, x.Weighted)
				levels := make([]string, len(x.ByLevel))
				for i, fn := range x.ByLevel {
					levels[i] = fmt.Sprintf("%.3g", fn)
				}
				row("    by level", "%s", strings.Join(levels, " "))
			}
		})
	}
	return c
}

func newPlanInvertible() *cobra.Command {
	c := &cobra.Command{
		Use:   "invertible --elements N",
		Short: "Invertible Bloom lookup table: size for a difference",
		Long: `Prints the table of which a number of elements can be listed: those of a set, or
the difference of two sets, however large these are. Each element is a
64-bit hash.`,
		Example: "  weir plan invertible --elements 20k",
		Args:    noArgs,
	}
	elements := plan.CountFlag(c.Flags(), "elements", "`number` of elements that are to be listed")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "elements"); err != nil {
			return err
		}
		t, err := plan.InvertibleFor(*elements)
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, t, func(row func(string, string, ...any)) {
			row("size", "%s, %.1f bytes an element", humanize.IBytes(uint64(t.Bytes)), t.PerElement)
			row("cells", "%s", humanize.Comma(int64(t.Cells)))
			row("fails", "with a probability of %.3g", t.Fails)
		})
	}
	return c
}

func newPlanSummary() *cobra.Command {
	var r plan.SummaryRequest
	c := &cobra.Command{
		Use:   "summary --entries N",
		Short: "Summary caches: filters of peers' contents, and their updates",
		Long: `Plans filters that show caches what their peers contain, as in Summary Cache
of Fan, Cao, Almeida and Broder: the owner has a counting filter, and sends its
bits, compressed, and later what changed of them. --changes are the entries that
others have replaced since the last update.`,
		Example: `  weir plan summary --entries 100k --bits 8 --changes 1000
  weir plan summary --entries 1M --bits 16 --peers 16 --json`,
		Args: noArgs,
	}
	f := c.Flags()
	entries := plan.CountFlag(f, "entries", "`number` of entries of a cache")
	f.Float64Var(&r.Bits, "bits", 8, "`bits` of the filter an entry")
	f.IntVar(&r.K, "k", 0, "`number` of hash functions (default the best)")
	changes := plan.CountFlag(f, "changes", "`number` of entries that were replaced since the last update")
	f.IntVar(&r.Peers, "peers", 1, "`number` of peers whose filters are asked")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "entries"); err != nil {
			return err
		}
		r.Entries, r.Changes = *entries, *changes
		s, err := plan.SummaryFor(r)
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, s, func(row func(string, string, ...any)) {
			row("filter", "%s bits, k = %d", humanize.Comma(int64(s.M)), s.K)
			row("memory", "%s of the owner, %s of a peer", humanize.IBytes(uint64(s.OwnerBytes)), humanize.IBytes(uint64(s.ReplicaBytes)))
			row("false positives", "%.3g", s.Rate)
			row("  in vain", "%.3g of the requests for what no peer has are sent to one", s.Wasted)
			row("snapshot", "%s", humanize.IBytes(uint64(s.FullBytes)))
			if r.Changes > 0 {
				row("update", "%s", humanize.IBytes(uint64(s.DeltaBytes)))
				row("  before it", "%.3g of the entries are not known to peers", s.Stale)
			}
		})
	}
	return c
}
