package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/capture"
	"weir/control/observe/events"
)

func newCapture() *cobra.Command {
	var socket, file string
	var reasons []string
	c := &cobra.Command{
		Use:   "capture --write FILE",
		Short: "Write dropped packets to a capture file",
		Long: `Writes the packets that weir events shows to a capture file (pcapng), until it
is stopped, or as --count and --duration say. The file has the first ` + fmt.Sprint(events.FrameSize) + ` bytes
of each frame, and the reason and the list as a comment, which Wireshark shows.
tcpdump does not see these packets, because weir drops them first.

Nothing is loaded or attached for it.`,
		Example: `  weir capture -w drops.pcapng --count 1000
  weir capture -w malformed.pcapng --reason truncated,malformed --duration 1h
  weir capture -w - --reason blocked | tcpdump -n -r -`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVarP(&file, "write", "w", "", "`file` to write; - is standard output")
	count := f.Int("count", 0, "`number` of packets after which to stop; 0: no limit")
	var duration time.Duration
	durationFlag(f, &duration, "duration", 0, "`time` after which to stop, as in 10m; 0: no limit")
	reasonFlag(c, &reasons)
	socketFlag(f, &socket)
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case file == "":
			return usageError{errors.New("--write is missing: name a file, or - for standard output")}
		case file == "-" && isTerminal(c.OutOrStdout()):
			return usageError{errors.New("a capture is nothing for a terminal: --write a file, or pipe it into tcpdump -r -")}
		case *count < 0:
			return usageError{fmt.Errorf("--count %d: want a number of packets, or 0 for any", *count)}
		}
		ctx := c.Context()
		if duration > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, duration)
			defer cancel()
		}
		happened, err := client.Dial(socket).Events(ctx, api.Events{Reasons: reasons, Frames: true, Follow: true})
		if err != nil {
			return err
		}
		out := terminal.Raw(c.OutOrStdout())
		if file != "-" {
			f, err := os.Create(file)
			if err != nil {
				return err
			}
			defer f.Close() // each packet is written by now
			out = f
		}
		w, err := capture.NewWriter(out, "weir "+version)
		if err != nil {
			return err
		}
		var written, of, lost int
		for e, bad := range happened {
			if err = bad; err != nil {
				err = unlessDone(ctx, err)
				break
			}
			if lost += int(e.Lost); e.Lost != 0 {
				continue
			}
			if err = w.Write(capture.Of(e)); err != nil {
				break
			}
			of += int(e.OneIn)
			if written++; written == *count {
				break
			}
		}
		sum := humanize.Comma(int64(written)) + " " + english.PluralWord(written, "packet", "")
		if of > written {
			sum += " of some " + humanize.Comma(int64(of))
		}
		if lost > 0 {
			sum += ", and " + humanize.Comma(int64(lost)) + " are lost: they came too fast"
		}
		fmt.Fprintln(c.ErrOrStderr(), sum)
		return err
	}
	return c
}
