package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/fleet/wire"
)

// nodeStates are the states of nodes, as they are counted.
var nodeStates = []string{api.NodeCurrent, api.NodeBehind, api.NodeStale, api.NodeSilent, api.NodeUnseen, api.NodeRevoked}

// selection has the parts of a status of a fleet that are shown.
type selection struct {
	states, labels, lists []string // that nodes or lists have one of; empty: any
	nodes, versions       bool     // a table of nodes; with their versions instead of counts
}

func newFleetStatus() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what is wrong in a fleet, and how many nodes enforce",
		Long: `Shows in at most ten lines the problems of a fleet, how many of its nodes are
current, behind a version, stale (without news from the hub), silent, unseen
since the hub started, or revoked, how many enforce what their lists have, and
which lists are not as they should be.

With --nodes, --state, --label or --versions it shows nodes, a line each.
ENFORCES is whether a node drops what its lists have: no in monitor mode, and
where it does not filter on all of its interfaces, by its last report.
--versions shows the version of weir there, and its address, as the hub sees it.

With --list it shows lists, with --list all each. WANTED is which versions the
nodes are to have, which differ while a rollout is in its waves, and HAVE which
they filter by: "2 of 8 .2, 6 nothing". Lists on trial are named below, with
until when, and who wanted that, and so are nodes that have conversed with
addresses that a list drops, or would drop.

With --json, --state and --label select nodes, and --list selects lists.

Exit code 4: there are problems, or nodes that are behind, stale or silent.`,
		Example: `  weir fleet status
  weir fleet status --state silent --state stale
  weir fleet status --list block`,
		Args: noArgs,
	}
	var s selection
	f := c.Flags()
	f.BoolVar(&s.nodes, "nodes", false, "show the nodes")
	f.BoolVar(&s.versions, "versions", false, "show the nodes with their versions of weir and addresses")
	f.StringSliceVar(&s.states, "state", nil, "show the nodes in this `state`")
	f.StringSliceVar(&s.labels, "label", nil, "show the nodes with this `label`")
	f.StringSliceVar(&s.lists, "list", nil, "show the list of this `name`; all: each")
	healthy := true
	return question[*api.HubStatus]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.HubStatus, error) {
			for _, state := range s.states {
				if !slices.Contains(nodeStates, state) {
					return nil, usageError{fmt.Errorf("--state %s: there are %s", state, strings.Join(nodeStates, ", "))}
				}
			}
			status, err := of.Fleet(c.Context())
			if err != nil {
				return nil, err
			}
			for _, name := range s.lists {
				if name != "all" && !slices.ContainsFunc(status.Lists, func(l api.FleetList) bool { return l.Name == name }) {
					return nil, fmt.Errorf("--list %s: %w", name, api.ErrNoList)
				}
			}
			healthy = isHealthy(status)
			s.apply(status)
			return status, nil
		},
		text: func(c *cobra.Command, f *api.HubStatus) { s.print(c.OutOrStdout(), f) },
		outcome: func(*api.HubStatus) error {
			if !healthy {
				return errUnfiltered
			}
			return nil
		},
	}.complete(c)
}

// isHealthy reports whether there is nothing to be done.
func isHealthy(f *api.HubStatus) bool {
	for _, n := range f.Nodes {
		switch n.State {
		case api.NodeBehind, api.NodeStale, api.NodeSilent:
			return false
		}
	}
	return len(f.Problems) == 0
}

// sharesText says how many of some nodes have which versions of a list: "2 of 8 .2, 6 nothing".
func sharesText(all []api.FleetShare, total int, last wire.Place, none string) string {
	var texts []string
	rest := total
	for _, s := range all {
		name := s.Version.String()
		switch {
		case s.Version == wire.Place{}:
			name = none
		case s.Version.Epoch == last.Epoch:
			name = fmt.Sprintf(".%d", s.Version.Version)
		}
		switch {
		case s.Nodes == total:
			return "all " + name
		case len(texts) == 0:
			texts = append(texts, fmt.Sprintf("%d of %d %s", s.Nodes, total, name))
		default:
			texts = append(texts, fmt.Sprintf("%d %s", s.Nodes, name))
		}
		rest -= s.Nodes
	}
	switch {
	case total == 0:
		return "-"
	case len(texts) == 0:
		return "unknown"
	case rest > 0:
		texts = append(texts, fmt.Sprintf("%d unknown", rest))
	}
	return strings.Join(texts, ", ")
}

// statesOf says which lists are on trial, which of their addresses nodes have conversed with, and
// where their rollouts are, a line each.
func statesOf(lists []api.FleetList) (lines []string) {
	for _, l := range lists {
		if l.Decision != nil {
			lines = append(lines, fmt.Sprintf("list %s %v", l.Name, l.Decision))
		}
		if c := l.Collateral; c != nil && (l.Trial || c.Conversed > 0) {
			lines = append(lines, fmt.Sprintf("list %s: nodes that have conversed in 24h with what it %s: %v", l.Name, l.Drops(), c))
		}
		if r := l.Rollout; r != nil && (r.State == api.RolloutRunning || r.State == api.RolloutPaused) {
			lines = append(lines, fmt.Sprintf("rollout of %s: version %v is %s, in wave %d of %d", l.Name, r.To, r.State, r.Wave, len(r.Waves)))
		}
	}
	return lines
}

// apply leaves out of a status what is not selected.
func (s *selection) apply(f *api.HubStatus) {
	misses := func(wanted []string, has ...string) bool {
		return len(wanted) > 0 && !slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(has, w) })
	}
	f.Nodes = slices.DeleteFunc(f.Nodes, func(n api.FleetNode) bool { return misses(s.states, n.State) || misses(s.labels, n.Labels...) })
	f.Lists = slices.DeleteFunc(f.Lists, func(l api.FleetList) bool { return misses(s.lists, l.Name, "all") })
}

func (s *selection) print(out io.Writer, f *api.HubStatus) {
	of := s.nodes || s.versions || len(s.states)+len(s.labels) > 0
	if !of && len(s.lists) == 0 {
		printFleetSummary(out, f)
	}
	if len(s.lists) > 0 {
		printListVersions(out, f.Lists)
	}
	if of && s.versions {
		printNodeVersions(out, f)
	} else if of {
		printNodes(out, f)
	}
}

// Limits on a summary, in lines.
const (
	maxSummary  = 10
	maxProblems = 5 // of these
)

// printFleetSummary prints the problems and counts.
func printFleetSummary(out io.Writer, f *api.HubStatus) {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	problems := f.Problems
	if failing := failingNodes(f); failing != "" {
		problems = append(slices.Clip(problems), failing)
	}
	shown := len(problems)
	if shown > maxProblems {
		shown = maxProblems - 1
	}
	for _, p := range problems[:shown] {
		add("problem: %s", p)
	}
	if more := len(problems) - shown; more > 0 {
		add("%d more problems: weir fleet status --json has all", more)
	}
	named := make(map[string][]string) // nodes by state
	living, enforcing := 0, 0
	for _, n := range f.Nodes {
		named[n.State] = append(named[n.State], n.Name)
		if api.Reports(n.State) {
			living++
			if n.NotEnforcing == "" {
				enforcing++
			}
		}
	}
	var counts []string
	for _, state := range nodeStates {
		if all := named[state]; len(all) > 0 {
			text := fmt.Sprintf("%s %d", state, len(all))
			if state != api.NodeCurrent && state != api.NodeRevoked {
				text += ": " + names(all)
			}
			counts = append(counts, text)
		}
	}
	text := fmt.Sprintf("nodes: %d", len(f.Nodes))
	if len(counts) > 0 {
		text += fmt.Sprintf(" (%s), %d of %d that report enforce", strings.Join(counts, "; "), enforcing, living)
	}
	add("%s", text)
	if r := f.Reload; r != nil && r.Error == "" { // else it is among the problems
		add("hub.yaml: reloaded %v ago", f.Time.Sub(r.Time).Round(time.Second))
	}
	if f.Patterns > 0 {
		add("%s published against floods: weir fleet flood says what nodes do with them", plural(f.Patterns, "pattern", "patterns"))
	}
	entries, manual := 0, 0
	var differ []string
	for _, l := range f.Lists {
		entries, manual = entries+l.Entries, manual+l.Manual
		if have := sharesText(l.Have, total(l.Wanted), l.Version, "nothing"); len(l.Wanted) > 0 && have != "all ."+fmt.Sprint(l.Version.Version) {
			differ = append(differ, fmt.Sprintf("list %s: nodes have %s; they are to have %s", l.Name, have, sharesText(l.Wanted, total(l.Wanted), l.Version, "what they have")))
		}
	}
	add("lists: %d, with %s entries, %s of them manual: weir fleet status --list all", len(f.Lists), count(float64(entries)), count(float64(manual)))
	lines = append(append(lines, statesOf(f.Lists)...), differ...)
	if len(lines) > maxSummary {
		lines = append(lines[:maxSummary-1], fmt.Sprintf("%d more lines about lists: weir fleet status --list all", len(lines)-maxSummary+1))
	}
	fmt.Fprintln(out, strings.Join(lines, "\n"))
}

// failingNodes says which nodes report problems, "" for none.
func failingNodes(f *api.HubStatus) string {
	failing, first := 0, ""
	for _, n := range f.Nodes {
		if all := nodeProblems(&n); len(all) > 0 && n.State != api.NodeRevoked {
			if failing++; failing == 1 {
				first = n.Name + ", " + all[0]
			}
		}
	}
	if failing == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d nodes report problems, as %s: weir fleet status --nodes shows them", failing, len(f.Nodes), first)
}

// nodeProblems returns what a node has reported as wrong, a line each.
func nodeProblems(n *api.FleetNode) (all []string) {
	if n.Report == nil {
		return nil
	}
	for _, p := range n.Report.Problems {
		all = append(all, "problem: "+p)
	}
	for _, l := range n.Report.Lists {
		if l.Error != "" {
			all = append(all, "list "+l.Name+": "+l.Error)
		}
	}
	return all
}

// total returns how many nodes some shares count.
func total(all []api.FleetShare) (n int) {
	for _, s := range all {
		n += s.Nodes
	}
	return n
}

func printListVersions(out io.Writer, lists []api.FleetList) {
	fmt.Fprintf(out, "%-24s %-6s %12s %8s  %-18s %-10s %-24s %s\n", "LIST", "ACTION", "ENTRIES", "MANUAL", "VERSION", "PUBLISHED", "WANTED", "HAVE")
	for _, l := range lists {
		published := "yes"
		if l.Published != l.Version {
			published = l.Published.String()
		}
		nodes := total(l.Wanted)
		fmt.Fprintf(out, "%-24s %-6s %12s %8s  %-18v %-10s %-24s %s\n", l.Name, l.Action, count(float64(l.Entries)), count(float64(l.Manual)), l.Version, published,
			sharesText(l.Wanted, nodes, l.Version, "as it is"), sharesText(l.Have, nodes, l.Version, "nothing"))
	}
	for _, line := range statesOf(lists) {
		fmt.Fprintln(out, line)
	}
}

// ago says when a node was seen last.
func ago(f *api.HubStatus, n *api.FleetNode) string {
	if n.Seen == nil {
		return "-"
	}
	return f.Time.Sub(*n.Seen).Round(time.Second).String()
}

func printNodeVersions(out io.Writer, f *api.HubStatus) {
	fmt.Fprintf(out, "%-24s %-8s %-8s %-16s %-40s %s\n", "NODE", "STATE", "SEEN", "VERSION", "ADDRESS", "LABELS")
	for _, n := range f.Nodes {
		version, address := "-", "-"
		if n.Report != nil {
			version, address = cmp.Or(n.Report.Version, "-"), cmp.Or(n.Report.Address, "-")
		}
		fmt.Fprintf(out, "%-24s %-8s %-8s %-16s %-40s %s\n", n.Name, n.State, ago(f, &n), version, address, strings.Join(n.Labels, ","))
	}
}

func printNodes(out io.Writer, f *api.HubStatus) {
	fmt.Fprintf(out, "%-24s %-8s %-8s %-8s %12s %12s  %s\n", "NODE", "STATE", "ENFORCES", "SEEN", "PASSED", "DROPPED", "LABELS")
	for _, n := range f.Nodes {
		passed, dropped, enforces := "-", "-", "-"
		if n.Report != nil {
			passed, dropped = count(float64(n.Report.Passed)), count(float64(n.Report.Dropped))
			if enforces = "yes"; n.NotEnforcing != "" {
				enforces = "no"
			}
		}
		fmt.Fprintf(out, "%-24s %-8s %-8s %-8s %12s %12s  %s\n", n.Name, n.State, enforces, ago(f, &n), passed, dropped, strings.Join(n.Labels, ","))
		if n.NotEnforcing != "" {
			fmt.Fprintf(out, "  not enforcing: %s\n", n.NotEnforcing)
		}
		for _, p := range nodeProblems(&n) {
			fmt.Fprintf(out, "  %s\n", p)
		}
	}
}
