package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"weir/cmd/terminal"
	"weir/control/explain"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/capture"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/observe"
	"weir/control/quantity"
	"weir/control/ruleset"
)

// maxLine bounds a line of standard input.
const maxLine = 4096 // bytes

func newExplain() *cobra.Command {
	var socket, from string
	var count int
	c := &cobra.Command{
		Use:   "explain [ADDRESS|PREFIX|FLOW|-...]",
		Short: "Say whether packets would be dropped, and why",
		Long: `Says whether packets would be dropped and why: the verdict, the entries of lists
that match, with file and line, and the command that lets the packets pass. With
--verbose, it also names the stages of the filter that the packets reach, and
each condition on which the verdict depends.

An address or a prefix asks twice, for the packets from it and to it, and
"> ADDRESS" for those to it alone. A flow is written as in a list, in quotes
because of the shell: 'tcp 192.0.2.1:1234 > 198.51.100.7:443', where * leaves an
address or a port open. "-" reads questions from standard input, one on a line.
--capture asks for the packets of a capture, as far as they were captured.

The running daemon answers, or where none does, the saved state, by the
configuration of the last one. It also knows who added an entry, when and why,
what is rate-limited or blocked as a heavy hitter, and how many packets a list
has caught. With --block, --allow or --config, it answers as a daemon would that
starts with these, and none needs to run. Where a source or the file of manual
entries could not be read whole, it says so beside each answer, and ends with
exit code 1.`,
		Example: `  weir explain 192.0.2.1
  weir explain 192.0.2.0/24 'tcp 192.0.2.1:* > 198.51.100.7:443'
  weir explain --block feed.txt --allow ours.txt 2001:db8::7
  weir explain -c /etc/weir/weir.yaml --capture trace.pcap --count 10
  cut -d' ' -f1 access.log | sort -u | weir explain --json - | jq -r 'select(.verdict == "drop").question'
  weir explain --exit-code 192.0.2.1 || echo "would be dropped"`,
	}
	f := c.Flags()
	v := newConfigFlags(c, "exit-code", "json", "socket", "capture", "count", "verbose")
	socketFlag(f, &socket)
	f.StringVar(&from, "capture", "", "`file` whose packets are asked for, pcap or pcapng; - for standard input")
	f.IntVar(&count, "count", 100, "most `packets` of the capture to ask for")
	exitCode := f.Bool("exit-code", false, "exit with 3 if any packet would be dropped, or is of a rate-limited flow")
	verbose := f.BoolP("verbose", "v", false, "also show the stages that packets reach, and each condition on which a verdict depends")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case (len(args) == 0) == (from == ""):
			return usageError{errors.New(`name what to explain: ADDRESS, PREFIX, FLOW, "-" or --capture FILE`)}
		case count <= 0:
			return usageError{errors.New("--count: want at least 1")}
		}
		x, err := newExplainer(c, v, socket)
		if err != nil {
			return err
		}
		defer x.close()
		dropped := false
		x.answered = func(e api.Explanation) error {
			dropped = dropped || !e.Passes()
			if *asJSON {
				return terminal.PrintJSON(c.OutOrStdout(), e)
			}
			printExplanation(c.OutOrStdout(), e, *verbose, true, time.Now())
			return nil
		}
		if from != "" {
			err = x.capture(from, c.InOrStdin(), count)
		} else {
			err = x.questions(args, c.InOrStdin(), c.ErrOrStderr())
		}
		if err == nil && dropped && *exitCode {
			return errDropped
		}
		if err == nil && x.prepared != nil {
			if n := len(x.prepared.Unknown()) - len(x.prepared.Unread()); n > 0 {
				return fmt.Errorf("the answers are without entries of %s that could not be read", plural(n, "source", "sources"))
			}
		}
		return err
	}
	return c
}

// explainer answers questions by a running daemon, or by what one would start
// with.
type explainer struct {
	command  *cobra.Command
	flags    *configFlags
	socket   string
	ctx      context.Context
	client   *client.Client
	prepared *ruleset.Ruleset // nil: the client is asked
	engine   *engine.Generation
	answered func(api.Explanation) error
}

func newExplainer(c *cobra.Command, v *configFlags, socket string) (*explainer, error) {
	x := &explainer{command: c, flags: v, socket: socket, ctx: c.Context(), client: dial(c, socket)}
	if !v.given() {
		return x, v.check()
	}
	return x, x.prepare()
}

// prepare reads what the flags name, to answer by that.
func (x *explainer) prepare() (err error) {
	c := x.command
	if x.prepared, err = x.flags.prepare(c, newConsole(c.OutOrStdout(), c.ErrOrStderr())); err != nil {
		return err
	}
	x.engine, err = x.prepared.Build()
	return err
}

// withoutDaemon prepares to answer from the saved state, where an error says that the daemon does
// not answer. Otherwise, it returns the error.
func (x *explainer) withoutDaemon(err error) error {
	file := ""
	if lacksAnswer(err) {
		file = fileOf(x.socket)
	}
	if file == "" {
		return notRunning(err)
	}
	out := x.command.ErrOrStderr()
	fmt.Fprintf(out, "weir: %v: from the saved state, by %s\n", err, file)
	for _, line := range client.WayOut(err) {
		fmt.Fprintf(out, "  %s\n", line)
	}
	x.flags.file = file
	if bad := x.prepare(); bad != nil {
		return fmt.Errorf("%w; and from the saved state there is no answer: %w", err, bad)
	}
	return nil
}

// lacksAnswer reports whether an error says that the daemon does not run, is silent or still starts.
func lacksAnswer(err error) bool {
	return errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrUnanswered) || errors.As(err, new(*api.StartingError))
}

func (x *explainer) close() {
	if x.engine != nil {
		_ = x.engine.Close()
	}
}

// questions explains arguments, of which "-" stands for the lines of stdin.
func (x *explainer) questions(args []string, stdin io.Reader, report io.Writer) error {
	if _, err := explain.ParseQuestion(args[0]); err != nil && args[0] != "-" {
		args = []string{strings.Join(args, " ")} // a flow without quotes
	}
	for _, arg := range args {
		var err error
		if arg == "-" {
			err = x.lines(stdin, report)
		} else {
			err = x.question(arg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lines explains the lines of stdin, and reports those that are no questions.
func (x *explainer) lines(stdin io.Reader, report io.Writer) error {
	bad, number := 0, 0
	lines := scanLines(stdin)
	for lines.Scan() {
		number++
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		switch err := x.question(text); {
		case errors.As(err, new(usageError)):
			bad++
			fmt.Fprintf(report, "%s:%d: %v\n", stdinName, number, err)
		case err != nil:
			return fmt.Errorf("%s:%d: %w", stdinName, number, err)
		}
	}
	switch {
	case lines.Err() != nil:
		return lineError(lines.Err(), number)
	case bad > 0:
		return fmt.Errorf("%s: bad lines: %d of %d", stdinName, bad, number)
	}
	return nil
}

// scanLines returns a scanner of lines of up to maxLine bytes.
func scanLines(stdin io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxLine+len("\n"))
	return lines
}

// lineError says where a scanner of standard input has failed, after some lines.
func lineError(err error, after int) error {
	if errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s:%d: line longer than %d bytes", stdinName, after+1, maxLine)
	}
	return fmt.Errorf("%s: after line %d: %w", stdinName, after, err)
}

func (x *explainer) question(text string) error {
	asked, err := explain.ParseQuestion(text)
	if err != nil {
		return usageError{err}
	}
	if x.prepared == nil {
		e, err := x.client.Explain(x.ctx, text)
		if err == nil {
			return x.answered(*e)
		}
		if err = x.withoutDaemon(err); err != nil {
			return err
		}
	}
	return x.answered(observe.Explanation(text, x.prepared.Explain(x.engine, asked...)...))
}

// capture explains the first packets of a capture.
func (x *explainer) capture(name string, stdin io.Reader, count int) (err error) {
	r, err := openCapture(name, stdin)
	if err != nil {
		return err
	}
	defer r.Close()
	var frames [][]byte
	for range count {
		p, failed := r.Next()
		if failed != nil {
			if failed != io.EOF {
				err = failed // after the packets before it
			}
			break
		}
		if len(p.Data) > 0 {
			frames = append(frames, slices.Clone(p.Data))
		}
		if len(frames) == api.MaxExplained {
			if err := x.frames(frames); err != nil {
				return err
			}
			frames = nil
		}
	}
	return errors.Join(x.frames(frames), err)
}

func openCapture(name string, stdin io.Reader) (*capture.Reader, error) {
	if name == "-" {
		return capture.NewReader("standard input", stdin)
	}
	return capture.Open(name)
}

func (x *explainer) frames(frames [][]byte) error {
	if len(frames) == 0 {
		return nil
	}
	var all []api.Explanation
	if x.prepared == nil {
		var err error
		if all, err = x.client.ExplainFrames(x.ctx, frames); err != nil {
			if err = x.withoutDaemon(err); err != nil {
				return err
			}
		}
	}
	if x.prepared != nil {
		for _, f := range frames {
			a := x.prepared.Explain(x.engine, explain.Question{Frame: f})[0]
			all = append(all, observe.Explanation(a.Packet, a))
		}
	}
	for _, e := range all {
		if err := x.answered(e); err != nil {
			return err
		}
	}
	return nil
}

// notRunning says how to ask without a daemon.
func notRunning(err error) error {
	var bad *api.BadRequest
	switch {
	case errors.Is(err, client.ErrNotRunning):
		return fmt.Errorf("%w, or give lists with --block and --allow, or --config", err)
	case errors.As(err, &bad):
		return usageError{err}
	}
	return err
}

// undo returns the command that lets packets pass which an answer to a question drops, "" if
// there is none.
func undo(question string, a api.Answer) string {
	allow := "weir allow --ttl 1h " + shellWord(question)
	if a.Direction == "out" {
		allow = "" // an allow list of outgoing packets is the configuration's
	}
	switch {
	case a.Limit != nil && a.Limit.Tracker == "":
		return "weir limit " + shellWord(a.Limit.Flow) + " --off"
	case a.Limit != nil:
		return allow
	case a.Verdict != "drop":
		return ""
	case a.Reason == "blocked":
		blocks := slices.DeleteFunc(slices.Clone(a.Matches), func(m api.Match) bool { return m.Action != api.Block || m.Trial })
		if len(blocks) != 1 {
			return allow
		}
		m, list := blocks[0], api.ListOf(blocks[0].List)
		switch {
		case m.Source == "" && m.Derived == nil && list == config.DefaultBlock:
			return "weir unblock " + shellWord(m.Entry)
		case m.Source == "" && m.Derived == nil:
			return "weir unblock --list " + list + " " + shellWord(m.Entry)
		case allow == "":
			return "weir enforce " + list + " --off, for the whole list"
		}
		return allow + ", or for the whole list weir enforce " + list + " --off"
	case a.Pattern != "":
		return "weir limit '" + a.Pattern + "' --off"
	case a.Reason == "heavy", a.Reason == "rate-limited":
		return allow
	}
	return ""
}

// shellWord quotes text that a shell would take apart.
func shellWord(text string) string {
	if strings.ContainsAny(text, " >*") {
		return "'" + text + "'"
	}
	return text
}

// isPlain reports whether an answer has nothing to say but that the packets pass.
func isPlain(a api.Answer) bool {
	ofPattern := func(d api.Dependency) bool { return d.Reason == "pattern" }
	return a.Verdict == "pass" && a.Reason == "clean" && !slices.ContainsFunc(a.Depends, ofPattern) && len(a.Matches)+len(a.Incomplete)+len(a.Spared) == 0 && a.LastDrop == nil && a.Inside == nil
}

// headline says what becomes of the packets of an answer.
func headline(a api.Answer) string {
	packet := a.Packet
	if a.Direction != "" {
		packet += " (" + a.Direction + ")"
	}
	if a.Limit != nil {
		return packet + ": " + quantity.Limited(a.Limit.Rate, a.Limit.Offered, a.Limit.Unit, a.Limit.Tracker)
	}
	list := ""
	if a.Pattern != "" {
		list = " " + a.Pattern
	}
	if a.List != "" {
		list = ", list " + a.List
	}
	if a.OnTrial() {
		list = ", since list " + a.List + " is on trial"
	}
	if len(a.Incomplete) > 0 {
		list += ", without what is not known"
	}
	return fmt.Sprintf("%s: %v (%v%s)", packet, a.Verdict, a.Reason, list)
}

// printExplanation prints an answer. Of another host, it names no command: that would be one there.
func printExplanation(w io.Writer, e api.Explanation, verbose, here bool, now time.Time) {
	for i, a := range e.Answers {
		fmt.Fprint(w, headline(a))
		if !verbose && i > 0 && isPlain(a) {
			if conditions := len(a.Depends) + a.DependsMore + a.PenaltiesMore; conditions > 0 {
				fmt.Fprintf(w, ", but for %s: -v shows them", plural(conditions, "condition", "conditions"))
			}
			fmt.Fprintln(w)
			continue
		}
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, m := range a.Matches {
			fmt.Fprintf(t, "  %s\tlist %s\t%s\t%s\n", m.Action, m.List, m.Entry, origin(m, now))
		}
		t.Flush()
		switch {
		case a.FalsePositive:
			fmt.Fprintln(w, "  no entry matches: a false positive of the approximate filter")
		case len(a.Matches) == 0:
			fmt.Fprintln(w, "  no entry matches all of these packets")
		}
		for _, s := range a.Incomplete {
			if s.List == "" {
				fmt.Fprintf(w, "  %s is %s\n", s.Source, s.Problem)
				continue
			}
			fmt.Fprintf(w, "  nothing is known of list %s, source %s: %s\n", s.List, s.Source, s.Problem)
		}
		if l := a.LastDrop; l != nil {
			list := ""
			if l.List != "" {
				list = ", list " + l.List
			}
			what, more := "last dropped", ""
			if l.Monitor {
				what = "would last have been dropped, if not for monitor mode,"
			}
			if passed := l.MonitorPackets; 0 < passed && (passed < l.Packets || !l.Monitor) {
				more = ", of which " + humanize.Comma(int64(passed)) + " passed in monitor mode"
			}
			fmt.Fprintf(w, "  %s about %s (%v%s), %s in the last hour%s\n",
				what, relative(&l.Time, now), l.Reason, list, plural(int(l.Packets), "packet", "packets"), more)
		}
		for _, text := range a.Spared {
			fmt.Fprintln(w, "  spared:", text)
		}
		if command := undo(e.Question, a); command != "" && here {
			fmt.Fprintln(w, "  undo:", command)
		}
		if verbose {
			printStages(w, a.Stages, now)
		}
		printDepends(w, a, verbose, now)
		if in := a.Inside; in != nil {
			fmt.Fprintf(w, "  inside: %s\n", plural(in.Entries, "entry", "entries"))
			for _, m := range in.First {
				fmt.Fprintf(t, "    %s\tlist %s\t%s\t%s\n", m.Action, m.List, m.Entry, origin(m, now))
			}
			t.Flush()
			if more := in.Entries - len(in.First); more > 0 {
				fmt.Fprintf(w, "    and %d more\n", more)
			}
		}
	}
}

// printStages prints the stages in one line: which are met, by what.
func printStages(w io.Writer, stages []api.Stage, now time.Time) {
	var all []string
	for _, s := range stages {
		text := s.Stage + " no"
		if s.Met {
			text = s.Stage + " yes"
			if s.By != "" {
				text += " (" + s.By + expiry(s.Until, now) + ")"
			}
		}
		all = append(all, text)
	}
	if len(all) > 0 {
		fmt.Fprintln(w, "  stages:", strings.Join(all, ", "))
	}
}

func expiry(until *time.Time, now time.Time) string {
	if until == nil {
		return ""
	}
	return ", expires " + relative(until, now)
}

func printDepends(w io.Writer, a api.Answer, verbose bool, now time.Time) {
	if len(a.Depends) == 0 {
		return
	}
	if others := slices.DeleteFunc(slices.Clone(a.Depends), isPenalty); !verbose && len(a.Depends)-len(others) > 1 {
		a.PenaltiesMore += len(a.Depends) - len(others)
		a.Depends = others
	}
	fmt.Fprintln(w, "  depends on the rest of the packet:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range a.Depends {
		fmt.Fprintf(t, "    %v\t%v\t%s%s", d.Verdict, d.Stage, d.Packets, expiry(d.Until, now))
		if d.Match != nil {
			fmt.Fprintf(t, "\tlist %s\t%s", d.Match.List, origin(*d.Match, now))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	if a.DependsMore > 0 {
		fmt.Fprintf(w, "    and %s more\n", plural(a.DependsMore, "entry", "entries"))
	}
	if a.PenaltiesMore > 0 {
		more := ""
		if slices.ContainsFunc(a.Depends, isPenalty) {
			more = " more"
		}
		fmt.Fprintf(w, "    %s%s, of flows above their rates\n", plural(a.PenaltiesMore, "penalty", "penalties"), more)
	}
}

func isPenalty(d api.Dependency) bool { return d.Stage == "penalty" }

// origin says where an entry is from, and what is known of it.
func origin(m api.Match, now time.Time) string {
	text := m.Source
	switch {
	case m.Line > 0:
		text += fmt.Sprintf(":%d", m.Line)
	case m.Derived != nil:
		text = m.Derived.String()
	case text == "":
		text = "manual"
	}
	if m.UID != nil {
		text += " of " + userName(*m.UID)
	} else if m.Client != "" {
		text += " of " + m.Client
	}
	if m.Added != nil {
		text += ", " + relative(m.Added, now)
	}
	switch {
	case m.Listed != nil && m.Earlier:
		text += ", listed " + relative(m.Listed, now) + " or earlier"
	case m.Listed != nil:
		text += ", listed " + relative(m.Listed, now)
	}
	if m.Expires != nil {
		text += ", expires " + relative(m.Expires, now)
	}
	if m.Reason != "" {
		text += ": " + m.Reason
	}
	if m.Origin != "" {
		text += " (" + m.Origin + ")"
	}
	if m.Packets != nil {
		text += ", " + plural(int(*m.Packets), "packet", "packets") + " on this list"
	}
	if m.NotDerived != "" {
		text += "; " + m.NotDerived
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
