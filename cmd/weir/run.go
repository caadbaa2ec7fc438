package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/run"
)

// How often counters are shown, unless --interval says otherwise.
const (
	liveInterval = time.Second
	logInterval  = 5 * time.Second
)

func newRun() *cobra.Command {
	var o run.Options
	var ifaces []string
	var netns string
	var interval time.Duration
	c := &cobra.Command{
		Use:   "run --iface NAME[,NAME] --block FILE...",
		Short: "Filter on interfaces until stopped",
		Long: `Reads the lists, attaches to the interfaces, and filters until it is stopped by
SIGINT or SIGTERM. SIGHUP reads the lists again and puts them in force in one
step; if one is refused, the old ones stay. Run from a terminal, it takes SIGHUP
for the loss of that terminal, and stops.

On a terminal a line shows what comes through; otherwise the log says so every
few seconds.

Where weir is filtering already, because it was killed or stopped with --keep,
its program is replaced without a gap, and its counters go on. While another
weir runs there, that wants --takeover.`,
		Example: `  weir run --iface eth0 --block feed.txt --allow ours.txt --failsafe-port tcp/22
  weir run --iface eth0,eth1 --block feed.txt.gz --monitor
  weir run --iface veth0 --netns lab --block huge.txt --mode approx --bits-per-entry 12
  kill -HUP PID   # as weir status shows it: read the lists again`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("what is %q? each list has its own --block or --allow", args[0])}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringSliceVar(&ifaces, "iface", nil, "`interfaces` to filter on, joined by commas")
	filterFlags(c, &o.Rules)
	f.TextVar(&o.XDP, "xdp", o.XDP, "where the program runs: `place` native, generic (slower, any driver) or offload")
	choices(c, "xdp", "native", "generic", "offload")
	f.BoolVar(&o.Keep, "keep", false, "leave the program in force when stopped")
	f.BoolVar(&o.Takeover, "takeover", false, "take over from another weir that runs on the interface")
	f.BoolVar(&o.Wide, "wide", false, "let a block list hold half of IPv4 or IPv6, or more")
	placeFlags(f, &netns, &o.Pins)
	f.DurationVar(&interval, "interval", 0, "how often counters are shown (default 1s on a terminal, else 5s)")
	asJSON := f.Bool("json", false, "log JSON, a line an event")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.Targets = targets(ifaces, netns)
		switch {
		case len(o.Targets) == 0:
			return usageError{fmt.Errorf("which interface? name it with --iface")}
		case len(o.Rules.Block) == 0:
			return usageError{fmt.Errorf("what is to be blocked? name a list with --block")}
		}
		o.Version = version
		return filter(c, o, interval, *asJSON)
	}
	return c
}

// placeFlags are the flags that say where weir is attached and pinned.
func placeFlags(f *pflag.FlagSet, netns *string, pins *run.Pins) {
	*pins = run.DefaultPins
	f.StringVar(netns, "netns", "", "network `namespace` of the interfaces: a name as of ip-netns, or a path")
	pinsFlag(f, pins)
}

func pinsFlag(f *pflag.FlagSet, pins *run.Pins) {
	f.StringVar((*string)(pins), "pins", string(run.DefaultPins), "`directory` of pins, on a BPF file system")
}

// targets are the interfaces of a namespace, each once.
func targets(ifaces []string, netns string) []run.Target {
	var all []run.Target
	for _, name := range ifaces {
		t := run.Target{Netns: netns, Iface: strings.TrimSpace(name)}
		if t.Iface != "" && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// filter runs a filter until the command is stopped.
func filter(c *cobra.Command, o run.Options, interval time.Duration, asJSON bool) error {
	ctx := c.Context()
	// Before the lists are read, for a reload must not kill.
	reload := make(chan os.Signal, 1)
	if isTerminal(c.InOrStdin()) || isTerminal(c.OutOrStdout()) {
		// The terminal has gone, maybe since the filter locked its user out.
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
		defer stop()
	} else {
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
	}

	out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
	defer out.show("")
	o.Log = out.logger(asJSON)
	o.Progress = progress(out)
	filter, err := run.Start(ctx, o)
	out.show("")
	if err != nil {
		return err
	}
	if interval <= 0 {
		interval = logInterval
		if out.terminal() {
			interval = liveInterval
		}
	}
	show := func(r run.Rates) { logRates(o, r) }
	if out.terminal() {
		show = func(r run.Rates) { out.show(liveLine(r)) }
	}
	err = filter.Serve(ctx, reload, interval, show)
	out.show("")
	stopped := filter.Stop()
	if err != nil {
		return err
	}
	if stopped == nil {
		what := "stopped, detached"
		if o.Keep {
			what = "stopped, the program stays in force"
		}
		o.Log.Info(what)
	}
	return stopped
}

// progress shows how far a file has been read, if that takes long enough.
func progress(out *console) func(file string, done, total int64) {
	last := time.Now()
	return func(file string, done, total int64) {
		if now := time.Now(); now.Sub(last) > 100*time.Millisecond {
			last = now
			text := fmt.Sprintf("reading %s: %s", file, humanize.Bytes(uint64(done)))
			if total > 0 {
				text += fmt.Sprintf(" (%d %%)", 100*done/total)
			}
			out.show(text)
		}
	}
}

// liveLine is how rates are shown on a terminal.
func liveLine(r run.Rates) string {
	var reasons []string
	for _, name := range r.Top() {
		reasons = append(reasons, fmt.Sprintf("%s %s/s", name, count(r.Reasons[name])))
	}
	text := fmt.Sprintf("%s  %s  dropped %s/s", humanize.SIWithDigits(r.Packets, 2, "pps"),
		humanize.SIWithDigits(8*r.Bytes, 2, "bit/s"), count(r.Dropped))
	if r.Monitor {
		text = fmt.Sprintf("%s  %s  monitoring only", humanize.SIWithDigits(r.Packets, 2, "pps"),
			humanize.SIWithDigits(8*r.Bytes, 2, "bit/s"))
	}
	if len(reasons) > 0 {
		text += "  (" + strings.Join(reasons, ", ") + ")"
	}
	return text + fmt.Sprintf("  total %s, blocked %s", count(float64(r.Total.Packets)), count(float64(r.Blocked.Packets)))
}

// count is a number as people read it at a glance.
func count(n float64) string { return strings.TrimSpace(humanize.SIWithDigits(n, 2, "")) }

// logRates is how rates are shown in the log.
func logRates(o run.Options, r run.Rates) {
	attrs := []any{
		"pps", int(r.Packets), "bps", int(8 * r.Bytes), "drops_per_second", int(r.Dropped),
		"packets", r.Total.Packets, "bytes", r.Total.Bytes, "blocked", r.Blocked.Packets,
	}
	for _, name := range r.Top() {
		attrs = append(attrs, name+"_per_second", int(r.Reasons[name]))
	}
	o.Log.Log(context.Background(), 0, "counters", attrs...)
}
