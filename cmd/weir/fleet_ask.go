package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/explain"
	"weir/control/quantity"
	"weir/control/stage/digest"
)

// askLong is the common part of the help of commands that ask nodes.
const askLong = `

All nodes are asked at once, or those that --node names. One that does not
answer within a few seconds is named, and the exit code is 1; the answers of the
others are printed.`

// nodesFlag is the flag --node of commands that ask nodes.
func nodesFlag(c *cobra.Command) *[]string {
	return c.Flags().StringSlice("node", nil, "`names` of the nodes to ask, joined by commas (default all)")
}

// noAnswer returns which nodes have not answered, and why, nil if all have. of returns
// the name of a node and its problem, "" for none.
func noAnswer[N any](nodes []N, of func(N) (name, problem string)) error {
	var texts []string
	for _, n := range nodes {
		if name, problem := of(n); problem != "" {
			texts = append(texts, fmt.Sprintf("%s (%s)", name, problem))
		}
	}
	n := len(texts)
	if n == 0 {
		return nil
	}
	if n > mostNames {
		texts = append(texts[:mostNames], fmt.Sprintf("and %d more", n-mostNames))
	}
	return fmt.Errorf("no answer, or only a part, from %d of %s: %s", n, plural(len(nodes), "node", "nodes"), strings.Join(texts, ", "))
}

// mostNames bounds the names of nodes in a line.
const mostNames = 10

func newFleetExplain() *cobra.Command {
	c := &cobra.Command{
		Use:   "explain ADDRESS|PREFIX|FLOW",
		Short: "Say which nodes would drop packets, and why",
		Long: `Asks the nodes of a fleet what weir explain answers on each, and prints each
answer once, with the nodes that have given it: first where packets are dropped.
Entries of the fleet's lists are shown with the file and line of the hub's feed.` + askLong,
		Example: `  weir fleet explain 192.0.2.1
  weir fleet explain --node edge-1,edge-2 'tcp 192.0.2.1:* > 198.51.100.7:443'`,
		Args: someArgs("ADDRESS, PREFIX or FLOW"),
	}
	nodes := nodesFlag(c)
	exitCode := c.Flags().Bool("exit-code", false, "exit with 3 if any node would drop packets")
	return question[*api.FleetExplanation]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.FleetExplanation, error) {
			question := strings.Join(args, " ") // a flow without quotes
			if _, err := explain.ParseQuestion(question); err != nil {
				return nil, usageError{err}
			}
			e, err := of.ExplainFleet(c.Context(), *nodes, question)
			return e, badRequest(err)
		},
		text: func(c *cobra.Command, e *api.FleetExplanation) { printFleetExplanation(c.OutOrStdout(), e, time.Now()) },
		outcome: func(e *api.FleetExplanation) error {
			if err := noAnswer(e.Nodes, func(n api.NodeExplanation) (name, problem string) { return n.Node, n.Problem }); err != nil {
				return err
			}
			if *exitCode && slices.ContainsFunc(e.Nodes, func(n api.NodeExplanation) bool { return n.Explanation != nil && !n.Explanation.Passes() }) {
				return errDropped
			}
			return nil
		},
	}.complete(c)
}

// badRequest makes an error of the request one of the command line.
func badRequest(err error) error {
	if _, ok := errors.AsType[*api.BadRequest](err); ok {
		return usageError{err}
	}
	return err
}

func printFleetExplanation(out io.Writer, e *api.FleetExplanation, now time.Time) {
	type group struct {
		text  string
		drops bool
		nodes []string
	}
	var groups []*group
	answered, dropping := 0, 0
	for _, n := range e.Nodes {
		if n.Explanation == nil {
			continue
		}
		answered++
		var b strings.Builder
		for i := range n.Explanation.Answers {
			for _, m := range n.Explanation.Answers[i].Entries() {
				m.Packets = nil // counts differ between nodes
			}
			n.Explanation.Answers[i].LastDrop = nil
			if l := n.Explanation.Answers[i].Limit; l != nil {
				l.Offered = nil // so do rates
			}
		}
		printExplanation(&b, *n.Explanation, false, false, now)
		i := slices.IndexFunc(groups, func(g *group) bool { return g.text == b.String() })
		if i < 0 {
			i, groups = len(groups), append(groups, &group{text: b.String(), drops: n.Explanation.Drops()})
		}
		groups[i].nodes = append(groups[i].nodes, n.Node)
		if n.Explanation.Drops() {
			dropping++
		}
	}
	fmt.Fprintf(out, "%s: dropped by %d of %s\n", e.Question, dropping, plural(answered, "node that has answered", "nodes that have answered"))
	slices.SortStableFunc(groups, func(a, b *group) int {
		if a.drops != b.drops {
			if a.drops {
				return -1
			}
			return 1
		}
		return len(b.nodes) - len(a.nodes)
	})
	for _, g := range groups {
		fmt.Fprintf(out, "\n%s:\n%s", names(g.nodes), indented(g.text))
	}
}

// names returns the names of nodes, and how many there are if they are many.
func names(nodes []string) string {
	if len(nodes) <= mostNames {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(nodes[:mostNames], ", "), len(nodes)-mostNames)
}

func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

func newFleetTop() *cobra.Command {
	share := quantity.Share(api.DefaultShare)
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the heavy hitters of all nodes together",
		Long: `Shows the largest flows of all nodes of a fleet together, though they may be
small on each. The nodes must have trackers of the same key and unit: trackers
in weir.yaml. Rates cover the last interval of each node.

A flow has no more than RATE, and no less than AT LEAST. It is listed if it may
have the share of --share.` + askLong,
		Example: `  weir fleet top
  weir fleet top --key dst --unit bytes --share 1%`,
		Args: noArgs,
	}
	f := c.Flags()
	key := f.String("key", "src", "`key` of a tracker of all nodes: src, dst, flow, or a prefix as in src/24")
	unit := f.String("unit", "packets", "`unit` of that tracker, packets or bytes")
	f.TextVar(&share, "share", share, "`share` of all that is counted that a flow is to have")
	most := f.Int("count", 20, "most `flows` to print; 0: all")
	nodes := nodesFlag(c)
	choices(c, "unit", "packets", "bytes")
	choices(c, "key", "src", "dst", "flow")
	return question[*api.FleetTop]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.FleetTop, error) {
			if *most < 0 {
				return nil, usageError{fmt.Errorf("--count %d: want a number of flows, or 0 for all", *most)}
			}
			t, err := of.TopFleet(c.Context(), *nodes, api.FleetTopQuestion{Key: *key, Unit: *unit, Share: float64(share)})
			return t, badRequest(err)
		},
		text: func(c *cobra.Command, t *api.FleetTop) { printFleetTop(c.OutOrStdout(), t, *most) },
		outcome: func(t *api.FleetTop) error {
			return noAnswer(t.Nodes, func(n api.NodeRate) (name, problem string) { return n.Node, n.Problem })
		},
	}.complete(c)
}

func printFleetTop(out io.Writer, t *api.FleetTop, most int) {
	answered := 0
	for _, n := range t.Nodes {
		if n.Interval > 0 {
			answered++
		}
	}
	fmt.Fprintf(out, "%s counted %s %s/s\n", plural(answered, "node has", "nodes have"), count(t.Rate), t.Unit)
	if answered == 0 {
		return
	}
	fmt.Fprintf(out, "\n%10s %10s %8s %6s  %s\n", "RATE", "AT LEAST", "SHARE", "NODES", strings.ToUpper(t.Key))
	for i, f := range t.Flows {
		if most > 0 && i == most {
			fmt.Fprintf(out, "and %d more\n", len(t.Flows)-i)
			break
		}
		fmt.Fprintf(out, "%10s %10s %8s %6d  %s\n", count(f.Rate), count(f.Least), fmt.Sprintf("%.2f %%", 100*f.Share), f.Nodes, f.Key)
	}
	fmt.Fprintf(out, "no other has more than %s %s/s (%.2g %%)\n", count(t.Rest), t.Unit, 100*t.Rest/max(t.Rate, 1e-9))
}

func newFleetLists() *cobra.Command {
	c := &cobra.Command{
		Use:   "lists [--versions LIST --diff [VERSION...]]",
		Short: "Show the lists of a fleet, and the state of their sources",
		Long: `Shows the lists of a fleet's hub: their entries, how many of them are manual,
the last version and whether it is published, and when their sources were last
read, how that went, and when they are read next. Sources that failed are listed
below with the reason; their old contents stay published.

With --versions, shows which contents the sources of a list have had, the
present ones first: "weir fleet refresh LIST --rollback" returns to those
before. With --diff, it shows the entries that were added (+) and removed (-),
as "weir lists --versions LIST --diff" does for a host.`,
		Example: `  weir fleet lists
  weir fleet lists --versions drop
  weir fleet lists --versions drop --diff 9aa708f8
  weir fleet lists --json | jq -r '.lists[].feeds[] | select(.outcome == "failed").source'`,
	}
	versions := versionFlags(c)
	type fleetLists struct {
		Lists []api.FleetList `json:"lists"`
	}
	// One of both is nil.
	type answer struct {
		*fleetLists
		*api.ListVersions
	}
	return question[answer]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, args []string) (a answer, err error) {
			if a.ListVersions, err = versions(of, args); a.ListVersions != nil || err != nil {
				return a, err
			}
			f, err := of.Fleet(c.Context())
			if err == nil {
				a.fleetLists = &fleetLists{f.Lists}
			}
			return a, err
		},
		text: func(c *cobra.Command, a answer) {
			if a.ListVersions != nil {
				printVersions(c.OutOrStdout(), a.ListVersions, time.Now())
				return
			}
			printFleetLists(c.OutOrStdout(), a.Lists, time.Now())
		},
	}.complete(c)
}

func printFleetLists(out io.Writer, lists []api.FleetList, now time.Time) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%10s\t%6s\t%s\t%s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "list", "action", "direction", "entries", "manual", "version", "published", "feeds", "read", "next")
	for _, l := range lists {
		feeds, read, next := summary(l.Feeds)
		published := "yes"
		if l.Published != l.Version {
			published = l.Published.String()
		}
		fmt.Fprintf(t, row, l.Name, l.Does(), l.Direction, humanize.Comma(int64(l.Entries)), humanize.Comma(int64(l.Manual)),
			l.Version.String(), published, feeds, relative(read, now), due(next, now))
	}
	t.Flush()
	gap := "\n"
	for _, l := range lists {
		for _, f := range l.Feeds {
			for _, trouble := range troubles(f, now) {
				fmt.Fprintf(out, "%s%s: %s: %s\n", gap, l.Name, f.Source, trouble)
				gap = ""
			}
		}
	}
}

func newFleetTrace() *cobra.Command {
	q := digest.Question{}
	c := &cobra.Command{
		Use:   "trace CAPTURE...",
		Short: "Find where and when the packets of a capture passed",
		Long: `Asks the nodes of a fleet whether and when the packets of a capture passed, as
weir trace asks one daemon. It requires digest.rate in the configurations of the
nodes. With links between the nodes, and the node where the packets arrived, it
finds their path. Nodes get of a packet what its digest depends on: at
most 32 bytes of IPv4, 64 of IPv6.` + askLong,
		Example: `  weir fleet trace attack.pcap
  weir fleet trace --link edge-core --link edge-west --from edge attack.pcap`,
		Args: someArgs("CAPTURE"),
	}
	f := c.Flags()
	durationFlag(f, &q.Window, "window", 5*time.Second, "`time` before and after a packet was captured in which it is looked for")
	listFlag(f, "link", "`A-B`, two nodes between which packets are forwarded, or A:B; repeat for more", appendText(&q.Links))
	f.StringVar(&q.From, "from", "", "`node` where the packets arrived")
	packets := f.Int("count", 10, "`number` of packets of each capture to trace; 0: all")
	nodes, socket := nodesFlag(c), hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, captures []string) error {
		if *packets < 0 {
			return usageError{fmt.Errorf("--count %d: want a number of packets, or 0 for all", *packets)}
		}
		hub := dialHub(c, *socket)
		ask := func(ctx context.Context, asked []digest.Asked) ([]digest.Trace, int, error) {
			return traceFleet(ctx, hub, q, *nodes, asked)
		}
		return trace(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr(), ask, captures, *packets, *asJSON)
	}
	return c
}

// traceFleet asks nodes for packets, and combines what they answer.
func traceFleet(ctx context.Context, hub *client.Client, q digest.Question, nodes []string, asked []digest.Asked) ([]digest.Trace, int, error) {
	answers := make(map[string]*digest.Answer)
	for batch := range q.Batches(asked) {
		t, err := hub.TraceFleet(ctx, nodes, batch)
		if err != nil {
			return nil, 0, badRequest(err)
		}
		for _, n := range t.Nodes {
			a := answers[n.Node]
			if a == nil {
				a = &digest.Answer{}
				answers[n.Node] = a
			}
			if n.Traced == nil {
				a.Err = errors.New(n.Problem)
			} else {
				a.Batches = append(a.Batches, n.Traced)
			}
		}
	}
	var all []digest.Answer
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		q.Nodes = append(q.Nodes, digest.Node{Name: name})
		all = append(all, *answers[name])
	}
	if err := q.Check(); err != nil && len(asked) > 0 {
		return nil, 0, usageError{err}
	}
	traces, err := q.Combine(asked, all)
	if err != nil {
		if failed := noAnswer(q.Nodes, func(n digest.Node) (name, problem string) {
			if err := answers[n.Name].Err; err != nil {
				problem = err.Error()
			}
			return n.Name, problem
		}); failed != nil {
			err = failed
		}
	}
	return traces, len(all), err
}
