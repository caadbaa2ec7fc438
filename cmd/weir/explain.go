package main

import (
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/ruleset"
	"weir/filter/verdict"
)

func newExplain() *cobra.Command {
	var r ruleset.Rules
	var socket string
	c := &cobra.Command{
		Use:   "explain [--block FILE...] ADDRESS|FLOW",
		Short: "Say whether a packet would be dropped, and which line says so",
		Long: `Says whether a packet would be dropped and why: the verdict, what the filter
answers, and all lines of the lists that match, the most specific first.

An address stands for a packet from it and, where the lists have destinations,
for one to it. A flow is written as in a list, in quotes because of the shell:
'tcp 192.0.2.1:1234 > 198.51.100.7:443'. Without --block and --allow, the lists
of the running weir are asked: by its socket where it runs with a configuration,
which also tells who added an entry, when and why; otherwise, or for --iface, by
the files that it was started with.`,
		Example: `  weir explain 192.0.2.1
  weir explain --block feed.txt --allow ours.txt 2001:db8::7
  weir explain --block flows.txt 'tcp 192.0.2.1:1234 > 198.51.100.7:443'
  weir explain --exit-code 192.0.2.1 || echo "would be dropped"`,
		Args: someArgs("ADDRESS or FLOW"),
	}
	f := c.Flags()
	v := newConfigFlags(c, "exit-code", "json", "socket")
	socketFlag(f, &socket)
	exitCode := f.Bool("exit-code", false, "exit with 3 if it would be dropped")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
		query := strings.Join(args, " ") // a flow may come as several words
		if !slices.ContainsFunc([]string{"block", "allow"}, c.Flags().Changed) {
			e, err := api.Dial(socket).Explain(c.Context(), query)
			switch {
			case err != nil:
				return wrongQuery(err)
			default:
				return tell(c.OutOrStdout(), e, *asJSON, printAnswer, *exitCode && e.Drops())
			}
		}
		var e *explain.Explanation
		var err error
		conf, err := v.offline()
		if err != nil {
			return err
		}
		r.Block, r.Allow, r.Direction, r.Lenient, r.MaxBad = v.block, v.allow, v.direction, v.lenient, ruleset.Share(v.maxBad)
		r.Mode, r.BitsPerKey, r.Monitor, r.DropMalformed = conf.Mode, conf.BitsPerEntry, conf.Monitor, conf.Malformed == verdict.Drop
		r.FailsafePorts = conf.Failsafe.Ports
		for _, f := range conf.Failsafe.Prefixes {
			r.FailsafePrefixes = append(r.FailsafePrefixes, f.Prefix)
		}
		e, err = explain.Explain(query, r, nil)
		out.show("")
		if err != nil {
			return wrongQuery(err)
		}
		return tell(c.OutOrStdout(), e, *asJSON, printExplanation, *exitCode && e.Drops())
	}
	return c
}

// wrongQuery makes a usageError of what is wrong with a query, whoever was asked.
func wrongQuery(err error) error {
	var bad *api.BadRequest
	if errors.Is(err, explain.ErrQuery) || errors.As(err, &bad) {
		return usageError{err}
	}
	return err
}

// tell prints an explanation, and gives errDropped if dropped is set.
func tell[E any](out io.Writer, e E, asJSON bool, print func(io.Writer, E), dropped bool) error {
	if !asJSON {
		print(out, e)
	} else if err := printJSON(out, e); err != nil {
		return err
	}
	if dropped {
		return errDropped
	}
	return nil
}

// printAnswer prints what a daemon has answered.
func printAnswer(w io.Writer, e *api.Explanation) {
	fmt.Fprintf(w, "%s: %s (%s)\n", e.Question, e.Verdict, e.Reason)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range e.Matches {
		name := m.List
		if m.Packets != nil {
			name += ", " + plural(int(*m.Packets), "packet", "packets")
		}
		fmt.Fprintf(t, "  %s\tlist %s\t%s\t%s\n", m.Action, name, m.Entry, origin(m, time.Now()))
	}
	t.Flush()
	if len(e.Matches) == 0 {
		fmt.Fprintln(w, "  no list holds it")
	}
}

// origin says where an entry is from.
func origin(m api.Match, now time.Time) string {
	text := m.Source
	switch {
	case m.Line > 0:
		text += fmt.Sprintf(":%d", m.Line)
	case text == "":
		text = "by command"
	}
	if m.UID != nil {
		text += " of " + userName(*m.UID)
	}
	if m.Added != nil {
		text += ", " + relative(m.Added, now)
	}
	if m.Expires != nil {
		text += ", expires " + relative(m.Expires, now)
	}
	if m.Reason != "" {
		text += ": " + m.Reason
	}
	return text
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "user " + id
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
