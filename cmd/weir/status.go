package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/attach"
)

func newStatus() *cobra.Command {
	var pins attach.Pins
	c := &cobra.Command{
		Use:   "status",
		Short: "Show where weir is attached, and what it has dropped and why",
		Long: `Shows for each interface how weir is attached to it and since when, which lists
are active, and how many packets left for which reason.

All of it is read from the kernel, so it is available even if the daemon is not
running.`,
		Example: `  weir status
  weir status --json | jq '.attachments[] | {interface, dropped}'`,
		Args: noArgs,
	}
	pinsFlag(c.Flags(), &pins)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		all, err := attach.ReadStatus(pins)
		out := c.OutOrStdout()
		if *asJSON {
			if bad := printJSON(out, map[string]any{"attachments": all}); bad != nil {
				return bad
			}
			return err
		}
		if len(all) == 0 && err == nil {
			fmt.Fprintln(out, "weir is attached nowhere")
		}
		for n, i := range all {
			if n > 0 {
				fmt.Fprintln(out)
			}
			printInterface(out, i)
		}
		return err
	}
	return c
}

func printInterface(w io.Writer, i attach.Status) {
	name := i.Name
	if i.Netns != "" {
		name += " in namespace " + i.Netns
	}
	fmt.Fprintln(w, name)
	switch {
	case i.Severed && i.Running:
		fmt.Fprintln(w, "  GONE: the interface is gone or the program was removed, nothing is filtered;",
			"the daemon waits for the interface")
	case i.Severed:
		fmt.Fprintln(w, "  DETACHED: the interface is gone or the program was removed, nothing is filtered;",
			"`weir detach` removes the remains")
	}
	mode := i.Mode
	if i.BitsPerEntry > 0 {
		mode = fmt.Sprintf("%s, %g bits an entry", mode, i.BitsPerEntry)
	}
	if i.Monitor {
		mode += ", MONITOR ONLY"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t"+format+"\n", append([]any{name}, args...)...)
	}
	if !i.Severed {
		row("program", "id %d, %s XDP", i.ProgramID, i.XDP)
	}
	if i.PID != 0 {
		state := "not running, the program continues"
		switch {
		case i.Running:
			state = "running"
		case i.Severed:
			state = "not running"
		}
		row("process", "PID %d, %s; weir %s", i.PID, state, i.Version)
		row("since", "%s (%s), lists of %s", i.Since.Format(time.DateTime), i.Age(time.Now()), i.Loaded.Format(time.DateTime))
		row("mode", "%s", mode)
		row("entries", "%s, %s of kernel memory", humanize.Comma(int64(i.Entries)), humanize.IBytes(uint64(i.KernelBytes)))
		if r := i.FalsePositiveRate; i.BitsPerEntry > 0 && r > 0 { // approximate mode
			row("false drops", "about 1 in %s unlisted packets", humanize.Comma(int64(math.Round(1/r))))
		}
	}
	if always := strings.Join(append(i.FailsafePorts, i.FailsafePrefixes...), ", "); always != "" {
		row("failsafe", "%s", always)
	}
	row("packets", "%s", counted(i.Total))
	row("dropped", "%s", counted(i.Dropped))
	for _, reason := range i.TopReasons() {
		row("  "+reason, "%s", counted(i.Reasons[reason]))
	}
	for _, l := range i.Lists {
		if l.Allow {
			row("allow "+l.Name, "%s", entries(l))
		}
	}
	files := map[string]attach.List{}
	for _, l := range i.Lists {
		files[l.Name] = l
	}
	for _, c := range i.ByList {
		if c.List == "" {
			row("block", "%s by all lists: approximate mode does not know which", counted(c.Count))
			continue
		}
		l := files[c.List]
		if l.Entries == 0 && c.Packets == 0 && strings.HasSuffix(l.Name, api.ManualSuffix) {
			continue // there are no manual entries
		}
		if i.BitsPerEntry > 0 { // in approximate mode, which counts no list
			row("block "+c.List, "%s", entries(l))
			continue
		}
		row("block "+c.List, "%s; %s", counted(c.Count), entries(l))
	}
	t.Flush()
}

// entries says how many a list has, and where they come from if that is a file.
func entries(l attach.List) string {
	text := plural(l.Entries, "entry", "entries")
	if l.Source != "" {
		text += ", " + l.Source
	}
	return text
}

func counted(c attach.Count) string {
	return plural(int(c.Packets), "packet", "packets") + ", " + humanize.Bytes(c.Bytes)
}

// plural is a number of things.
func plural(n int, one, more string) string {
	return humanize.Comma(int64(n)) + " " + english.PluralWord(n, one, more)
}

func newDetach() *cobra.Command {
	var pins attach.Pins
	var netns string
	var ifaces []string
	c := &cobra.Command{
		Use:   "detach",
		Short: "Detach weir from its interfaces",
		Long: `Detaches weir's program from an interface and removes its pins. Other programs
are left alone. Without --iface, it detaches weir if it is attached only once.`,
		Example: `  weir detach
  weir detach --iface eth0
  weir detach --all`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringSliceVar(&ifaces, "iface", nil, "`interfaces` to detach from, joined by commas")
	all := f.Bool("all", false, "detach from all interfaces, in all namespaces")
	placeFlags(f, &netns, &pins)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *all && len(ifaces) > 0 {
			return usageError{fmt.Errorf("--all and --iface exclude each other")}
		}
		detached := []attach.Interface{}
		var err error
		switch {
		case *all:
			detached, err = attach.DetachAll(pins)
		case len(ifaces) == 0:
			detached, err = attach.DetachOnly(pins)
		default:
			for _, t := range targets(ifaces, netns) {
				if bad := attach.Detach(pins, t); bad != nil {
					err = cmp.Or(err, bad)
					continue
				}
				detached = append(detached, t)
			}
		}
		if err != nil && len(detached) == 0 && !*asJSON {
			return err // "detached from nothing" would sound like all is well
		}
		return cmp.Or(printDetached(c.OutOrStdout(), detached, *asJSON), err)
	}
	return c
}

func printDetached(w io.Writer, detached []attach.Interface, asJSON bool) error {
	if asJSON {
		type target struct {
			Interface string `json:"interface"`
			Netns     string `json:"netns,omitempty"`
		}
		list := []target{}
		for _, t := range detached {
			list = append(list, target{t.Iface, t.Netns})
		}
		return printJSON(w, map[string]any{"detached": list})
	}
	for _, t := range detached {
		fmt.Fprintln(w, "detached from", t)
	}
	if len(detached) == 0 {
		fmt.Fprintln(w, "detached from nothing")
	}
	return nil
}
