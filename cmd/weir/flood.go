package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
	"weir/control/ruleset"
)

func newFlood() *cobra.Command {
	var past, propose bool
	var apply string
	var force bool
	var rehearsal time.Duration
	during, trial := api.FloodTTL, api.FloodTrial
	c := &cobra.Command{
		Use:   "flood",
		Short: "Say whether there is a flood, what it consists of, and what to do",
		Long: `Compares what comes in with the last seconds that were as usual, and shows the
smallest sets of conditions that the packets of a flood meet, such as
"udp length 468 sport 123", and how many of the usual packets and conversations
meet them, too. It looks at a sample of the packets of each second, at all
interfaces together, dropped packets included.

Nothing is dropped by itself. "do" has the command that drops what the rules
match, which is at most 0.8 % of the usual packets and conversations. Look at
these figures before you run it. It gives patterns to weir limit, which drops
them at once, and ends them by itself: at first each only counts, for the time
of --trial, and ends if it matches conversations of this host. --rehearse has
programs count what the rules match, and drops nothing.`,
		Example: `  weir flood
  weir flood --rehearse 5s
  weir flood --apply all
  weir flood --apply 1,2 --ttl 1h --trial 5s
  weir flood --history
  weir flood --propose | sh
  weir flood --json | jq .now.rules`,
		Args: noArgs,
	}
	f := c.Flags()
	f.BoolVar(&past, "history", false, "list the floods that are over, 100 at most")
	f.BoolVar(&propose, "propose", false, "print the commands that drop the flood, one per line")
	durationFlag(f, &rehearsal, "rehearse", 0, "count for a `time` what the rules match, of all packets, and drop nothing")
	f.StringVar(&apply, "apply", "", "drop what `rules` match, as in 1,2, or all that are sure")
	durationFlag(f, &during, "ttl", api.FloodTTL, "`time` after which --apply ends by itself")
	durationFlag(f, &trial, "trial", api.FloodTrial, "`time` for which --apply only counts at first; 0: none")
	f.BoolVar(&force, "force", false, "do it even if that covers your SSH session, or the gateway")
	c.MarkFlagsMutuallyExclusive("history", "propose", "apply", "rehearse")
	return question[any]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (any, error) {
			if apply == "" && (c.Flags().Changed("ttl") || c.Flags().Changed("trial") || force) {
				return nil, usageError{errors.New("--ttl, --trial and --force go with --apply")}
			}
			floods, err := of.Floods(c.Context())
			switch {
			case err != nil:
				return nil, err
			case c.Flags().Changed("rehearse"):
				return rehearse(c, of, floods, rehearsal)
			case apply == "":
				return floods, nil
			}
			rules, err := chosenRules(floods, apply)
			if err != nil {
				return nil, err
			}
			for _, r := range rules { // one that is refused does not keep others
				err = errors.Join(err, applyRule(c, of, r, during, trial, force))
			}
			if err != nil {
				return nil, err
			}
			return of.Floods(c.Context())
		},
		text: func(c *cobra.Command, answer any) {
			f, ok := answer.(*api.Floods)
			switch out := c.OutOrStdout(); {
			case !ok:
				printRehearsed(out, answer.(limits).Limits, rehearsal)
			case past:
				printPastFloods(out, f)
			case propose:
				if f.Now != nil {
					for _, command := range f.Now.Commands() {
						fmt.Fprintln(out, command)
					}
				}
				if f.Now == nil || len(f.Now.Commands()) == 0 {
					fmt.Fprintln(c.ErrOrStderr(), proposesNothing(f))
				}
			default:
				printFlood(out, f, time.Now())
			}
		},
	}.complete(c)
}

// chosenRules returns the rules of the flood that an argument of --apply names.
func chosenRules(f *api.Floods, text string) (all []*api.FloodRule, err error) {
	if f.Now == nil {
		return nil, errors.New(noFlood(f))
	}
	if text == "all" {
		if all = f.Now.Sure(); len(all) == 0 {
			err = errors.New(proposesNothing(f))
		}
		return all, err
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > len(f.Now.Rules) {
			return nil, usageError{fmt.Errorf("--apply %s: want all, or numbers of rules up to %d, as in 1,2", text, len(f.Now.Rules))}
		}
		all = append(all, &f.Now.Rules[n-1])
	}
	return all, nil
}

// applyRule drops what a rule matches, and says so on standard error: standard output has the flood.
func applyRule(c *cobra.Command, of *client.Client, r *api.FloodRule, during, trial time.Duration, force bool) error {
	ssh := ruleset.SSHConnection()
	if len(r.Addresses) > 0 {
		changed, err := of.Change(c.Context(), api.Change{Action: api.Block, Entries: r.Addresses, TTL: during.Seconds(), Reason: floodReason, SSH: ssh, Force: force})
		if err == nil {
			fmt.Fprintf(c.ErrOrStderr(), "blocked for %v: %s\n", quantity.Duration(during), plural(changed.Added+changed.Unchanged, "address", "addresses"))
		}
		return err
	}
	p, err := of.SetPolice(c.Context(), api.PoliceChange{
		Pattern: r.Pattern, Rate: "0pps", For: during.Seconds(), Trial: trial.Seconds(), Reason: floodReason, SSH: ssh, Force: force,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", r.Pattern, err)
	}
	printPoliced(c.ErrOrStderr(), p, "not dropped")
	return nil
}

const floodReason = "weir flood --apply"

const rehearsalReason = "weir flood --rehearse"

// rehearse has programs count what the rules of a flood match, and drop nothing: also if this process is killed.
func rehearse(c *cobra.Command, of *client.Client, f *api.Floods, during time.Duration) (all limits, err error) {
	if during < time.Second || during > time.Minute {
		return all, usageError{fmt.Errorf("--rehearse %v: want 1s to 1m", during)}
	}
	if f.Now == nil {
		return all, errors.New(noFlood(f))
	}
	before, err := of.Status(c.Context())
	if err != nil {
		return all, err
	}
	counts := (during + 5*time.Second).Seconds() // longer than it takes to read them
	change := api.PoliceChange{Rate: "0pps", For: counts, Trial: counts, Reason: rehearsalReason}
	var rehearsed []string
	for _, r := range f.Now.Rules {
		if len(r.Addresses) > 0 || slices.ContainsFunc(before.Policed, func(o api.PoliceOverride) bool { return o.Pattern == r.Pattern }) {
			continue // what is dropped stays so
		}
		change.Pattern = r.Pattern
		if _, err = of.SetPolice(c.Context(), change); err != nil {
			err = fmt.Errorf("%s: %w", r.Pattern, err)
			break
		}
		rehearsed = append(rehearsed, r.Pattern)
	}
	switch {
	case len(rehearsed) > 0 && err == nil:
		select {
		case <-c.Context().Done():
			err = c.Context().Err()
		case <-time.After(during):
		}
	case err == nil:
		return all, errors.New("nothing to rehearse: weir limit shows the patterns that count already")
	}
	ctx := context.WithoutCancel(c.Context()) // what has begun ends, also where this is interrupted
	after, failed := of.Status(ctx)
	if failed != nil {
		return all, errors.Join(err, failed)
	}
	for _, o := range after.Policed {
		if o.Reason != rehearsalReason || !slices.Contains(rehearsed, o.Pattern) { // a command has set it anew meanwhile
			continue
		}
		all.Limits = append(all.Limits, o)
		_, failed := of.SetPolice(ctx, api.PoliceChange{Pattern: o.Pattern, Off: true})
		err = errors.Join(err, failed)
	}
	if err == nil && len(all.Limits) < len(rehearsed) {
		err = errors.New("the counts of some patterns could not be read in time, or they were changed meanwhile: weir limit")
	}
	return all, err
}

// printRehearsed says what patterns would have dropped.
func printRehearsed(out io.Writer, all []api.PoliceOverride, during time.Duration) {
	for _, o := range all {
		o.Trial = nil // over
		fmt.Fprintf(out, "%s: in %v %s\n", o.Pattern, quantity.Duration(during), hits(o, time.Now()))
	}
	fmt.Fprintln(out, "nothing was dropped: weir flood --apply")
}

func proposesNothing(f *api.Floods) string {
	if f.Now == nil {
		return "no flood: nothing to propose"
	}
	return "nothing to propose: " + f.Now.Do()
}

// noFlood says that there is none, and how sure that is.
func noFlood(f *api.Floods) string {
	switch {
	case !f.Sampled:
		return "not known: packets are not sampled (samples: false in weir.yaml)"
	case f.Quiet < 3:
		return fmt.Sprintf("not known yet: %s; what is usual takes 3 seconds to learn", quantity.SI(f.Rate, 1, "pps"))
	}
	return fmt.Sprintf("no flood: %s, usual %s", quantity.SI(f.Rate, 1, "pps"), usualRate(f))
}

func usualRate(f *api.Floods) string {
	return fmt.Sprintf("%s ± %s", quantity.SI(f.Usual, 1, "pps"), quantity.SI(f.Varies, 1, "pps"))
}

func printFlood(out io.Writer, f *api.Floods, now time.Time) {
	x := f.Now
	if x == nil {
		fmt.Fprintln(out, noFlood(f))
		if len(f.Past) > 0 {
			fmt.Fprintf(out, "the last one ended %s: weir flood --history\n", relative(f.Past[0].End, now))
		}
		return
	}
	fmt.Fprintf(out, "%s since %s (%v)   %s, usual %s\n", x.Kind.Headline(), x.Begin.Local().Format(time.TimeOnly),
		quantity.Duration(now.Sub(x.Begin).Round(time.Second)), quantity.SI(x.Rate, 1, "pps"), usualRate(f))
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if x.Destination != "" {
		fmt.Fprintf(t, "to\t%s (%s)\n", x.Destination, inPercent(x.DestinationShare))
		text := "some " + humanize.Comma(int64(math.Round(x.Sources)))
		if x.LargestSources < 0.5 {
			text += "; the largest 100 send " + inPercent(x.LargestSources) + ": blocking sources will not help"
		} else {
			text += "; the largest 100 send " + inPercent(x.LargestSources)
		}
		fmt.Fprintf(t, "sources\t%s\n", text)
	}
	label := "it is"
	for i, line := range x.Is() {
		if len(x.Rules) > 0 && i < len(x.Rules) {
			line = fmt.Sprintf("%d  %s", i+1, line)
		} else if len(x.Rules) > 0 {
			line = "   " + line
		}
		fmt.Fprintf(t, "%s\t%s\n", label, line)
		label = ""
	}
	fmt.Fprintf(t, "dropped\t%s of it now\n", inPercent(x.Dropped))
	label = "would hit"
	for i := range x.Rules {
		r := &x.Rules[i]
		fmt.Fprintf(t, "%s\t%d: %v usual conversations, %v usual packets\n", label, i+1, r.Conversations, r.Packets)
		label = ""
	}
	fmt.Fprintf(t, "do\t%s\n", x.Do())
	t.Flush()
}

func inPercent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

func printPastFloods(out io.Writer, f *api.Floods) {
	if len(f.Past) == 0 {
		fmt.Fprintln(out, "no flood is over yet")
		return
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\t%s\t%9s\t%9s\t%s\t%s\n", "began", "for", "peak", "usual", "to", "it was")
	for i := range f.Past {
		x := &f.Past[i]
		var is []string
		for j := range x.Rules {
			is = append(is, x.Rules[j].Pattern)
		}
		if len(is) == 0 {
			is = []string{map[api.FloodKind]string{api.FloodUsers: "users", api.FloodNothing: "like users"}[x.Kind] + ", " + x.Of}
		}
		fmt.Fprintf(t, "%s\t%v\t%9s\t%9s\t%s\t%s\n", x.Begin.Local().Format(time.DateTime), quantity.Duration(x.End.Sub(x.Begin).Round(time.Second)),
			quantity.SI(x.Peak, 1, "pps"), quantity.SI(x.Usual, 1, "pps"), x.Destination, strings.Join(is, "; "))
	}
	t.Flush()
}
