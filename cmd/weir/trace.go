package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api/client"
	"weir/control/stage/digest"
)

// nodeAddress is a node as the command line has it.
type nodeAddress struct{ name, address string }

// UnmarshalText reads NAME=ADDRESS.
func (n *nodeAddress) UnmarshalText(text []byte) error {
	name, address, ok := strings.Cut(string(text), "=")
	if !ok || name == "" || address == "" {
		return fmt.Errorf("node %q: want NAME=SOCKET or NAME=https://HOST:PORT", text)
	}
	*n = nodeAddress{name, address}
	return nil
}

func newTrace() *cobra.Command {
	var socket, cert, key, ca string
	var nodes []nodeAddress
	q := digest.Question{}
	c := &cobra.Command{
		Use:   "trace CAPTURE...",
		Short: "Find where and when the packets of a capture passed",
		Long: `Asks the running daemon, or several nodes, whether and when the packets of a
capture passed: on which interfaces, in which slices of time, and with which
probability each answer is a coincidence. It requires digest.rate in their
configurations. A packet is looked for around the time when it was captured.

With links between the nodes, and the node where the packets arrived, it finds
their path: from there, each neighbour that has seen a packet, and so on. A node
may be on it by chance, with the probability shown.

A node is asked on its socket, or by https at its api.listen, which requires a
certificate. Forged source addresses do not matter: the packet itself is looked
for.

--loops asks no node, and excludes the flags for that. It searches the captures
for packets that were seen repeatedly with a lower TTL.`,
		Example: `  weir trace attack.pcap
  weir trace --node edge=/run/weir/weir.sock --node core=https://192.0.2.1:9478 \
    --cert me.pem --key me.key --ca ca.pem --link edge-core --from edge attack.pcap
  weir trace --loops traffic.pcap`,
		Args: someArgs("CAPTURE"),
	}
	f := c.Flags()
	durationFlag(f, &q.Window, "window", 5*time.Second, "`time` before and after a packet was captured in which it is looked for")
	listFlag(f, "node", "`NAME=ADDRESS` of a node to ask, a socket's path or https://HOST:PORT; repeat for more", appendText(&nodes))
	listFlag(f, "link", "`A-B`, two nodes between which packets are forwarded, or A:B; repeat for more", appendText(&q.Links))
	f.StringVar(&q.From, "from", "", "`node` where the packets arrived")
	f.StringVar(&cert, "cert", "", "`file` with the client certificate, for https")
	f.StringVar(&key, "key", "", "`file` with its private key")
	f.StringVar(&ca, "ca", "", "`file` with the authorities of the nodes' certificates")
	count := f.Int("count", 10, "`number` of packets of each capture to trace; 0: all")
	loops := f.Bool("loops", false, "find loops in the captures")
	socketFlag(f, &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, captures []string) error {
		if *count < 0 {
			return usageError{fmt.Errorf("--count %d: want a number of packets, or 0 for all", *count)}
		}
		if *loops {
			for _, name := range []string{"node", "socket", "cert", "key", "ca", "link", "from", "window", "count"} {
				if f.Changed(name) {
					return usageError{fmt.Errorf("--%s with --loops: that asks no node, and searches all of the captures; "+
						"a daemon that finds loops itself reports them in its log and in weir events", name)}
				}
			}
			return findLoops(c.Context(), c.InOrStdin(), c.OutOrStdout(), captures, *asJSON)
		}
		if len(nodes) == 0 {
			nodes = []nodeAddress{{"here", socket}}
		}
		for _, n := range nodes {
			asked := client.Dial(n.address)
			if strings.Contains(n.address, "://") {
				if cert == "" || key == "" || ca == "" {
					return usageError{fmt.Errorf("node %s: https requires a certificate: --cert with its --key, and --ca", n.name)}
				}
				var err error
				if asked, err = client.DialTLS(n.address, cert, key, ca); err != nil {
					return usageError{fmt.Errorf("node %s: %w", n.name, err)}
				}
			}
			q.Nodes = append(q.Nodes, digest.Node{Name: n.name, Ask: asked.Trace})
		}
		if err := q.Check(); err != nil {
			return usageError{err}
		}
		ask := func(ctx context.Context, asked []digest.Asked) ([]digest.Trace, int, error) {
			traces, err := q.Ask(ctx, asked)
			return traces, len(q.Nodes), err
		}
		return trace(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr(), ask, captures, *count, *asJSON)
	}
	return c
}

// askTraces asks nodes for packets, and returns how many nodes there are.
type askTraces func(context.Context, []digest.Asked) (found []digest.Trace, nodes int, err error)

// trace asks for the packets of captures. What some nodes have answered is printed
// even if others have not.
func trace(ctx context.Context, in io.Reader, out, log io.Writer, ask askTraces, captures []string, count int, asJSON bool) error {
	traces := []digest.Trace{}
	nodes := 0
	var errs []error
	for _, name := range captures {
		r, err := openCapture(name, in)
		if err != nil {
			return err
		}
		asked, untraced, err := digest.Read(ctx, r, count)
		errs = append(errs, err, r.Close())
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if untraced > 0 {
			fmt.Fprintf(log, "weir: %s: %s cut off or not IP, and cannot be traced\n", name,
				english.Plural(untraced, "packet is", "packets are"))
		}
		found, n, err := ask(ctx, asked)
		nodes = n
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		traces = append(traces, found...)
	}
	if asJSON {
		errs = append(errs, terminal.PrintJSON(out, map[string]any{"traces": traces}))
	} else {
		for _, t := range traces {
			printTrace(out, t, nodes)
		}
	}
	return errors.Join(errs...)
}

// printTrace prints what so many nodes, that were asked, know of a packet.
func printTrace(w io.Writer, t digest.Trace, nodes int) {
	fmt.Fprintf(w, "packet %s: %s", humanize.Comma(int64(t.Number)), t.Flow)
	if !t.Time.IsZero() {
		fmt.Fprintf(w, ", captured %s", t.Time.Local().Format("2006-01-02 15:04:05.000"))
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range t.Seen {
		place := s.Interface
		if s.Netns != "" {
			place += " in " + s.Netns
		}
		var when []string
		for i, slice := range s.Slices {
			if i == mostSlices {
				when = append(when, fmt.Sprintf("and %d more", len(s.Slices)-i))
				break
			}
			when = append(when, fmt.Sprintf("%s for %s", slice.Start.Local().Format("15:04:05.000"),
				time.Duration(slice.Length*float64(time.Second)).Round(time.Millisecond)))
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\tby chance %s\n", s.Node, place, strings.Join(when, ", "), chance(s.Chance))
	}
	table.Flush()
	for _, node := range t.Unknown {
		fmt.Fprintf(w, "  %s: unknown: no answer, no digests of that time, or digests of an older version of weir\n", node)
	}
	if len(t.Seen) == 0 && len(t.Unknown) < nodes {
		fmt.Fprintln(w, "  no node has seen it")
	}
	if t.Path != nil {
		fmt.Fprintf(w, "  path, back from %s; by chance there are %.2g nodes too many on it:\n", t.Path.Node, t.Extra)
		drawPath(w, "    ", "", *t.Path)
	}
}

// mostSlices bounds those that are printed for an interface.
const mostSlices = 3

func chance(p float64) string { return fmt.Sprintf("%.2g %%", 100*p) }

// drawPath draws a hop, and below it where the packet may have come from.
func drawPath(w io.Writer, indent, branch string, h digest.Hop) {
	fmt.Fprintf(w, "%s%s%s (by chance %s)\n", indent, branch, h.Node, chance(h.Chance))
	switch branch {
	case "├─ ":
		indent += "│  "
	case "└─ ":
		indent += "   "
	}
	for i, from := range h.From {
		branch := "├─ "
		if i == len(h.From)-1 {
			branch = "└─ "
		}
		drawPath(w, indent, branch, from)
	}
}

// findLoops looks for loops in captures.
func findLoops(ctx context.Context, in io.Reader, out io.Writer, captures []string, asJSON bool) error {
	all := []digest.FoundLoop{}
	packets := 0
	var errs []error
	for _, name := range captures {
		r, err := openCapture(name, in)
		if err != nil {
			return err
		}
		found, n, err := digest.Loops(ctx, r)
		errs = append(errs, err, r.Close())
		all, packets = append(all, found...), packets+n
		if ctx.Err() != nil {
			break
		}
	}
	if asJSON {
		return errors.Join(append(errs, terminal.PrintJSON(out, map[string]any{"packets": packets, "loops": all}))...)
	}
	for _, l := range all {
		fmt.Fprintf(out, "packet %d: %s came again and again, TTL %d to %d\n", l.Number, l.Flow, l.First, l.TTL)
	}
	fmt.Fprintf(out, "%s in %s packets\n", english.Plural(len(all), "loop is suspected", "loops are suspected"), humanize.Comma(int64(packets)))
	return errors.Join(errs...)
}
