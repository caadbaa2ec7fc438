package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

// limits are the limits of sources.
type limits struct {
	Limits []api.PoliceOverride `json:"limits"`
}

func newLimit() *cobra.Command {
	var change api.PoliceChange
	var during time.Duration
	c := &cobra.Command{
		Use:   "limit [SOURCE RATE [--ttl TIME] [--reason TEXT]]",
		Short: "Limit what an address or a prefix sends, at once and for a time",
		Long: `Limits what SOURCE, an address or a prefix, sends through all interfaces that
weir filters, together: from 1pps or 8kbit/s on. What exceeds that is dropped as
rate-limited. Of prefixes that contain each other, the limit of the longest
counts. Packets that failsafe or an allow list lets pass are not limited. With
--off the limit ends.

With --ttl it ends by itself, also while no daemon runs. It outlasts reloads
and, if there is a state_dir, restarts and crashes. If your SSH session would
have to share the rate, a limit without --ttl takes --force; so does one that
would hold back what weir block must not cut off either.

Without SOURCE it shows all limits, and how many packets they have dropped.`,
		Example: `  weir limit 198.51.100.7 100pps --ttl 1h --reason 'asks too often'
  weir limit 2001:db8::/32 10Mbit/s
  weir limit 198.51.100.7 --off
  weir limit`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case change.Off:
				return theArgs("SOURCE")(c, args)
			case len(args) == 0:
				return nil
			}
			return theArgs("SOURCE", "RATE")(c, args)
		},
	}
	f := c.Flags()
	durationFlag(f, &during, "ttl", 0, "`time` after which the limit ends by itself, as in 10m; 0: never")
	f.StringVar(&change.Reason, "reason", "", "`text` that weir limit, status and audit show")
	f.BoolVar(&change.Off, "off", false, "end the limit")
	f.BoolVar(&change.Force, "force", false, "do it even if your SSH session has to share the rate, or it holds back the gateway")
	return question[any]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (any, error) {
			if during != 0 && len(args) < 2 {
				return nil, usageError{errors.New("--ttl goes with a source and a rate")}
			}
			if len(args) == 0 {
				s, err := of.Status(c.Context())
				if err != nil {
					return nil, err
				}
				all := slices.DeleteFunc(s.Policed, func(o api.PoliceOverride) bool { return o.Source == "" })
				return limits{append([]api.PoliceOverride{}, all...)}, nil
			}
			change.Source = args[0]
			return setPolice(c, of, change, args[1:], during)
		},
		text: func(c *cobra.Command, answer any) {
			switch a := answer.(type) {
			case limits:
				printLimits(c.OutOrStdout(), a.Limits, time.Now())
			case *api.Policed:
				printPoliced(c.OutOrStdout(), a, "not limited")
			}
		},
	}.complete(c)
}

// printLimits prints the limits of sources.
func printLimits(w io.Writer, all []api.PoliceOverride, now time.Time) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no source is limited")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "source", "rate", "dropped", "ends", "set", "by", "reason")
	for _, o := range all {
		ends := "never"
		if o.Until != nil {
			ends = due(o.Until, now)
		}
		fmt.Fprintf(t, row, o.Source, o.Rate, humanize.Comma(int64(o.Held)), ends, relative(&o.Since, now), o.By, o.Reason)
	}
	t.Flush()
}
