package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

func newMonitor() *cobra.Command {
	var during time.Duration
	c := &cobra.Command{
		Use:   "monitor on|off [--for TIME]",
		Short: "Let everything pass at once, or filter again",
		Long: `Switches the running daemon to monitor mode, on all interfaces at once: it
counts what it would drop, and drops nothing, whatever the configuration says.
Filters stay in memory and are kept up to date, so that "off" filters again at
once and without a gap.

With --for it ends by itself. It outlasts reloads and, if there is a state_dir,
restarts and crashes; while no daemon runs, it does not end. weir status shows
it. Where the configuration says monitor: true, or weir runs with --monitor,
"off" is refused.`,
		Example: `  weir monitor on --for 10m   # is it weir that drops it?
  weir monitor off`,
		Args: theArgs("on|off"), ValidArgs: []string{"on", "off"},
	}
	durationFlag(c.Flags(), &during, "for", 0, "`time` after which monitor mode ends by itself, as in 10m; 0: never")
	return question[*api.Monitored]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Monitored, error) {
			on := args[0] == "on"
			switch {
			case !on && args[0] != "off":
				return nil, usageError{fmt.Errorf("%q: want on or off", args[0])}
			case !on && during != 0:
				return nil, usageError{errors.New("--for goes with on")}
			}
			m, err := of.SetMonitor(c.Context(), on, during)
			if on && errors.Is(err, client.ErrNotRunning) { // its program may drop packets all the same
				err = fmt.Errorf("%w; `weir detach` lets everything pass without a daemon", err)
			}
			if err == nil && m.Unsaved != "" {
				fmt.Fprintln(c.ErrOrStderr(), "weir: a restart will forget this:", m.Unsaved)
			}
			return m, err
		},
		text: func(c *cobra.Command, m *api.Monitored) {
			if m.Override == nil {
				fmt.Fprintln(c.OutOrStdout(), "monitor mode is off: listed packets are dropped")
			} else {
				printOverride(c.OutOrStdout(), m.Override, time.Now())
			}
		},
	}.complete(c)
}

// printOverride prints who has switched monitor mode on, and when it ends.
func printOverride(w io.Writer, o *api.MonitorOverride, now time.Time) {
	by, until := "", "until `weir monitor off`"
	if who := o.Who(); who != "" {
		by = ", by " + who
	}
	if o.Until != nil {
		until = fmt.Sprintf("until %s (%s), or `weir monitor off`", o.Until.Local().Format(time.DateTime), relative(o.Until, now))
	}
	fmt.Fprintf(w, "MONITOR MODE since %s%s: nothing is dropped %s\n", o.Since.Local().Format(time.DateTime), by, until)
}
