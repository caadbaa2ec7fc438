package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

// limits are the limits of sources and patterns.
type limits struct {
	Limits []api.PoliceOverride `json:"limits"`
}

func newLimit() *cobra.Command {
	var change api.PoliceChange
	var during, trial time.Duration
	var per string
	c := &cobra.Command{
		Use:   "limit [SOURCE|PATTERN RATE [--ttl TIME] [--reason TEXT]]",
		Short: "Limit what a source sends, or packets that a pattern matches",
		Long: `Limits what SOURCE, an address or a prefix, sends through all interfaces that
weir filters, together: from 1pps or 8kbit/s on. What exceeds that is dropped as
rate-limited. Of prefixes that contain each other, the limit of the longest
counts. Packets that failsafe or an allow list lets pass are not limited. With
--off the limit ends.

A PATTERN is conditions on the headers of a packet, which must all hold:

  tcp, udp, icmp, icmp6, gre, esp, sctp or protocol N
  src PREFIX, dst PREFIX, sport N, dport N
  length N (of the IP packet), ttl N, id N, doff N, window N
  flags SA (just these of FSRPAUEC, or none), flags S/SA (S and not A,
  whatever others), fragment first or later
  payload 474554ff (its first four bytes), stranger (of no conversation)

N may be a range, as in 468-500. With --per each source has the rate for itself,
or each destination or flow. There are 16 patterns at most, for incoming
packets, tried in order. A rate of 0pps drops all that one matches, as reason
pattern. A pattern takes --ttl. With --trial it only counts at first; it is
enforced if at most 0.8 % of its packets were in conversations of this host, and
ends once more are. Conversations are known with collateral in weir.yaml.

With --ttl a limit ends by itself, also while no daemon runs. It outlasts
reloads and, if there is a state_dir, restarts and crashes. If your SSH session
would have to share the rate, a limit of a source without --ttl takes --force;
so does one that would hold back what weir block must not cut off either.

Without arguments it shows all limits, and how many packets they have dropped.`,
		Example: `  weir limit 198.51.100.7 100pps --ttl 1h --reason 'asks too often'
  weir limit 2001:db8::/32 10Mbit/s
  weir limit 'udp length 468 sport 123 dst 203.0.113.10' 0pps --ttl 10m --trial 2s
  weir limit 'tcp flags S dport 443' 20pps --per src/24 --ttl 1h
  weir limit 198.51.100.7 --off
  weir limit`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case change.Off:
				return theArgs("SOURCE|PATTERN")(c, args)
			case len(args) == 0:
				return nil
			}
			return theArgs("SOURCE|PATTERN", "RATE")(c, args)
		},
	}
	f := c.Flags()
	durationFlag(f, &during, "ttl", 0, "`time` after which the limit ends by itself, as in 10m; 0: never")
	durationFlag(f, &trial, "trial", 0, "`time` for which a pattern only counts, as in 2s")
	f.StringVar(&per, "per", "", "`what` has the rate of a pattern for itself: src, src/24 (of IPv6 twice as many bits), dst or flow")
	f.StringVar(&change.Reason, "reason", "", "`text` that weir limit, status and audit show")
	f.BoolVar(&change.Off, "off", false, "end the limit")
	f.BoolVar(&change.Force, "force", false, "do it even if your SSH session has to share the rate, or it holds back the gateway")
	return question[any]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (any, error) {
			if during != 0 && len(args) < 2 {
				return nil, usageError{errors.New("--ttl goes with a source or a pattern, and a rate")}
			}
			if len(args) == 0 {
				s, err := of.Status(c.Context())
				if err != nil {
					return nil, err
				}
				all := slices.DeleteFunc(s.Policed, func(o api.PoliceOverride) bool { return o.Interface != "" })
				return limits{append([]api.PoliceOverride{}, all...)}, nil
			}
			if trial != 0 && (change.Off || isSource(args[0])) {
				return nil, usageError{errors.New("--trial goes with a pattern and a rate")}
			}
			if per != "" && isSource(args[0]) {
				return nil, usageError{errors.New("--per goes with a pattern: a source has its rate for itself")}
			}
			if change.Trial = trial.Seconds(); isSource(args[0]) {
				change.Source = args[0]
			} else if change.Pattern = args[0]; per != "" {
				change.Pattern += " per " + per
			}
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

// isSource reports whether an argument is meant as an address or a prefix. All else is a pattern.
func isSource(text string) bool {
	return strings.ContainsAny(text, ".:/") && !strings.ContainsAny(text, " \t")
}

// printLimits prints the limits of sources and of patterns.
func printLimits(w io.Writer, all []api.PoliceOverride, now time.Time) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no source or pattern is limited")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "source or pattern", "rate", "dropped", "ends", "set", "by", "reason")
	for _, o := range all {
		ends := "never"
		if o.Until != nil {
			ends = due(o.Until, now)
		}
		fmt.Fprintf(t, row, o.Source+o.Pattern, o.Rate, humanize.Comma(int64(o.Held)), ends, relative(&o.Since, now), o.By, o.Reason)
	}
	t.Flush()
	for _, o := range all {
		if o.Pattern != "" {
			fmt.Fprintln(w, o.Pattern+": "+hits(o, now))
		}
	}
}

// trialEnd says when the trial of a pattern ends, by its text, or that it waits for a packet.
func trialEnd(o api.PoliceOverride, now time.Time, at string) string {
	if now.After(*o.Trial) && o.Hits != nil && o.Hits.Packets == 0 {
		return "it matches a packet"
	}
	return at
}

// hits says what a pattern has matched.
func hits(o api.PoliceOverride, now time.Time) string {
	var text string
	if o.Trial != nil {
		text = "on trial until " + trialEnd(o, now, due(o.Trial, now)) + ", "
	}
	if o.Hits == nil {
		return text + "not counted yet"
	}
	return text + hitsOf(*o.Hits) + map[bool]string{true: " of this host"}[o.Hits.Packets > o.Hits.Unknown]
}

// hitsOf says how many packets were matched, and with whom.
func hitsOf(p api.PatternPackets) string {
	text := plural(int(p.Packets), "packet", "packets") + " matched"
	switch p.Packets {
	case 0:
		return text
	case p.Unknown:
		return text + "; whether in conversations is not known"
	}
	return text + fmt.Sprintf(", %d of them in conversations", p.Conversing)
}
