package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/observe/events"
)

func newEvents() *cobra.Command {
	var socket string
	var reasons []string
	c := &cobra.Command{
		Use:   "events [--first-seen] [--follow]",
		Short: "Show dropped packets, and why",
		Long: `Shows the packets that the running daemon drops, or would drop if they were not
on an allow list, a reply, or let pass by monitor mode or --malformed pass,
each with its time, interface, reason and list. It ends after a second; with
--follow, when it is stopped; with --count, after that many packets.

Events are produced only while a client reads them. In a flood they are sampled,
marked "1 of N", so that all reasons and interfaces together produce at most
10,000 a second. If some are lost nevertheless, it says how many.

With --first-seen, it shows the first packets of flows that were not seen lately
instead, the important ones first, as first_seen in weir.yaml says.`,
		Example: `  weir events
  weir events --follow --reason rate-limited,heavy
  weir events --follow --first-seen
  weir events --follow --json | jq -r 'select(.list == "feed").src'`,
		Args: noArgs,
	}
	f := c.Flags()
	follow := f.BoolP("follow", "f", false, "go on until stopped")
	firstSeen := f.Bool("first-seen", false, "the first packets of new flows, dropped or not")
	count := f.Int("count", 0, "`number` of packets after which to stop; 0: no limit")
	reasonFlag(c, &reasons)
	socketFlag(f, &socket)
	asJSON := f.Bool("json", false, "print JSON, a line each")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *count < 0 {
			return usageError{fmt.Errorf("--count %d: want a number of packets, or 0 for any", *count)}
		}
		asked := api.Events{Reasons: reasons, Follow: *follow || *count > 0, FirstSeen: *firstSeen}
		happened, err := client.Dial(socket).Events(c.Context(), asked)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		show := func(e *api.Event) error { return printEvent(out, e) }
		if *asJSON {
			lines := json.NewEncoder(out)
			show = func(e *api.Event) error { return lines.Encode(e) }
		}
		shown := 0
		for e, err := range happened {
			if err == nil {
				err = show(e)
			}
			if err != nil {
				return unlessDone(c.Context(), err)
			}
			if e.Lost == 0 {
				shown++
			}
			if *count > 0 && shown == *count {
				return nil
			}
		}
		if shown == 0 {
			fmt.Fprintln(c.ErrOrStderr(), "no such packet within a second: --follow goes on")
		}
		return nil
	}
	return c
}

func reasonFlag(c *cobra.Command, reasons *[]string) {
	listFlag(c.Flags(), "reason", "only packets with one of these `reasons`, joined by commas, as in blocked,rate-limited", func(name string) error {
		_, err := events.ParseReason(name)
		*reasons = append(*reasons, name)
		return err
	})
	var names []string
	for _, r := range events.Reasons() {
		names = append(names, r.String())
	}
	choices(c, "reason", names...)
}

// unlessDone is the error by which events have ended, unless who asked for them
// has ended them.
func unlessDone(ctx context.Context, err error) error {
	if errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// printEvent prints a line such as
//
//	08:16:54.123  eth0     drop  blocked    udp 192.0.2.1:4000 > 203.0.113.2:53  60 bytes  list feed  1 of 4
func printEvent(out io.Writer, e *api.Event) error {
	at := e.Time.Local().Format("15:04:05.000")
	if e.Lost != 0 {
		_, err := fmt.Fprintf(out, "%s  %s events are lost\n", at, humanize.Comma(int64(e.Lost)))
		return err
	}
	line := fmt.Sprintf("%s  %-8s %s  %-9s  %s  %d bytes", at, e.Interface, e.Verdict, e.Reason, flowOf(e), e.Length)
	if e.Pattern != "" {
		line += "  " + e.Pattern
	}
	if e.List != "" {
		line += "  list " + e.List
	}
	if e.Inner {
		line += "  in a tunnel"
	}
	if e.Importance > 0 {
		line += fmt.Sprintf("  new flow, importance %d", e.Importance)
	}
	if e.OneIn > 1 {
		line += fmt.Sprintf("  1 of %d", e.OneIn)
	}
	if e.FirstTTL != 0 {
		line = fmt.Sprintf("%s  %-8s %s  %-9s  %s  in a loop, TTL %d to %d", at, e.Interface, e.Verdict, e.Reason, flowOf(e), e.FirstTTL, e.TTL)
	}
	if e.Direction == "out" {
		line += "  out"
	}
	if e.Netns != "" {
		line += "  in namespace " + e.Netns
	}
	_, err := fmt.Fprintln(out, line)
	return err
}

// flowOf is the flow that a packet is of, as in lists.
func flowOf(e *api.Event) string {
	if e.Src == "" {
		return "no addresses"
	}
	side := func(addr string, port *int) string {
		if port == nil {
			return addr
		}
		return net.JoinHostPort(addr, strconv.Itoa(*port))
	}
	return fmt.Sprintf("%s %s > %s", e.Proto, side(e.Src, e.SrcPort), side(e.Dst, e.DstPort))
}
