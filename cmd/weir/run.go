package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/interrupt"
	"weir/control/attach"
	"weir/control/daemon"
	"weir/control/feed"
	"weir/control/observe/traffic"
	"weir/control/quantity"
)

// How often counters are shown, unless --interval says otherwise.
const (
	liveInterval = time.Second
	logInterval  = time.Minute
)

func newRun() *cobra.Command {
	var v *configFlags
	var interval time.Duration
	var takeover bool
	c := &cobra.Command{
		Use:   "run --config FILE | --iface NAME[,NAME] --block FILE...",
		Short: "Filter on interfaces until stopped",
		Long: `Filters by a configuration file, or by flags, which stand for a configuration
that keeps nothing: stopped by SIGINT or SIGTERM, weir detaches its program
(--keep leaves it attached) and forgets manual entries. With --config, the
program stays attached unless the file says keep: false; weir detach removes it.

Meanwhile, weir status, top, block, allow, lists, explain and the other commands
work from another terminal. SIGHUP, or weir reload, reads the configuration and
its files again and activates all of it or nothing. When the terminal of weir
run is gone, SIGHUP stops it: it may have locked its user out.

On a terminal, a line shows the traffic; otherwise it is logged every minute.

A tracker finds heavy hitters, and can rate-limit or block them:
  key=src|dst|flow|src/BITS|dst/BITS[,threshold=RATE|SHARE|RATE+SHARE]
  [,unit=packets|bytes][,interval=DURATION][,action=report|limit|block]
  [,limit=RATE][,burst=UNITS][,duration=DURATION][,anti_lockout=true|false]
  [,memory=SIZE]
It counts packets or bytes by source, destination, five-tuple or prefix. A flow
is heavy above the threshold: a rate as in 50kpps, 10Mbit/s or 10k/s, a share of
all traffic as in 0.1% (default 1%), or both as in 50kpps+1%. A flow that
is rate-limited or blocked is released after it was below half of the threshold
for the duration (default 1m). Allowed and failsafe packets are never
rate-limited or blocked. weir top shows what the trackers see.

If weir's program is attached already, because its daemon was killed or stopped
with --keep, it is replaced without a gap, and the counters continue. While
another daemon runs, that requires --takeover.`,
		Example: `  weir run --config /etc/weir/weir.yaml
  weir run --iface eth0 --block feed.txt --allow ours.txt --failsafe-port tcp/22
  weir run --iface eth0,eth1 --block feed.txt.gz --monitor
  weir run --iface veth0 --netns lab --block huge.txt --mode approx --bits-per-entry 12
  weir run --iface eth0 --block feed.txt --track key=src,threshold=50kpps,action=limit,limit=1kpps
  kill -HUP PID   # from weir status: read the lists again`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q: each list has its own --block or --allow", args[0])}
			}
			return nil
		},
	}
	v = newConfigFlags(c, "takeover", "interval", "json")
	v.attachFlags(c)
	f := c.Flags()
	f.BoolVar(&takeover, "takeover", false, "replace the daemon that runs on the interface")
	durationFlag(f, &interval, "interval", 0, "`time` between two displays of the counters (default 1s on a terminal, else 1m)")
	asJSON := f.Bool("json", false, "log JSON, one line per message")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := v.check(); err != nil {
			return err
		}
		if v.file == "" && len(v.ifaces) == 0 {
			return usageError{errors.New("--iface is required, or --config")}
		}
		read, err := v.Read()
		if err != nil {
			return err
		}
		if v.file == "" && len(read.Lists)+len(read.Trackers)+len(read.Scans) == 0 {
			fmt.Fprintln(c.ErrOrStderr(), "weir: no list is given: only what weir block adds is dropped (--block FILE)")
		}
		file := v.file
		if file != "" {
			if file, err = filepath.Abs(file); err != nil {
				return err
			}
		}
		how := &logging{forceJSON: *asJSON}
		how.Configure(read.Log)
		return runDaemon(c, interval, how, daemon.Options{Config: v, File: file, Takeover: takeover, Version: version, Logging: how})
	}
	return c
}

// start is the part of a run in which nothing is attached yet: until there is something to
// detach, a signal need not wait for lists that are sorted.
type start struct{ inOrder func() }

// Attaching ends it.
func (s *start) Attaching() {
	if s.inOrder == nil {
		s.inOrder = interrupt.InOrder()
	}
}

func (s *start) end() {
	if s.inOrder != nil {
		s.inOrder()
	}
}

// runDaemon filters until the command is stopped.
func runDaemon(c *cobra.Command, interval time.Duration, how *logging, o daemon.Options) error {
	ctx := c.Context()
	var started start
	defer started.end()
	o.Before = &started
	out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
	defer out.show("")
	o.Log = out.newLogger(how)
	// A log collector behind a pipe may end, and one may read the first lines only: writing
	// fails then, instead of ending the process. A signal that is caught, unlike one that is
	// ignored, kills children as it should.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	// Before the lists are read, for a reload must not kill.
	ctx, reload, stop := hangUps(ctx, newSession(c.InOrStdin(), c.OutOrStdout()), o.Log)
	defer stop()
	o.Progress = new(feed.Progress)
	stopShowing := showProgress(out, o.Progress)
	d, err := daemon.Start(ctx, o)
	stopShowing()
	if err != nil {
		return err
	}
	if interval <= 0 {
		interval = logInterval
		if out.terminal() {
			interval = liveInterval
		}
	}
	rates := make(chan traffic.Rates, 1)
	var showing sync.WaitGroup
	showing.Go(func() {
		for r := range rates {
			if out.terminal() {
				out.show(liveLine(r))
			} else {
				logRates(o.Log, r)
			}
		}
	})
	err = d.Run(ctx, reload, interval, rates)
	close(rates)
	showing.Wait()
	out.show("")
	keeps := d.Keeps()
	stopped := d.Stop()
	if errors.Is(err, attach.ErrNothingLeft) {
		// Somebody wanted that: the service manager must not start weir again.
		o.Log.Warn(err.Error())
		return stopped
	}
	if err != nil {
		return err
	}
	if stopped == nil {
		what := "stopped, detached"
		if keeps {
			what = "stopped, the program stays attached"
		}
		o.Log.Info(what)
	}
	return stopped
}

// hangUps returns what SIGHUP asks for: a reload if somebody has sent it. If it says
// that the terminal is gone, maybe since the filter has locked its user out, the
// context ends.
func hangUps(ctx context.Context, s *session, log *slog.Logger) (_ context.Context, reload <-chan os.Signal, stop func()) {
	received, sent := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case hangUp := <-received:
				if len(s.terminals) > 0 && s.lostSoon(ctx) {
					log.Warn("SIGHUP, and the terminal is gone: stopping")
					cancel()
					return
				}
				select {
				case sent <- hangUp:
				default: // a reload is due already
				}
			}
		}
	}()
	return ctx, sent, func() { signal.Stop(received); cancel() }
}

// showProgress shows how far a source has been read, if that takes long, until
// the function it returns is called.
func showProgress(out *console, p *feed.Progress) (stop func()) {
	done := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				out.show("")
				return
			case <-tick.C:
			}
			source, read, total := p.Get()
			if source != "" {
				out.reading(source, read, total)
			}
		}
	})
	return sync.OnceFunc(func() { close(done); showing.Wait() })
}

// liveLine returns rates as they are shown on a terminal.
func liveLine(r traffic.Rates) string {
	var reasons []string
	for _, name := range r.Top() {
		reasons = append(reasons, fmt.Sprintf("%s %s/s", name, count(r.Reasons[name])))
	}
	caught := "blocked"
	text := fmt.Sprintf("%s  %s  dropped %s/s", quantity.SI(r.Packets, 2, "pps"),
		quantity.SI(8*r.Bytes, 2, "bps"), count(r.Dropped))
	if r.Monitor {
		caught = "would be blocked"
		text = fmt.Sprintf("%s  %s  monitoring only", quantity.SI(r.Packets, 2, "pps"),
			quantity.SI(8*r.Bytes, 2, "bps"))
	}
	if len(reasons) > 0 {
		text += "  (" + strings.Join(reasons, ", ") + ")"
	}
	return text + fmt.Sprintf("  total %s, %s %s", count(float64(r.Total.Packets)), caught, count(float64(r.Blocked.Packets)))
}

// count returns a number as people read it at a glance.
func count(n float64) string { return quantity.SI(n, 2, "") }

// logRates logs rates.
func logRates(log *slog.Logger, r traffic.Rates) {
	attrs := []any{
		"pps", int(r.Packets), "bps", int(8 * r.Bytes), "drops_per_second", int(r.Dropped),
		"packets", r.Total.Packets, "bytes", r.Total.Bytes, "blocked", r.Blocked.Packets,
	}
	for _, name := range r.Top() {
		attrs = append(attrs, name+"_per_second", int(r.Reasons[name]))
	}
	log.Log(context.Background(), 0, "counters", attrs...)
}
