package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/control/doctor"
	"weir/control/queue"
)

// status is the output of `weir status`: the daemon's answer, and the metadata in
// the kernel, which is there also when no daemon runs.
type status struct {
	Filtered    bool            `json:"filtered"` // everything, as configured; without a daemon: as it was attached
	Daemon      *api.Status     `json:"daemon"`   // nil: none answers
	Pins        attach.Pins     `json:"pins"`     // the directory where Attachments were looked for
	Attachments []attach.Status `json:"attachments"`

	Starting *api.Starting `json:"starting,omitempty"` // the daemon, which cannot answer yet
	Queued   int           `json:"queued,omitempty"`   // changes that wait for the daemon

	Problems []doctor.Finding `json:"problems,omitempty"` // of this host, as weir doctor finds them

	// Daemonless says why nothing is read and nothing expires, though something is filtered.
	Daemonless string `json:"daemonless,omitempty"`

	unanswered error    // why a daemon that seems to run was not asked
	ways       []string // out of that
	elsewhere  bool     // the daemon is in another network namespace
}

func newStatus() *cobra.Command {
	var pins attach.Pins
	var socket string
	c := &cobra.Command{
		Use:   "status [INTERFACE]",
		Short: "Show which interfaces are filtered, and what was dropped and why",
		Long: `Shows the state of each configured interface: its mode, its lists, when it was
first filtered, and the number of packets for each reason.

The daemon is asked which interfaces are configured. The rest is read from
the kernel, also when no daemon runs; without access to the kernel, only the
states of the interfaces and their counters are shown. Problems of the host and
of its interfaces come first, as weir doctor finds them; they do not change the
exit code.

The exit code is 0 if every configured interface is filtered, and 1 if the state
could not be read. It is 4 if
- no daemon runs, or it is stopped or does not answer: what it has attached
  filters on, but no list is read and nothing expires,
- an interface is not filtered, or only until the daemon ends (not pinned),
- no interface is filtered at all, or
- a list has no entries yet from one of its sources.
Without a daemon, the interfaces to which the last one has attached count as
configured. With INTERFACE, only that one is shown, in full as by --verbose, and
decides the exit code.

--short prints one line, for prompts and tmux: what is wrong comes first, by the
words with which the lines of "weir status" begin. It does not look for problems
of the host.`,
		Example: `  weir status
  weir status eth0
  weir status --short
  weir status >/dev/null || echo "not everything is filtered"
  weir status --verbose
  weir status --json | jq '.daemon.interfaces[] | select(.state != "filtered")'
  weir status --json | jq '.attachments[] | {interface, dropped}'`,
		Args: maybeArg("INTERFACE"),
	}
	pinsFlag(c.Flags(), &pins)
	socketFlag(c.Flags(), &socket)
	asJSON := jsonFlag(c)
	short := c.Flags().Bool("short", false, "print one line, what is wrong first")
	verbose := c.Flags().BoolP("verbose", "v", false, "also show the lists' structures in the kernel's memory, which path packets take, and the EtherTypes of frames without IP")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *short && (*asJSON || *verbose) {
			return usageError{errors.New("--short goes with neither --json nor --verbose")}
		}
		s, err := readStatus(c.Context(), socket, pins, c.Flags().Changed("pins"))
		if len(args) > 0 && (s.Daemon != nil || len(s.Attachments) > 0) {
			if bad := s.only(args[0]); bad != nil {
				return cmp.Or(err, bad)
			}
			*verbose = true
		}
		if s.Daemonless != "" || err == nil && !s.Filtered {
			err = errUnfiltered
		}
		if !*short {
			s.Problems = doctor.Of(doctor.Problem, doctor.Examine(c.Context(), s.subject()))
		}
		out := c.OutOrStdout()
		if *asJSON {
			return cmp.Or(terminal.PrintJSON(out, s), err)
		}
		if s.Daemon != nil || s.Starting != nil || len(s.Attachments) > 0 || errors.Is(err, errUnfiltered) {
			if *short {
				fmt.Fprintln(out, s.line())
			} else {
				s.print(out, *verbose)
			}
		}
		return err
	}
	return c
}

// readStatus asks the daemon, and reads its pins, or those that are chosen:
// another daemon's answer is left out then. It returns what it could read
// together with an error.
func readStatus(ctx context.Context, socket string, pins attach.Pins, chosen bool) (status, error) {
	s := status{Attachments: []attach.Status{}}
	of := client.Dial(socket)
	d, unanswered := of.Status(ctx)
	switch {
	case unanswered == nil && (!chosen || d.Pins == string(pins)):
		s.Daemon, pins = d, attach.Pins(d.Pins)
		s.elsewhere = isElsewhere(of.Process())
	case unanswered != nil && !chosen:
		if left, err := queue.PlaceAt(socket); err == nil && left.Pins != "" {
			pins = attach.Pins(left.Pins)
		}
	}
	s.Pins = pins
	all, err := attach.ReadStatus(pins)
	switch {
	case s.Daemon == nil:
	case errors.Is(err, fs.ErrPermission):
		err = nil // its group may ask, but pins are root's
	case slices.ContainsFunc(s.Daemon.Interfaces, func(i api.InterfaceStatus) bool { return i.State == api.Unpinned }):
		err = nil // it knows
	}
	s.Attachments = append(s.Attachments, all...)
	if s.Daemon != nil {
		s.Filtered = s.Daemon.Complete()
	} else {
		s.Filtered = len(all) > 0
		s.missed(unanswered, chosen)
		s.Daemonless, s.ways = s.daemonless(unanswered), client.WayOut(unanswered)
		err = cmp.Or(s.unanswered, err)
		if unanswered != nil {
			s.Queued = queued(socket)
		}
	}
	for _, a := range all {
		s.Filtered = s.Filtered && !a.Severed
	}
	return s, err
}

// only leaves out the other interfaces. It fails where there is none of a name.
func (s *status) only(name string) error {
	var others []string
	is := func(iface string) bool {
		if iface != name && !slices.Contains(others, iface) {
			others = append(others, iface)
		}
		return iface == name
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a attach.Status) bool { return !is(a.Interface().Iface) })
	s.Filtered = len(s.Attachments) > 0
	found := s.Filtered
	if d := s.Daemon; d != nil {
		d.Interfaces = slices.DeleteFunc(d.Interfaces, func(i api.InterfaceStatus) bool { return !is(i.Interface) })
		d.Policed = slices.DeleteFunc(d.Policed, func(o api.PoliceOverride) bool {
			covers, err := path.Match(o.Interface, name)
			return o.Interface != "" && (err != nil || !covers)
		})
		s.Filtered, found = d.Complete(), found || len(d.Interfaces) > 0
	}
	for _, a := range s.Attachments {
		s.Filtered = s.Filtered && !a.Severed
	}
	switch {
	case found:
		return nil
	case len(others) == 0:
		return fmt.Errorf("weir does not filter %s, nor any other interface", name)
	}
	return fmt.Errorf("weir does not filter %s: it has %s", name, strings.Join(others, ", "))
}

// line is the status in one line, what is wrong first.
func (s *status) line() string {
	var notices strings.Builder
	s.printNotices(&notices)
	var all []string
	add := func(text string) {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	for text := range strings.Lines(notices.String()) {
		if !strings.HasPrefix(text, " ") { // else it belongs to the one before
			text, _, _ = strings.Cut(strings.TrimSpace(text), " since ")
			text, _, _ = strings.Cut(text, ":")
			add(text)
		}
	}
	filtered, entries := 0, 0
	if s.Daemon != nil {
		entries = s.Daemon.Entries
		for _, i := range s.Daemon.Interfaces {
			if i.State == api.Filtered {
				filtered++
			} else {
				add(i.Interface + " " + strings.ToUpper(i.State))
			}
		}
	}
	var total, dropped uint64
	for _, a := range s.Attachments {
		total, dropped = total+a.Total.Packets, dropped+a.Dropped.Packets
		if s.Daemon == nil {
			entries = max(entries, a.Entries)
			if a.Severed {
				add(a.Interface().String() + " DETACHED")
			} else {
				filtered++
			}
		}
		if a.Monitor {
			add("MONITOR ONLY")
		}
	}
	if filtered > 0 {
		add(fmt.Sprintf("filters %s by %s", plural(filtered, "interface", "interfaces"), plural(entries, "entry", "entries")))
	}
	if total > 0 {
		add(fmt.Sprintf("%s of %s packets dropped", humanize.Comma(int64(dropped)), humanize.Comma(int64(total))))
	}
	return "weir: " + strings.Join(all, ", ")
}

// missed notes why no daemon's answer is shown. Chosen pins may be another daemon's: with them, it
// is an error only if a daemon runs that has attached there, which may be the silent one.
func (s *status) missed(unanswered error, chosen bool) {
	starting := new(api.StartingError)
	starts := errors.As(unanswered, &starting)
	switch {
	case unanswered == nil || errors.Is(unanswered, client.ErrNotRunning) || chosen && (starts || s.running() < 0):
	case starts:
		s.Starting = &starting.Starting
	default:
		s.unanswered = unanswered // such as that it does not answer, or what access to it takes
	}
}

// daemonless says why nothing is read and nothing expires, "" where a daemon sees to that.
func (s *status) daemonless(unanswered error) string {
	at := s.running()
	switch {
	case len(s.Attachments) == 0 || s.Starting != nil:
		return "" // nothing is filtered, or its daemon is about to come
	case at >= 0 && client.IsStopped(s.Attachments[at].PID):
		return fmt.Sprintf("process %d is stopped by a signal", s.Attachments[at].PID)
	case errors.Is(s.unanswered, client.ErrUnanswered):
		return s.unanswered.Error()
	case at < 0 && (unanswered == nil || errors.Is(unanswered, client.ErrNotRunning)):
		return fmt.Sprintf("process %d has ended", s.Attachments[0].PID)
	}
	return ""
}

// isElsewhere reports whether a process is known to be in another network namespace than this one.
func isElsewhere(pid int) bool {
	const namespace = "/proc/%v/ns/net"
	own, err := os.Readlink(fmt.Sprintf(namespace, "self"))
	theirs, bad := os.Readlink(fmt.Sprintf(namespace, pid))
	return err == nil && bad == nil && own != theirs
}

// running returns the index of an attachment whose daemon runs, -1 if there is none.
func (s *status) running() int {
	return slices.IndexFunc(s.Attachments, func(a attach.Status) bool { return a.Running })
}

// print prints the interfaces that the daemon names, then those it does not.
func (s *status) print(w io.Writer, verbose bool) {
	first := !s.printNotices(w)
	separate := func() {
		if !first {
			fmt.Fprintln(w)
		}
		first = false
	}
	var shown []attach.Interface
	if s.Daemon != nil {
		for _, i := range s.Daemon.Interfaces {
			separate()
			t := attach.Interface{Netns: i.Netns, Iface: i.Interface, Out: i.Direction == "out"}
			shown = append(shown, t)
			at := slices.IndexFunc(s.Attachments, func(a attach.Status) bool { return a.Interface() == t })
			if i.State == api.Filtered && at >= 0 {
				printInterface(w, s.Attachments[at], penaltiesOf(s.Daemon, i), countedOf(s.Daemon), verbose)
				continue
			}
			printState(w, i, s.Daemon.PID)
		}
	}
	for _, a := range s.Attachments {
		if !slices.Contains(shown, a.Interface()) {
			separate()
			printInterface(w, a, "", "", verbose)
		}
	}
}

// subject returns where weir filters, or fails to, as weir doctor looks at it. What this process
// may do says nothing of the daemon, which says itself what is wrong with its pins.
func (s *status) subject() (of doctor.Subject) {
	add := func(t attach.Interface, hook string, attached bool) {
		i := doctor.Interface{Target: t, Attached: attached}
		if t.Netns == "" {
			if s.elsewhere {
				return
			}
			// What is attached exists: it is in the namespace of the daemon, which has ended.
			if _, err := t.Find(); attached && attach.IsAbsent(err) {
				return
			}
		}
		if t.Out || i.Hook.UnmarshalText([]byte(hook)) != nil ||
			slices.ContainsFunc(of.Interfaces, func(o doctor.Interface) bool { return o.Target == t }) {
			return
		}
		of.Interfaces = append(of.Interfaces, i)
	}
	for _, a := range s.Attachments {
		if !a.Severed {
			add(a.Interface(), a.XDP, true)
		}
	}
	if s.Daemon == nil {
		of.Pins = s.Pins
		return of
	}
	for _, i := range s.Daemon.Interfaces {
		if i.State == api.Unfiltered {
			add(attach.Interface{Netns: i.Netns, Iface: i.Interface, Out: i.Direction == "out"}, i.XDP, false)
		}
	}
	return of
}

// printUnconfirmed prints when the configuration is rolled back.
func printUnconfirmed(w io.Writer, until, now time.Time) {
	if until.After(now) {
		fmt.Fprintf(w, "UNCONFIRMED: the previous configuration is active again %s, unless you `weir confirm`\n", relative(&until, now))
		return
	}
	fmt.Fprintln(w, "UNCONFIRMED: not confirmed in time, rolling back now to the previous configuration")
}

// printNotices prints what is not as usual, before the interfaces, and reports whether there
// is anything.
func (s *status) printNotices(w io.Writer) (noticed bool) {
	switch {
	case s.Daemonless != "":
		fmt.Fprintf(w, "NO DAEMON: %s\n", s.Daemonless)
		for _, line := range s.ways {
			fmt.Fprintf(w, "  %s\n", line)
		}
		noticed = true
	case s.Starting != nil:
		fmt.Fprintf(w, "STARTING: weir (PID %d, since %s) is %s\n", s.Starting.PID, s.Starting.Since.Local().Format(time.TimeOnly), s.Starting.Doing)
		noticed = true
		if len(s.Attachments) == 0 {
			fmt.Fprintln(w, "nothing is filtered yet")
		}
	case s.Daemon == nil && len(s.Attachments) == 0:
		fmt.Fprintf(w, "no daemon runs, and nothing is filtered: no program is pinned in %s; if weir.yaml has other pins, name them with --pins\n", s.Pins)
		noticed = true
	}
	for _, f := range doctor.Group(s.Problems) {
		fmt.Fprintln(w, "PROBLEM:", f)
		noticed = true
	}
	if s.Queued > 0 {
		fmt.Fprintf(w, "QUEUED: %s for the daemon\n", plural(s.Queued, "change waits", "changes wait"))
		noticed = true
	}
	if s.Daemon == nil {
		return noticed
	}
	noticed = printDaemonNotices(w, s.Daemon) || noticed
	if s.elsewhere && slices.ContainsFunc(s.Daemon.Interfaces, func(i api.InterfaceStatus) bool { return i.Netns == "" }) {
		fmt.Fprintln(w, "the daemon is in another network namespace: interfaces without a namespace are those there")
		noticed = true
	}
	return noticed
}

// clockShown is how long it is shown that the wall clock was set.
const clockShown = 24 * time.Hour

// printClock prints how the wall clock was set lately.
func printClock(w io.Writer, c *api.Clock, now time.Time) {
	if c == nil {
		return
	}
	for _, s := range c.Settings {
		if now.Sub(s.At) > clockShown {
			continue
		}
		how, by := "forward", time.Duration(s.By*float64(time.Second))
		if by < 0 {
			how, by = "back", -by
		}
		size := by.Round(time.Second / 10).String()
		if by >= time.Minute {
			size = nearly(by)
		}
		fmt.Fprintf(w, "CLOCK: set %s by %s, %s; what has a TTL ends as if it had not been\n", how, size, relative(&s.At, now))
	}
}

// maxLimited bounds the limits of sources that status names.
const maxLimited = 5

// printAllLimited prints the limits that commands have set, and reports whether there are any.
func printAllLimited(w io.Writer, all []api.PoliceOverride) bool {
	sources := 0
	for _, o := range all {
		if o.Interface == "" {
			if sources++; sources > maxLimited {
				continue
			}
		}
		printLimited(w, o, time.Now())
	}
	if more := sources - maxLimited; more > 0 {
		fmt.Fprintf(w, "LIMITED: %s more, see `weir limit`\n", plural(more, "source or pattern", "sources and patterns"))
	}
	return len(all) > 0
}

// printReverted says that networks have the same number of bits again, and reports whether it did.
func printReverted(w io.Writer, r *api.Reverted) bool {
	if r != nil {
		fmt.Fprintln(w, "WEIGHTS:", r)
	}
	return r != nil
}

// printDaemonNotices prints what is not as usual with a daemon, and reports whether there is
// anything.
func printDaemonNotices(w io.Writer, d *api.Status) (noticed bool) {
	if o := d.MonitorOverride; o != nil {
		printOverride(w, o, time.Now())
		noticed = true
	}
	noticed = printAllLimited(w, d.Policed) || noticed
	printClock(w, d.Clock, time.Now())
	noticed = printTrials(w, d.Trials) || noticed
	if until := d.ConfirmUntil; until != nil {
		printUnconfirmed(w, *until, time.Now())
		noticed = true
	}
	if d.RolledBack {
		fmt.Fprintln(w, "ROLLED BACK: the last configuration was not confirmed, the previous one is active until `weir reload`")
		noticed = true
	}
	noticed = printReverted(w, d.Reverted) || noticed
	if b := d.Busy; b != nil {
		wait := "commands wait"
		if b.Beside {
			wait = "other lists and reloads wait"
		}
		fmt.Fprintf(w, "BUSY since %s, %s: %v\n", b.Since.Format(time.TimeOnly), wait, b)
		noticed = noticed || !b.Beside
	}
	for _, problem := range d.Unavailable {
		fmt.Fprintln(w, "UNAVAILABLE:", problem)
		noticed = true
	}
	if d.Unsaved != "" {
		fmt.Fprintln(w, "UNSAVED: a restart would forget:", d.Unsaved)
		noticed = true
	}
	if d.Damaged != "" {
		fmt.Fprintln(w, "DAMAGED:", d.Damaged)
		noticed = true
	}
	for i, n := range d.NotReady {
		if i == maxListRows {
			fmt.Fprintf(w, "NOT READY: %d more sources\n", len(d.NotReady)-i)
			break
		}
		fmt.Fprintf(w, "NOT READY: list %s has nothing of %s: %s\n", n.List, n.Source, n.Problem)
		noticed = true
	}
	for _, x := range d.Spared {
		fmt.Fprintf(w, "SPARED: %v\n", x)
		noticed = true
	}
	if more := d.SparedMore; more > 0 {
		fmt.Fprintf(w, "SPARED: %d more\n", more)
	}
	if f := d.Fleet; f != nil && (f.Stale || !f.Connected || f.Refused > 0 || f.Expires != nil || f.RenewalFails != nil || len(f.Twice) > 0) {
		printFleet(w, f)
		noticed = true
	}
	if len(d.Interfaces) == 0 {
		fmt.Fprintf(w, "nothing is filtered: no interface matches, weir (PID %d) waits for one\n", d.PID)
		noticed = true
	}
	return noticed
}

// printTrials prints which lists are on trial, and reports whether there are any.
func printTrials(w io.Writer, all []api.TrialList) bool {
	for i, t := range all {
		if i == maxListRows {
			fmt.Fprintf(w, "TRIAL: %d more lists\n", len(all)-i)
			break
		}
		fmt.Fprintf(w, "TRIAL: list %s %v\n", t.List, t.Trial)
	}
	return len(all) > 0
}

// printFleet prints what is wrong with the fleet.
func printFleet(w io.Writer, f *api.Fleet) {
	switch {
	case f.Stale:
		fmt.Fprintf(w, "FLEET: node %s is %s; its lists stay active\n", f.Node, f.Problem)
	case !f.Connected:
		fmt.Fprintf(w, "FLEET: node %s is not connected to its hub, retrying; its lists stay active\n", f.Node)
	}
	if f.Refused > 0 {
		fmt.Fprintf(w, "FLEET: node %s has refused %s that were forged, replayed or damaged: the log has the reasons\n", f.Node, plural(int(f.Refused), "message", "messages"))
	}
	if len(f.Twice) > 0 {
		fmt.Fprintf(w, "FLEET: lists that are configured here come from the hub, too, and both filter: %s; weir check says what to do\n", names(f.Twice))
	}
	if f.Expires != nil {
		fmt.Fprintf(w, "FLEET: the certificate of node %s is valid until %s, and not renewed; then it does not connect any more\n", f.Node, f.Expires.UTC().Format(time.DateOnly))
	}
	if f.RenewalFails != nil {
		fmt.Fprintf(w, "FLEET: node %s cannot renew its certificate since %s: %s\n", f.Node, f.RenewalFails.UTC().Format(time.RFC3339), f.RenewalProblem)
	}
}

// printState prints an interface as the daemon sees it.
func printState(w io.Writer, i api.InterfaceStatus, pid int) {
	name := attach.Interface{Netns: i.Netns, Iface: i.Interface, Out: i.Direction == "out"}.String()
	switch i.State {
	case api.Absent:
		fmt.Fprintf(w, "%s NOT THERE YET, weir (PID %d) waits for it\n", name, pid)
	case api.Gone:
		fmt.Fprintf(w, "%s GONE, weir (PID %d) waits for it\n", name, pid)
	case api.Unfiltered:
		fmt.Fprintf(w, "%s NOT FILTERED, weir (PID %d) retries: %s\n", name, pid, strings.TrimSpace(i.Problem))
	case api.Unpinned:
		fmt.Fprintf(w, "%s NOT PINNED: filtered, %s, until weir (PID %d) ends, which retries: %s\n", name, hookName(i.XDP), pid, strings.TrimSpace(i.Problem))
	case api.Detached:
		fmt.Fprintf(w, "%s DETACHED, weir (PID %d) leaves it alone until `weir reload`\n", name, pid)
	default:
		fmt.Fprintf(w, "%s %s, %s, by weir (PID %d)\n", name, i.State, hookName(i.XDP), pid)
	}
	if i.Packets > 0 {
		fmt.Fprintf(w, "  %s since weir started, %s dropped\n", plural(int(i.Packets), "packet", "packets"), humanize.Comma(int64(i.Dropped)))
	}
}

// hookName says where a program runs.
func hookName(hook string) string {
	switch hook {
	case "tc":
		return "TC"
	case "dispatcher":
		return "native XDP, attach: dispatcher"
	case "dispatcher-generic":
		return "generic XDP, attach: dispatcher"
	}
	return hook + " XDP"
}

// pathRow shows which way packets take through the program, and why.
func pathRow(i attach.Status, row func(name, format string, args ...any)) {
	if len(i.GeneralPath) == 0 {
		row("path", "lean for plain IPv4 packets, general for others")
		return
	}
	row("path", "general for all packets: %s", strings.Join(i.GeneralPath, "; "))
}

// failsafeRow shows what always passes.
func failsafeRow(i attach.Status, row func(name, format string, args ...any)) {
	always := slices.Concat(i.FailsafePorts, i.FailsafePrefixes)
	for _, kind := range i.FailsafeICMP {
		always = append(always, "ICMP "+kind)
	}
	if len(always) > 0 {
		row("failsafe", "%s", strings.Join(always, ", "))
	}
}

// orderRow shows the programs at TC or of a dispatcher, where there are others, in their order.
func orderRow(i attach.Status, row func(name, format string, args ...any)) {
	if len(i.Order) < 2 {
		return
	}
	names := make([]string, len(i.Order))
	for at, n := range i.Order {
		names[at] = n.String()
	}
	row("order", "%s", strings.Join(names, ", then "))
}

// etherTypeRows shows which protocols the frames have that are not IP.
func etherTypeRows(i attach.Status, verbose bool, row func(name, format string, args ...any)) {
	if !verbose {
		return
	}
	for _, t := range i.NotIP {
		name := t.EtherType
		if t.Name != "" {
			name += ", " + t.Name
		}
		row("  not IP", "%s, %s", counted(t.Count), name)
	}
}

// structureRows shows what the lists consist of in the kernel.
func structureRows(i attach.Status, row func(name, format string, args ...any)) {
	for _, s := range i.BlockStructures {
		row("  block", "%s, %s", humanize.IBytes(uint64(s.Bytes)), s.Name)
	}
	for _, s := range i.AllowStructures {
		row("  allow", "%s, %s", humanize.IBytes(uint64(s.Bytes)), s.Name)
	}
}

// penaltiesOf describes the penalties on an interface, "" where there never were any.
func penaltiesOf(d *api.Status, i api.InterfaceStatus) string {
	if i.Penalties == nil || *i.Penalties == 0 && d.PenaltiesRefused == 0 {
		return ""
	}
	text := fmt.Sprintf("%s of %s", humanize.Comma(int64(*i.Penalties)), humanize.Comma(int64(i.MaxPenalties)))
	if d.PenaltiesRefused > 0 {
		text += fmt.Sprintf(", %s refused", humanize.Comma(int64(d.PenaltiesRefused)))
	}
	if d.PenaltiesReplaced > 0 {
		text += fmt.Sprintf(", %s replaced by stronger ones", humanize.Comma(int64(d.PenaltiesReplaced)))
	}
	return text
}

// oneIn says a rate above 0.
func oneIn(rate float64) string { return "1 in " + humanize.Comma(int64(math.Round(1/rate))) }

// countedOf says what share of unlisted packets was dropped by mistake, "" where none could be counted.
func countedOf(d *api.Status) string {
	switch {
	case d.Rate == nil:
		return ""
	case *d.Rate == 0:
		return fmt.Sprintf("none of %s counted (%s at most), ", humanize.Comma(int64(d.Packets)), oneIn(*d.High))
	}
	return fmt.Sprintf("%s counted (%s to %s), ", oneIn(*d.Rate), oneIn(*d.Low), oneIn(*d.High))
}

// penaltyRow shows the penalties, if there were any.
func penaltyRow(penalties string, row func(name, format string, args ...any)) {
	if penalties != "" {
		row("penalties", "%s", penalties)
	}
}

func printInterface(w io.Writer, i attach.Status, penalties, countedDrops string, verbose bool) {
	name := i.Interface()
	switch {
	case i.Severed && i.Running:
		fmt.Fprintf(w, "%s GONE, weir (PID %d) waits for it\n", name, i.PID)
	case i.Severed:
		fmt.Fprintln(w, name, "DETACHED: the interface is gone or the program was removed, nothing is filtered;",
			"`weir detach` removes the remains")
	default:
		fmt.Fprintln(w, name)
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
		row("program", "id %d, %s", i.ProgramID, hookName(i.XDP))
	}
	orderRow(i, row)
	if i.PID != 0 {
		state := "not running, the program continues"
		switch {
		case i.Running:
			state = "running"
		case i.Severed:
			state = "not running"
		}
		row("process", "PID %d, %s; weir %s", i.PID, state, i.Version)
		age := "the clock was ahead then"
		if d := i.Age(time.Now()); d >= 0 {
			age = d.String()
		}
		row("since", "%s (%s), lists of %s", i.Since.Format(time.DateTime), age, i.Loaded.Format(time.DateTime))
		row("mode", "%s", mode)
		row("entries", "%s, %s of kernel memory", humanize.Comma(int64(i.Entries)), humanize.IBytes(uint64(i.KernelBytes)))
		if verbose {
			structureRows(i, row)
			pathRow(i, row)
		}
		if r := i.Predicted; i.BitsPerEntry > 0 && r > 0 { // approximate mode
			row("false drops", "%sabout %s unlisted packets predicted", countedDrops, oneIn(r))
		}
	}
	failsafeRow(i, row)
	for _, r := range i.About.Rows(i.Interface().Out, &i.State) {
		row(r.Name, "%s", r.Text)
	}
	row("packets", "%s", counted(i.Total))
	row("dropped", "%s", counted(i.Dropped))
	reasons := func(drop bool) {
		for _, reason := range i.TopReasons(drop) {
			row("  "+reason, "%s", counted(i.Reasons[reason]))
		}
	}
	reasons(true)
	if i.Total.Packets > i.Dropped.Packets {
		passed := attach.Count{Packets: i.Total.Packets - i.Dropped.Packets, Bytes: i.Total.Bytes - min(i.Total.Bytes, i.Dropped.Bytes)}
		row("passed", "%s", counted(passed))
	}
	reasons(false)
	penaltyRow(penalties, row)
	etherTypeRows(i, verbose, row)
	listRows(i, verbose, row)
	t.Flush()
}

// maxListRows bounds the lists that are shown of an interface, unless all are asked for.
const maxListRows = 50

// listRows shows the lists: of many, those with the most packets.
func listRows(i attach.Status, verbose bool, row func(name, format string, args ...any)) {
	type shown struct {
		name, text string
		packets    uint64
	}
	var all []shown
	lists := make(map[string]attach.List, len(i.Lists))
	for _, l := range i.Lists {
		if lists[l.Name] = l; l.Allow {
			all = append(all, shown{"allow " + l.Name, entries(l), 0})
		}
	}
	for _, c := range i.ByList {
		l := lists[c.List]
		s := shown{"block " + c.List, counted(c.Count) + "; " + entries(l), c.Packets}
		switch {
		case c.List == "":
			s = shown{"block", counted(c.Count) + " by all lists: approximate mode does not know which", math.MaxUint64}
		case l.Entries == 0 && c.Packets == 0 && api.ListOf(l.Name) != l.Name:
			continue // there are no manual entries, or derived ones
		case i.BitsPerEntry > 0: // in approximate mode, which counts no list
			s.text = entries(l)
		}
		all = append(all, s)
	}
	more := 0
	if !verbose && len(all) > maxListRows {
		slices.SortStableFunc(all, func(a, b shown) int { return cmp.Compare(b.packets, a.packets) })
		all, more = all[:maxListRows], len(all)-maxListRows
	}
	for _, s := range all {
		row(s.name, "%s", s.text)
	}
	if more > 0 {
		row("lists", "%s more, with fewer packets: --verbose shows all, as does weir lists", humanize.Comma(int64(more)))
	}
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
	return c.String()
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
are left alone. Without --iface, it detaches weir if it is attached only once.
With --all, it also does so in other network namespaces; the exit code is 1 if
it cannot detach from one of the interfaces.

A daemon does not attach again where it was detached, until it is reloaded or
started again, and ends when no interface is left. detach says which daemon
still runs, and how to stop it.`,
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
		if netns != "" && len(ifaces) == 0 { // it would detach in other namespaces, too
			return usageError{fmt.Errorf("--netns goes with --iface: name the interfaces in that namespace")}
		}
		detached := []attach.Interface{}
		before, _ := attach.ReadStatus(pins) // what cannot be read cannot be detached, which fails below
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
		if len(detached) > 0 {
			if bad := noteDetached(pins, before, detached); bad != nil {
				fmt.Fprintln(c.ErrOrStderr(), "weir: weir audit will not have this:", bad)
			}
		}
		if err != nil && len(detached) == 0 && !*asJSON {
			return err // that nothing was attached would sound like all is well
		}
		return cmp.Or(printDetached(c.OutOrStdout(), detached, daemonsOf(before, detached), *asJSON), err)
	}
	return c
}

// daemonOf is a process that filtered on interfaces before they were detached.
type daemonOf struct {
	PID     int    `json:"pid"`
	Service string `json:"service,omitempty"` // of systemd's
	Running bool   `json:"running"`
	Returns bool   `json:"returns,omitempty"` // it had ended before, and its service starts again
}

// endsWithin is how long a daemon may take to notice that nothing is left to
// filter. One that builds filters meanwhile takes longer.
const endsWithin = 2 * time.Second

// daemonsOf returns the processes that filtered on interfaces, and whether they
// still run.
func daemonsOf(before []attach.Status, detached []attach.Interface) []daemonOf {
	all, ended := []daemonOf{}, []daemonOf{}
	for _, a := range before {
		known := func(d daemonOf) bool { return d.PID == a.PID }
		if !slices.Contains(detached, a.Interface()) || slices.ContainsFunc(slices.Concat(all, ended), known) {
			continue
		}
		switch {
		case a.Running:
			all = append(all, daemonOf{PID: a.PID, Service: attach.ServiceOf(a.PID), Running: true})
		case a.Service != "" && restarts(a.Service):
			ended = append(ended, daemonOf{PID: a.PID, Service: a.Service, Returns: true})
		}
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(endsWithin); ; <-look.C {
		left := false
		for i := range all {
			all[i].Running = attach.Alive(all[i].PID)
			left = left || all[i].Running
		}
		if !left || time.Now().After(deadline) {
			return append(all, ended...)
		}
	}
}

// restarts reports whether systemd is about to start a service, or has.
func restarts(service string) bool {
	out, err := exec.Command("systemctl", "show", "--property=ActiveState", "--value", service).Output()
	switch strings.TrimSpace(string(out)) {
	case "activating", "active", "reloading":
		return err == nil
	}
	return false
}

// String says what becomes of the daemon, and how to stop it.
func (d daemonOf) String() string {
	stop, later := fmt.Sprintf("kill %d", d.PID), ""
	if d.Service != "" {
		stop, later = "systemctl stop "+d.Service, fmt.Sprintf("; it starts again at boot, unless you `systemctl disable %s`", d.Service)
	}
	switch {
	case d.Returns:
		return fmt.Sprintf("weir (PID %d) had ended, but systemd starts %s again, which then filters: `%s` stops it%s", d.PID, d.Service, stop, later)
	case !d.Running:
		return fmt.Sprintf("weir (PID %d) had nothing else to filter and has ended: it stays off until it is started%s", d.PID, later)
	}
	return fmt.Sprintf("weir (PID %d) still runs: it leaves that alone until it is reloaded or started again; `%s` stops it%s", d.PID, stop, later)
}

func printDetached(w io.Writer, detached []attach.Interface, daemons []daemonOf, asJSON bool) error {
	if asJSON {
		type target struct {
			Interface string `json:"interface"`
			Netns     string `json:"netns,omitempty"`
		}
		list := []target{}
		for _, t := range detached {
			if next := (target{t.Iface, t.Netns}); !slices.Contains(list, next) {
				list = append(list, next)
			}
		}
		return terminal.PrintJSON(w, map[string]any{"detached": list, "daemons": daemons})
	}
	for _, t := range detached {
		fmt.Fprintln(w, "detached from", t.String())
	}
	if len(detached) == 0 {
		fmt.Fprintln(w, "nothing to detach: weir is not attached to any interface")
	}
	for _, d := range daemons {
		fmt.Fprintln(w, d)
	}
	return nil
}
