package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

func newCollateral() *cobra.Command {
	c := &cobra.Command{
		Use:   "collateral [LIST]",
		Short: "Show with which listed addresses this host has conversed",
		Long: `Shows how many addresses of each list this host has conversed with, or with
LIST the addresses themselves, the latest first: this host opened the connection
and was answered, or it answered a handshake that was completed. What spoofed
sources send adds none. The programs record it while "collateral" is set in
weir.yaml.

A list that is enforced drops the connections that others open. To see those,
too, put it on trial.`,
		Example: `  weir collateral
  weir collateral drop
  weir collateral drop --json | jq -r '.collateral[].latest[].address'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return theArgs("LIST")(c, args)
		},
		ValidArgsFunction: completeLists(1),
	}
	list := ""
	return question[*api.Collateral]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Collateral, error) {
			if len(args) > 0 {
				list = args[0]
			}
			return of.Collateral(c.Context(), list)
		},
		text: func(c *cobra.Command, a *api.Collateral) { printCollateral(c.OutOrStdout(), a, list != "", time.Now()) },
		outcome: func(a *api.Collateral) error {
			if !a.Recorded {
				return errors.New("conversations are not recorded: set collateral in weir.yaml, as in collateral: 65536")
			}
			return nil
		},
	}.complete(c)
}

func printCollateral(out io.Writer, a *api.Collateral, one bool, now time.Time) {
	if !a.Recorded {
		return
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer t.Flush()
	if !one {
		fmt.Fprintf(t, "list\t%10s\t%10s\tlatest\n", "addresses", "last 24h")
		for _, l := range a.Lists {
			latest := "-"
			if len(l.Latest) > 0 {
				latest = l.Latest[0].Addr.String() + ", " + relative(&l.Latest[0].Last, now)
			}
			fmt.Fprintf(t, "%s\t%10s\t%10s\t%s\n", l.List, humanize.Comma(int64(l.Addresses)), humanize.Comma(int64(l.Day)), latest)
		}
		return
	}
	fmt.Fprintln(t, "address\tconversed\tfirst\tlast")
	for _, l := range a.Lists {
		for _, p := range l.Latest {
			addr := p.Addr.String()
			if p.Direction == "out" {
				addr = "> " + addr
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", addr, strings.Join(p.How, ", "), relative(&p.First, now), relative(&p.Last, now))
		}
		if more := l.Addresses - len(l.Latest); more > 0 {
			fmt.Fprintf(t, "and %s more\n", humanize.Comma(int64(more)))
		}
	}
}

// talkedTo says with which addresses of a list this host has conversed, as a sentence without
// its end.
func talkedTo(of *api.ListCollateral, trial bool, now time.Time) string {
	drops := "drops"
	if trial {
		drops = "would drop"
	}
	var some []string
	for _, p := range of.Latest {
		some = append(some, fmt.Sprintf("%s (%s)", p.Addr, relative(&p.Last, now)))
	}
	if more := of.Addresses - len(some); more > 0 {
		some = append(some, humanize.Comma(int64(more))+" more")
	}
	return fmt.Sprintf("this host has conversed with %s that it %s, %s of them in 24h: %s",
		plural(of.Addresses, "address", "addresses"), drops, humanize.Comma(int64(of.Day)), strings.Join(some, ", "))
}
