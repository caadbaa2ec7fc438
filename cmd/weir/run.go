package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/api"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/control/ruleset"
	"weir/control/run"
)

// How often counters are shown, unless --interval says otherwise.
const (
	liveInterval = time.Second
	logInterval  = time.Minute
)

func newRun() *cobra.Command {
	var o run.Options
	var ifaces []string
	var netns string
	var interval time.Duration
	var xdp run.Mode
	var configuration string
	c := &cobra.Command{
		Use:   "run --config FILE | --iface NAME[,NAME] --block FILE...",
		Short: "Filter on interfaces until stopped",
		Long: `With --config it runs as a daemon does: lists from feeds and from commands (weir
block), interfaces as they come and go, all as weir.yaml says. SIGHUP, or weir
reload, reads that again and puts it in force, all or nothing. It leaves the
program in force when it stops: weir detach takes it off.

Without it, the command line says all. It reads the lists, attaches to the
interfaces, and filters until it is stopped by SIGINT or SIGTERM. SIGHUP reads
the lists again and puts them in force in one step; if one is refused, the old
ones stay. Run from a terminal, it takes SIGHUP for the loss of that terminal,
and stops.

On a terminal a line shows what comes through; otherwise the log says so every
minute.

A tracker finds heavy flows, and can limit or block them:
  key=src|dst|flow|src/BITS|dst/BITS[,threshold=RATE|SHARE|RATE+SHARE]
  [,unit=packets|bytes][,interval=DURATION][,action=report|limit|block]
  [,limit=RATE][,burst=UNITS][,duration=DURATION][,memory=SIZE]
It counts packets or bytes by source, destination, five-tuple or prefix. A flow
is heavy above the threshold: a rate as in 50kpps, 10Mbit/s or 10k/s, a share of
all traffic as in 0.1% (default 1%), or both as in 50kpps+1%. A limited or
blocked flow is released once it has been below half of the threshold for the
duration (default 1m). Packets that are allowed or failsafe are never limited or
blocked. weir top shows what the trackers see.

Where weir is filtering already, because it was killed or stopped with --keep,
its program is replaced without a gap, and its counters go on. While another
weir runs there, that wants --takeover.`,
		Example: `  weir run --config /etc/weir/weir.yaml
  weir run --iface eth0 --block feed.txt --allow ours.txt --failsafe-port tcp/22
  weir run --iface eth0,eth1 --block feed.txt.gz --monitor
  weir run --iface veth0 --netns lab --block huge.txt --mode approx --bits-per-entry 12
  weir run --iface eth0 --block feed.txt --track key=src,threshold=50kpps,action=limit,limit=1kpps
  kill -HUP PID   # as weir status shows it: read the lists again`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("what is %q? each list has its own --block or --allow", args[0])}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&configuration, "config", "c", "", "`file` that says all of it, weir.yaml")
	f.StringSliceVar(&ifaces, "iface", nil, "`interfaces` to filter on, joined by commas")
	filterFlags(c, &o.Rules)
	f.TextVar(&xdp, "xdp", xdp, "where the program runs: `place` native, generic (slower, any driver) or offload")
	choices(c, "xdp", "native", "generic", "offload")
	f.BoolVar(&o.Keep, "keep", false, "leave the program in force when stopped")
	f.BoolVar(&o.Takeover, "takeover", false, "take over from another weir that runs on the interface")
	f.Func("track", "`tracker` of heavy flows, as above; repeat for up to 4", func(s string) error {
		spec, err := heavy.Parse(s)
		o.Track = append(o.Track, spec)
		return err
	})
	f.IntVar(&o.Learn, "learn", 0, "hot `elements` that may have weights, so that they are not taken for listed ones; "+
		"0: none (default in approximate mode "+strconv.Itoa(learn.DefaultElements)+")")
	f.StringVar(&o.Socket, "socket", api.DefaultSocket, "`path` of the socket that commands such as weir top ask; empty: none")
	f.StringVar(&o.Metrics, "metrics", "", "`address` and port on which Prometheus may scrape /metrics, such as 127.0.0.1:9477; "+
		"without it, the socket alone has them")
	f.BoolVar(&o.Wide, "wide", false, "let a block list hold half of IPv4 or IPv6, or more")
	placeFlags(f, &netns, &o.Pins)
	durationFlag(f, &interval, "interval", 0, "how often counters are shown (default 1s on a terminal, else 1m)")
	asJSON := f.Bool("json", false, "log JSON, a line an event")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if configuration != "" {
			if bad := besides(c, "config", "takeover", "interval", "json"); bad != "" {
				return usageError{fmt.Errorf("--%s does not go with --config: say it in the file", bad)}
			}
			file, err := config.Load(configuration)
			if err != nil {
				return err
			}
			var how logging
			follow := func(l config.Log) { how.set(slog.Level(l.Level), *asJSON || l.Format == config.LogJSON) }
			follow(file.Log)
			return runServer(c, interval, &how, func(ctx context.Context, log *slog.Logger, p ruleset.Progress) (server, error) {
				return daemon.Start(ctx, daemon.Options{
					Config: configuration, Takeover: o.Takeover, Version: version, Log: log, Progress: p, Logging: follow,
				})
			})
		}
		o.Places = places(ifaces, netns, xdp)
		switch {
		case len(o.Places) == 0:
			return usageError{fmt.Errorf("which interface? name it with --iface")}
		case len(o.Rules.Block) == 0 && len(o.Track) == 0:
			return usageError{fmt.Errorf("what is to be blocked? name a list with --block, or heavy flows with --track")}
		}
		if !c.Flags().Changed("learn") {
			o.Learn = run.LearnByMode
		} else if o.Learn < 0 || o.Learn > run.MaxLearn {
			return usageError{fmt.Errorf("--learn %d: want 0 to %d elements", o.Learn, run.MaxLearn)}
		}
		if _, _, err := net.SplitHostPort(o.Metrics); o.Metrics != "" && err != nil {
			return usageError{fmt.Errorf("--metrics %s: want host:port, as in 127.0.0.1:9477", o.Metrics)}
		}
		o.Version = version
		var how logging
		how.set(slog.LevelInfo, *asJSON)
		return runServer(c, interval, &how, func(ctx context.Context, log *slog.Logger, p ruleset.Progress) (server, error) {
			o.Log, o.Progress = log, p
			return run.Start(ctx, o)
		})
	}
	return c
}

// besides finds a flag that was given and is none of these.
func besides(c *cobra.Command, names ...string) (bad string) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			bad = f.Name
		}
	})
	return bad
}

// server is what filters until it is stopped.
type server interface {
	Serve(ctx context.Context, reload <-chan os.Signal, interval time.Duration, show func(run.Rates)) error
	Keeps() bool // the program stays in force after Stop
	Stop() error
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

// places are the interfaces of a namespace, each once, and how to filter there.
func places(ifaces []string, netns string, xdp run.Mode) []run.Place {
	var all []run.Place
	for _, t := range targets(ifaces, netns) {
		all = append(all, run.Place{Target: t, XDP: xdp})
	}
	return all
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

// runServer runs what start gives until the command is stopped.
func runServer(c *cobra.Command, interval time.Duration, how *logging,
	start func(context.Context, *slog.Logger, ruleset.Progress) (server, error)) error {
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
	log := out.logger(how)
	filter, err := start(ctx, log, progress(out))
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
	show := func(r run.Rates) { logRates(log, r) }
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
		if filter.Keeps() {
			what = "stopped, the program stays in force"
		}
		log.Info(what)
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
	caught := "blocked"
	text := fmt.Sprintf("%s  %s  dropped %s/s", humanize.SIWithDigits(r.Packets, 2, "pps"),
		humanize.SIWithDigits(8*r.Bytes, 2, "bit/s"), count(r.Dropped))
	if r.Monitor {
		caught = "monitored"
		text = fmt.Sprintf("%s  %s  monitoring only", humanize.SIWithDigits(r.Packets, 2, "pps"),
			humanize.SIWithDigits(8*r.Bytes, 2, "bit/s"))
	}
	if len(reasons) > 0 {
		text += "  (" + strings.Join(reasons, ", ") + ")"
	}
	return text + fmt.Sprintf("  total %s, %s %s", count(float64(r.Total.Packets)), caught, count(float64(r.Blocked.Packets)))
}

// count is a number as people read it at a glance.
func count(n float64) string { return strings.TrimSpace(humanize.SIWithDigits(n, 2, "")) }

// logRates is how rates are shown in the log.
func logRates(log *slog.Logger, r run.Rates) {
	attrs := []any{
		"pps", int(r.Packets), "bps", int(8 * r.Bytes), "drops_per_second", int(r.Dropped),
		"packets", r.Total.Packets, "bytes", r.Total.Bytes, "blocked", r.Blocked.Packets,
	}
	for _, name := range r.Top() {
		attrs = append(attrs, name+"_per_second", int(r.Reasons[name]))
	}
	log.Log(context.Background(), 0, "counters", attrs...)
}
