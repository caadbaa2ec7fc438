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
		Long: `Shows the hot elements of the traffic, and how many bits of the filter are
tested for each (k_e): the more packets an element has, the more bits, and the
fewer of its packets are mistaken for listed ones.

Above them are the false-positive rates, as shares of the unlisted packets:
predicted with these bits, predicted with the same number of bits for all, and
measured. The last column is an element's share of the first; a listed element
has none.`,
		Example: `  weir weights
  weir weights --limit 10
  weir weights --json | jq -r '.elements[] | [.element, .k] | @tsv'`,
		Args: noArgs,
	}
	f := c.Flags()
	limit := f.Int("limit", 50, "`number` of elements to show, those with the most packets; 0: all")
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
			slices.SortStableFunc(w.Elements, func(a, b api.Weight) int { return cmp.Compare(b.Rate, a.Rate) })
			if *limit > 0 && (!wantsJSON(c) || c.Flags().Changed("limit")) {
				w.Elements = w.Elements[:min(*limit, all)]
			}
			return w, nil
		},
		text: func(c *cobra.Command, w *api.Weights) { printWeights(c.OutOrStdout(), w, all) },
	}.complete(c)
}

func printWeights(out io.Writer, w *api.Weights, all int) {
	printRows(out, func(row func(name, format string, args ...any)) {
		row("predicted", "%.3g of unlisted packets are mistaken for listed ones", w.Predicted)
		if w.Predicted > 0 {
			row("uniform", "%.3g with %d bits for all, %.1f times as many", w.Uniform, w.Base, w.Uniform/w.Predicted)
		} else {
			row("uniform", "%.3g with %d bits for all", w.Uniform, w.Base)
		}
		if w.Measured != nil {
			row("measured", "%.3g, of %s packets", *w.Measured, humanize.Comma(int64(w.MeasuredPackets)))
		} else {
			row("measured", "nothing yet")
		}
		row("half-life", "%v", time.Duration(w.HalfLife*float64(time.Second)).Round(time.Millisecond))
		row("hot elements", "%s", humanize.Comma(int64(all)))
	})
	if len(w.Elements) == 0 {
		return
	}
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const figures = "%s\t%11s\t%8s\t%3s\t%6s\t%s\n"
	fmt.Fprintf(t, figures, "element", "packets/s", "share", "k_e", "listed", "contribution")
	for _, e := range w.Elements {
		listed, contribution := "", fmt.Sprintf("%.1e", e.Contribution)
		if e.Listed {
			listed, contribution = "yes", "0"
		}
		fmt.Fprintf(t, figures, e.Element, humanize.CommafWithDigits(e.Rate, 0), fmt.Sprintf("%.3f %%", 100*e.Share),
			strconv.Itoa(e.K), listed, contribution)
	}
	t.Flush()
	if more := all - len(w.Elements); more > 0 {
		fmt.Fprintf(out, "and %s more: --limit 0 shows all\n", humanize.Comma(int64(more)))
	}
}
