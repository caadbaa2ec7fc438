package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/ruleset"
	"weir/control/top"
)

// pageWidth is the width when the output is not a terminal.
const pageWidth = 80

// topView is the contents of `weir top`: flows by the key of a tracker, or reasons.
type topView string

var topViews = []string{"src", "dst", "flow", top.ByDropped, top.ByReason}

// UnmarshalText reads a view.
func (v *topView) UnmarshalText(text []byte) error {
	if shape, _, _ := strings.Cut(string(text), "/"); !slices.Contains(topViews, shape) {
		return fmt.Errorf("unknown view %q: want %s, or a tracker such as src/24", text, strings.Join(topViews, ", "))
	}
	*v = topView(text)
	return nil
}

// MarshalText returns the view.
func (v topView) MarshalText() ([]byte, error) { return []byte(v), nil }

func newTop() *cobra.Command {
	var socket string
	var by topView
	var interval time.Duration
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch the traffic: top talkers, drops by reason, the filter",
		Long: `Shows the traffic of the running daemon until q is pressed: the rates, what is
dropped and why, the top sources, destinations or flows, and the state of the
filter. ? explains the keys.

Rates after "≤" are estimates, which are never too small. /, o, Enter, b and u
filter, sort, explain, block for an hour, and unblock.

With --once, or if input or output is not a terminal, it prints one page of
plain text, with the top flows; with --json, everything, or with --by what the
trackers of that key have.

With --heavy, it prints the sources that are above the threshold of a tracker or
guard, a line each, for weir block; with --by, destinations or flows. A source
that would cut off this host makes weir block refuse them all. Where the
largest hundred carry less than a third of the packets, none stands out, as in
a flood of forged sources: without --force, it prints nothing and exits with 1.

NO_COLOR=1 in the environment disables colours.`,
		Example: `  weir top
  weir top --by dst --interval 5s
  weir top --once | less
  weir top --heavy | weir block --ttl 1h --reason flood -
  weir top --json | jq '.trackers[].flows[] | select(.state == "blocked")'`,
		Args: noArgs,
	}
	f := c.Flags()
	f.TextVar(&by, "by", by, "`view` to begin with: src, dst, flow, dropped or reason (default the first tracker)")
	choices(c, "by", topViews...)
	once := f.Bool("once", false, "print one page and end")
	heavy := f.Bool("heavy", false, "print what is above a threshold, a line each, and end")
	force := f.Bool("force", false, "with --heavy: print it, too, where none stands out")
	durationFlag(f, &interval, "interval", time.Second, "`time` between two updates")
	socketFlag(f, &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		const shortest = 100 * time.Millisecond
		if interval < shortest {
			return usageError{fmt.Errorf("--interval %v: it must be %v or more", interval, shortest)}
		}
		client := client.Dial(socket)
		in, out := c.InOrStdin(), c.OutOrStdout()
		if *heavy {
			if *asJSON {
				return usageError{errors.New("--heavy and --json exclude each other")}
			}
			return printHeavy(c.Context(), out, client, cmp.Or(by, "src"), *force)
		}
		if *force {
			return usageError{errors.New("--force goes with --heavy")}
		}
		if !*asJSON && !*once && isScreen(in, out) {
			return top.Run(c.Context(), terminalOf(in), terminalOf(out), top.Options{
				By: string(by), Interval: interval, Host: hostname(), Colour: os.Getenv("NO_COLOR") == "", Read: client.Top,
				Rows: rows{client},
			})
		}
		now, err := client.Top(c.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			if by != "" && by != top.ByDropped && by != top.ByReason {
				now.Trackers, now.Sampled = by.of(now.Trackers), by.of(now.Sampled)
				if len(now.Trackers)+len(now.Sampled) == 0 {
					return by.missing()
				}
			}
			return terminal.PrintJSON(out, now)
		}
		page, err := top.Page(now, string(by), hostname(), widthOf(out))
		if err != nil {
			return err
		}
		_, err = io.WriteString(out, page)
		return err
	}
	return c
}

// of returns the trackers of a view: of src also those of prefixes, such as src/24.
func (v topView) of(all []api.Tracker) []api.Tracker {
	return slices.DeleteFunc(slices.Clone(all), func(t api.Tracker) bool {
		shape, _, _ := strings.Cut(t.Key, "/")
		return t.Key != string(v) && shape != string(v)
	})
}

func (v topView) missing() error {
	return fmt.Errorf("no tracker by %s: add one to trackers in weir.yaml, or run with --track key=%s", v, v)
}

// printHeavy prints what is above the thresholds of a view's trackers, each once. Nothing is
// printed of a tracker where no flow stands out, unless by force: that is an error.
func printHeavy(ctx context.Context, out io.Writer, client *client.Client, by topView, force bool) error {
	if by == top.ByDropped || by == top.ByReason {
		return usageError{fmt.Errorf("--heavy --by %s: want src, dst, flow, or a tracker such as src/24", by)}
	}
	now, err := client.Top(ctx)
	if err != nil {
		return err
	}
	trackers := by.of(now.Trackers)
	if len(trackers) == 0 {
		return by.missing()
	}
	printed := make(map[string]bool)
	var scattered error
	for _, t := range trackers {
		if text := t.Scattered(); text != "" && !force {
			scattered = fmt.Errorf("%s: to block the largest is to block clients, not the flood; --force prints the %d above the threshold", text, t.Heavy)
			continue
		}
		for _, f := range t.Flows {
			if !f.Heavy || printed[f.Key] {
				continue
			}
			printed[f.Key] = true
			if _, err := fmt.Fprintln(out, f.Key); err != nil {
				return err
			}
		}
	}
	return scattered
}

// rows implements [top.Rows] by the running daemon.
type rows struct{ client *client.Client }

func (r rows) Explain(ctx context.Context, entry string) (string, error) {
	e, err := r.client.Explain(ctx, entry)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	printExplanation(&b, *e, false, true, time.Now())
	return b.String(), nil
}

func (r rows) Block(ctx context.Context, entry string) (string, error) {
	done, err := r.client.Change(ctx, api.Change{
		Action: api.Block, Entries: []string{entry}, TTL: time.Hour.Seconds(), Reason: "weir top", SSH: ruleset.SSHConnection(),
	})
	switch {
	case err != nil:
		return "", err
	case done.Queued:
		return fmt.Sprintf("%s: queued for list %s, to be blocked for an hour", entry, done.List), nil
	}
	text := fmt.Sprintf("%s is blocked for an hour, in list %s", entry, done.List)
	if done.Monitor {
		text = monitorNote + "; " + text // what does not fit on the line is cut
	}
	return text, nil
}

func (r rows) Lift(ctx context.Context, entry string) (string, error) {
	done, err := r.client.Change(ctx, api.Change{Remove: true, Action: api.Block, Entries: []string{entry}, SSH: ruleset.SSHConnection()})
	switch {
	case err != nil:
		return "", err
	case done.Queued:
		return fmt.Sprintf("%s: queued for list %s, to lift its block", entry, done.List), nil
	case done.Removed == 0:
		return fmt.Sprintf("%s has no block in list %s: Enter shows what lists it", entry, done.List), nil
	}
	return fmt.Sprintf("%s: its block in list %s is lifted", entry, done.List), nil
}

func socketFlag(f *pflag.FlagSet, socket *string) {
	f.StringVar(socket, "socket", api.DefaultSocket, "`path` of the daemon's socket")
}

// isScreen reports whether a view can be drawn on the output, and take keys.
func isScreen(in, out any) bool {
	kind := os.Getenv("TERM")
	return isTerminal(in) && isTerminal(out) && kind != "" && kind != "dumb"
}

// widthOf is how wide a page may be.
func widthOf(out io.Writer) int {
	if screen := terminalOf(out); screen != nil {
		if columns, _, err := term.GetSize(int(screen.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return pageWidth
}

// hostname is the host's name without its domain; empty if it has none.
func hostname() string {
	name, _ := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	return name
}
