package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newFleetRollout() *cobra.Command {
	c := &cobra.Command{
		Use:   "rollout [LIST]",
		Short: "Show how changes of lists reach the nodes",
		Long: `Shows the last rollout of each list that has waves in hub.yaml: the wave it is
in, how many of its nodes have confirmed, which passing packets the new version
would drop, with which of the addresses nodes have conversed, and what it waits
for. Rollouts begin by themselves when a feed has changed. Entries of weir fleet
block and allow reach all nodes at once.

Exit code 4: a rollout is halted.`,
		Example: "  weir fleet rollout drop",
		Args:    maybeArg("LIST"),
	}
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		f, err := connectHub(c, *socket).Fleet(c.Context())
		if err != nil {
			return err
		}
		out := struct {
			Rollouts map[string]*api.FleetRollout `json:"rollouts"`
		}{make(map[string]*api.FleetRollout)}
		known, halted := len(args) == 0, false
		var names []string
		for _, l := range f.Lists {
			if len(args) > 0 && args[0] != l.Name {
				continue
			}
			if known = true; l.Rollout != nil {
				names = append(names, l.Name)
				out.Rollouts[l.Name] = l.Rollout
				halted = halted || l.Rollout.State == api.RolloutHalted
			}
		}
		switch {
		case !known:
			return fmt.Errorf("%w: %q", api.ErrNoList, args[0])
		case *asJSON:
			err = terminal.PrintJSON(c.OutOrStdout(), out)
		case len(names) == 0:
			fmt.Fprintln(c.OutOrStdout(), "no rollouts: changes reach all nodes at once, or there was none yet")
		}
		for _, name := range names {
			if !*asJSON {
				printRollout(c.OutOrStdout(), name, out.Rollouts[name], f.Time)
			}
		}
		if err == nil && halted {
			err = errUnfiltered
		}
		return err
	}
	return c
}

func printRollout(out io.Writer, name string, r *api.FleetRollout, now time.Time) {
	fmt.Fprintf(out, "%s: %s, from version %v to %v, begun %v ago\n", name, r.State, r.From, r.To, now.Sub(r.Began).Round(time.Second))
	if r.Reason != "" {
		fmt.Fprintf(out, "  %s\n", r.Reason)
	}
	active := r.Active()
	for i, w := range r.Waves {
		mark, state := " ", ""
		switch {
		case r.Wave > i+1:
			state = "done"
		case active && r.Wave == i+1:
			mark, state = ">", fmt.Sprintf("%d of %d nodes have confirmed", r.Confirmed, r.Nodes-r.Absent)
			if r.Absent > 0 {
				state += fmt.Sprintf(", %d were silent before", r.Absent)
			}
		}
		labels := strings.Join(w.Labels, ",")
		if labels == "" {
			labels = "all nodes"
		}
		line := fmt.Sprintf(" %s wave %d: %s for %s on %s", mark, i+1, w.Mode, shortDuration(w.For), labels)
		if state != "" {
			line += ": " + state
		}
		fmt.Fprintln(out, line)
	}
	if active && r.Looked > 0 {
		fmt.Fprintf(out, "  %s of %s packets that pass would be dropped in addition, %s were looked at; the limit is %s\n",
			count(float64(r.WouldDrop)), count(float64(r.Passed)), count(float64(r.Looked)), percentOf(r.Limit))
		for _, a := range r.Top {
			fmt.Fprintf(out, "    %s: %d packets from %s by %s\n", a.Node, a.Packets, a.Source, a.Entry)
		}
	}
	if c := &r.Collateral; active && c.Measured+c.Unmeasured > 0 {
		limit := ""
		if r.MaxConversed != nil {
			limit = fmt.Sprintf("; max_conversed is %d a node", *r.MaxConversed)
		}
		fmt.Fprintf(out, "  nodes that have conversed in 24h with what would be dropped in addition: %v%s\n", c, limit)
	}
	switch r.State {
	case api.RolloutRunning:
		if r.WaitsFor != "" {
			fmt.Fprintf(out, "  waits for %s\n", r.WaitsFor)
		}
	case api.RolloutPaused, api.RolloutHalted:
		fmt.Fprintf(out, "  weir fleet resume %[1]s goes on, weir fleet rollback %[1]s takes it back\n", name)
	}
	if r.Newer {
		fmt.Fprintln(out, "  the feed has newer contents, which go out after this")
	}
}

func shortDuration(seconds float64) string {
	return quantity.Duration(seconds * float64(time.Second)).String()
}

func percentOf(share float64) string { return quantity.Share(share).String() }

func newFleetRoll(do, short, long string, args cobra.PositionalArgs) *cobra.Command {
	use := do + " [LIST]"
	if do == api.RollRollback {
		use = do + " LIST"
	}
	c := &cobra.Command{
		Use:     use,
		Short:   short,
		Long:    long,
		Example: "  weir fleet " + do + " drop",
		Args:    args,
	}
	now := new(bool)
	if do == api.RollResume {
		c.Example += "\n  weir fleet resume drop --now   # to all nodes at once"
		now = c.Flags().Bool("now", false, "give LIST to all nodes at once, whatever waves are left")
	}
	asked := api.FleetRoll{Do: do}
	return question[*api.FleetRolled]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.FleetRolled, error) {
			if len(args) > 0 {
				asked.List = args[0]
			}
			if *now {
				asked.Do = api.RollForward
			}
			if *now && asked.List == "" {
				return nil, usageError{errors.New("--now wants the name of a list")}
			}
			return of.Roll(c.Context(), asked)
		},
		text: func(c *cobra.Command, r *api.FleetRolled) {
			done := map[string]string{
				api.RollPause: "paused", api.RollResume: "resumed", api.RollForward: "released to all nodes", api.RollRollback: "rolled back",
			}[asked.Do]
			fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", done, strings.Join(r.Lists, ", "))
			if !r.Published {
				fmt.Fprintln(c.OutOrStdout(), notPublished)
			}
		},
		outcome: func(r *api.FleetRolled) error { return unlessPublished(r.Published) },
	}.complete(c)
}

func newFleetRolls() []*cobra.Command {
	return []*cobra.Command{
		newFleetRollout(),
		newFleetRoll(api.RollPause, "Pause rollouts", `Pauses the rollout of a list, or all that are running: nodes keep the versions
that they have, and no further wave begins until weir fleet resume.`, maybeArg("LIST")),
		newFleetRoll(api.RollResume, "Let rollouts go on", `Lets the paused rollout of a list go on, or without LIST all paused rollouts.
The time of the present wave begins anew. A rollout that is halted goes on, too,
if its list is named: the reason of the halt is ignored in this wave, and may
halt it again in a later one. After a rollback, the rollout begins again with
the first wave.`, maybeArg("LIST")),
		newFleetRoll(api.RollRollback, "Take back the last rollout of a list", `Publishes what a list had before its last rollout, as a new version, to all
nodes at once. What the feed has now is not rolled out again until it changes,
or weir fleet resume says so.`, theArgs("LIST")),
	}
}
