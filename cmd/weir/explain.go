package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weir/control/explain"
	"weir/control/ruleset"
	"weir/control/run"
)

func newExplain() *cobra.Command {
	var r ruleset.Rules
	var netns, iface string
	var pins run.Pins
	c := &cobra.Command{
		Use:   "explain [--block FILE...] ADDRESS|FLOW",
		Short: "Say whether a packet would be dropped, and which line of which list says so",
		Long: `Says whether a packet would be dropped and why: the verdict, what the filter
answers, and all lines of the lists that match, the most specific first.

An address stands for a packet from it and, where the lists have destinations,
for one to it. A flow is written as in a list, in quotes because of the shell:
'tcp 192.0.2.1:1234 > 198.51.100.7:443'. Without --block and --allow, the lists
of the running weir are asked.`,
		Example: `  weir explain 192.0.2.1
  weir explain --block feed.txt --allow ours.txt 2001:db8::7
  weir explain --block flows.txt 'tcp 192.0.2.1:1234 > 198.51.100.7:443'
  weir explain --exit-code 192.0.2.1 || echo "would be dropped"`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
	}
	f := c.Flags()
	filterFlags(c, &r)
	f.StringVar(&iface, "iface", "", "`interface` whose running lists are asked")
	placeFlags(f, &netns, &pins)
	exitCode := f.Bool("exit-code", false, "exit with 3 if it would be dropped")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
		query := strings.Join(args, " ") // a flow may come as several words
		var e *explain.Explanation
		var err error
		if len(r.Block)+len(r.Allow) > 0 {
			e, err = explain.Explain(query, r, progress(out))
		} else {
			e, err = explain.Running(query, pins, run.Target{Netns: netns, Iface: iface}, progress(out))
		}
		out.show("")
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(c.OutOrStdout(), e)
		} else {
			printExplanation(c.OutOrStdout(), e)
		}
		if err == nil && *exitCode && e.Drops() {
			return errDropped
		}
		return err
	}
	return c
}

func printExplanation(w io.Writer, e *explain.Explanation) {
	for _, note := range e.Notes {
		fmt.Fprintln(w, "note:", note)
	}
	for _, a := range e.Answers {
		fmt.Fprintf(w, "%s: %s (%s%s)\n", a.Packet, a.Verdict, a.Reason, byList(a.List))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, p := range a.Filter {
			fmt.Fprintf(t, "  filter\t%s\t%s %s%s\n", p.Shape, p.Action, p.Key, byList(p.List))
		}
		if len(a.Filter) == 0 {
			fmt.Fprintf(t, "  filter\tnot listed\n")
		}
		for _, m := range a.Matches {
			fmt.Fprintf(t, "  %s\t%s\t%s:%d: %s\n", m.Action, m.Shape, m.File, m.Line, m.Text)
		}
		t.Flush()
		switch {
		case a.FalsePositive:
			fmt.Fprintln(w, "  no line of any list says so: a false positive of the approximate filter")
		case len(a.Matches) == 0:
			fmt.Fprintln(w, "  no line of any list matches")
		}
		if len(a.Depends) > 0 {
			fmt.Fprintln(w, "  depending on the rest of the packet:")
			for _, m := range a.Depends {
				fmt.Fprintf(w, "    %s  %s:%d: %s\n", m.Action, m.File, m.Line, m.Text)
			}
		}
		if a.DependsMore > 0 {
			fmt.Fprintf(w, "    and %d lines more\n", a.DependsMore)
		}
	}
}

func byList(name string) string {
	if name == "" {
		return ""
	}
	return ", list " + name
}
