package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/ruleset"
)

func newPolice() *cobra.Command {
	var change api.PoliceChange
	var during time.Duration
	c := &cobra.Command{
		Use:   "police INTERFACE RATE [--for TIME]",
		Short: "Limit what an interface receives, at once and for a time",
		Long: `Limits what an interface receives to a rate, whatever the configuration says:
from 100pps or 1Mbit/s on. Flows share the rate as the key police of the
interface says, fairly by default. Packets that failsafe or an allow list lets
pass are not limited. With --off, the configuration decides again.

With --for it ends by itself. It outlasts reloads and, if there is a state_dir,
restarts and crashes; while no daemon runs, it does not end. weir status shows
it. If your SSH session would have to share the rate, a limit without --for
takes --force.

INTERFACE is one that weir filters, or a pattern as in weir.yaml.`,
		Example: `  weir police eth0 3kpps --for 10m   # hold a flood off
  weir police eth0 --off`,
		Args: func(c *cobra.Command, args []string) error {
			if change.Off {
				return theArgs("INTERFACE")(c, args)
			}
			return theArgs("INTERFACE", "RATE")(c, args)
		},
	}
	f := c.Flags()
	durationFlag(f, &during, "for", 0, "`time` after which the limit ends by itself, as in 10m; 0: never")
	f.BoolVar(&change.Off, "off", false, "end the limit: the configuration decides again")
	f.StringVar(&change.Netns, "netns", "", "network `namespace` of the interface, as in weir.yaml")
	f.BoolVar(&change.Force, "force", false, "do it without --for, even if your SSH session has to share the rate")
	return question[*api.Policed]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Policed, error) {
			if change.Off && during != 0 {
				return nil, usageError{errors.New("--for goes with a rate")}
			}
			change.Interface = args[0]
			return setPolice(c, of, change, args[1:], during)
		},
		text: func(c *cobra.Command, p *api.Policed) {
			printPoliced(c.OutOrStdout(), p, "limited as configured")
		},
	}.complete(c)
}

// setPolice sets a limit to the rate that is left of the arguments, or ends it.
func setPolice(c *cobra.Command, of *client.Client, change api.PoliceChange, rate []string, during time.Duration) (*api.Policed, error) {
	change.For, change.SSH = during.Seconds(), ruleset.SSHConnection()
	if len(rate) > 0 {
		change.Rate = rate[0]
	}
	p, err := of.SetPolice(c.Context(), change)
	if err == nil && p.Unsaved != "" {
		fmt.Fprintln(c.ErrOrStderr(), "weir: a restart will forget this:", p.Unsaved)
	}
	return p, err
}

// printPoliced prints what became of a limit. otherwise says how it is without one.
func printPoliced(w io.Writer, p *api.Policed, otherwise string) {
	before := ""
	switch {
	case p.Override != nil:
		printLimited(w, *p.Override, time.Now())
		return
	case !p.Changed:
		before = ", as it was before"
	}
	fmt.Fprintf(w, "%s is %s%s\n", p.Interface+p.Source+p.Pattern, otherwise, before)
}

// printLimited prints a limit that a command has set, and when it ends.
func printLimited(w io.Writer, o api.PoliceOverride, now time.Time) {
	until := "until `" + o.Undo() + "`"
	if o.Until != nil {
		until = fmt.Sprintf("until %s (%s), or `%s`", o.Until.Local().Format(time.DateTime), relative(o.Until, now), o.Undo())
	}
	if o.Reason != "" {
		until += ": " + o.Reason
	}
	if o.TrialFor > 0 && o.Trial == nil {
		until += "; it was tried before"
	}
	what := fmt.Sprintf("LIMITED: %s to %s", o.Place(), o.Rate)
	if o.Dropping() {
		what = "DROPPED: " + o.Place()
	}
	if o.Trial != nil {
		what = fmt.Sprintf("ON TRIAL until %s: %s at %s", trialEnd(o, now, o.Trial.Local().Format(time.TimeOnly)), o.Place(), o.Rate)
	}
	fmt.Fprintf(w, "%s since %s, by %s, %s\n", what, o.Since.Local().Format(time.DateTime), o.By, until)
}
