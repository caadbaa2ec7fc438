package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

func newWeights() *cobra.Command {
	c := &cobra.Command{
		Use:   "weights",
		Short: "Show the weights of hot elements, and their effect",
		Long: `Shows the unlisted elements of which packets were dropped by mistake, in
approximate mode. More bits of the filter are tested for them since (k_e), so
that they pass.

Above them are the shares of the unlisted packets that are dropped: counted
since the filter was built, with a 95 % interval, counted as if there were no
weights, predicted with these bits, and predicted with the bits that all others
have. Networks of which little is listed and that send much may have more bits
than others. Saved and dropped packets are those since the daemon began.`,
		Example: `  weir weights
  weir weights --limit 10
  weir weights --json | jq '.spared_packets, .dropped_packets'`,
		Args: noArgs,
	}
	f := c.Flags()
	limit := f.Int("limit", 50, "`number` of elements to show, those with the most dropped packets; 0: all")
	all := 0
	return question[*api.Weights]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.Weights, error) {
			if *limit < 0 {
				return nil, usageError{fmt.Errorf("--limit %d: want a number of elements, or 0 for all", *limit)}
			}
			w, err := of.Weights(c.Context())
			if err != nil {
				return nil, err
			}
			all = len(w.Elements)
			slices.SortStableFunc(w.Elements, func(a, b api.Weight) int { return cmp.Compare(b.Dropped, a.Dropped) })
			if *limit > 0 && (!wantsJSON(c) || c.Flags().Changed("limit")) {
				w.Elements = w.Elements[:min(*limit, all)]
			}
			return w, nil
		},
		text: func(c *cobra.Command, w *api.Weights) { printWeights(c.OutOrStdout(), w, all) },
	}.complete(c)
}

// bitsOfAll says how many bits elements without weights have.
func bitsOfAll(w *api.Weights) string {
	if n := len(w.Networks); n > 0 && w.Networks[0].K < w.Networks[n-1].K {
		return fmt.Sprintf("%d to %d bits by network", w.Networks[0].K, w.Networks[n-1].K)
	}
	return fmt.Sprintf("%d bits for all", w.Base)
}

func printWeights(out io.Writer, w *api.Weights, all int) {
	printRows(out, func(row func(name, format string, args ...any)) {
		if w.Rate != nil {
			row("counted", "%.3g of %s unlisted packets were dropped by mistake, %.3g to %.3g",
				*w.Rate, humanize.Comma(int64(w.Packets)), *w.Low, *w.High)
			if w.Without != nil {
				row("  without", "%.3g, had there been no weights", *w.Without)
			}
		} else {
			row("counted", "nothing yet")
		}
		row("predicted", "%.3g of unlisted packets", w.Predicted)
		without := fmt.Sprintf("%.3g with %s", w.Uniform, bitsOfAll(w))
		if w.Predicted > 0 {
			without += fmt.Sprintf(", %.1f times as many", w.Uniform/w.Predicted)
		}
		row("uniform", "%s", without)
		if len(w.Networks) > 0 {
			row("  equal", "%.3g with the same number of bits for all networks, in the same memory", w.Equal)
		}
		if r := w.Reverted; r != nil {
			row("reverted", "%s", r)
		}
		row("saved", "%s unlisted packets from being dropped", humanize.Comma(int64(w.Spared)))
		row("dropped", "%s unlisted packets", humanize.Comma(int64(w.Dropped)))
		if w.Refused > 0 {
			row("  no room", "%s of them, of elements for which the table of weights was full", humanize.Comma(int64(w.Refused)))
		}
		row("half-life", "%v", time.Duration(w.HalfLife*float64(time.Second)).Round(time.Millisecond))
		row("hot elements", "%s", humanize.Comma(int64(all)))
	})
	if len(w.Elements) == 0 {
		return
	}
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const figures = "%s\t%8s\t%3s\t%s\n"
	fmt.Fprintf(t, figures, "element", "dropped", "k_e", "since")
	for _, e := range w.Elements {
		fmt.Fprintf(t, figures, e.Element, humanize.Comma(int64(e.Dropped)), strconv.Itoa(e.K), e.Found.Format(time.DateTime))
	}
	t.Flush()
	if more := all - len(w.Elements); more > 0 {
		fmt.Fprintf(out, "and %s more: --limit 0 shows all\n", humanize.Comma(int64(more)))
	}
}
