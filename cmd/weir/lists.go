package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
)

// listsFresh is for how long lists are as they are now: a daemon describes them each second, when it is
// not busy.
const listsFresh = 2 * time.Second

func newLists() *cobra.Command {
	c := &cobra.Command{
		Use:   "lists [--versions LIST --diff [VERSION...]]",
		Short: "Show the lists, what they catch, and the state of their sources",
		Long: `Shows the lists of the running daemon: their entries, how many of them are
manual, the packets that they have caught, and when their sources were last
read, how that went, and when they are read next. Sources that failed are listed
below with the reason; their old contents stay active.

With --worth, shows what each list adds to the others, for which a pass over all
entries is made. Of the last hour's dropped packets the remote addresses with
the most are known: "alone" are the packets of those that no other list would
have dropped, "seen" the entries that they were in; of other entries it is not
known whether a packet has matched them. "month" counts the last 30 days.

With --versions, shows which contents the sources of a list have had, the active
ones first: "weir refresh LIST --rollback" returns to those before. REFUSED are
contents that were rolled back, or that a limit such as max_shrink has refused,
compared with the active ones. sha256 is the checksum of the bytes that were
fetched, as their publisher computes it.

With --diff, shows the entries that were added (+) and removed (-), at most
10,000 each: of all versions, with VERSION of that one, and with two of the
second against the first. VERSION is the beginning of a checksum.`,
		Example: `  weir lists
  weir lists --versions drop
  weir lists --versions drop --diff 9aa708f8
  weir lists --worth
  weir lists --json | jq -r '.lists[].feeds[] | select(.outcome == "failed").source'`,
	}
	versions := versionFlags(c)
	_ = c.RegisterFlagCompletionFunc("versions", completeLists(1))
	worth := c.Flags().Bool("worth", false, "show what each list adds to the others")
	c.MarkFlagsMutuallyExclusive("versions", "worth")
	// All but one are nil.
	type answer struct {
		*api.Lists
		*api.ListVersions
		*api.ListsWorth
	}
	return question[answer]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (a answer, err error) {
			if *worth {
				a.ListsWorth, err = of.Worth(c.Context())
				return a, err
			}
			if a.ListVersions, err = versions(of, args); a.ListVersions == nil && err == nil {
				a.Lists, err = of.Lists(c.Context())
			}
			return a, err
		},
		text: func(c *cobra.Command, a answer) {
			switch {
			case a.ListsWorth != nil:
				printWorth(c.OutOrStdout(), a.ListsWorth, time.Now())
			case a.Lists != nil:
				printLists(c.OutOrStdout(), a.Lists, time.Now())
			default:
				printVersions(c.OutOrStdout(), a.ListVersions, time.Now())
			}
		},
	}.complete(c)
}

// versionFlags adds --versions and --diff to a command, and returns what asks for versions; the answer
// is nil if they are not asked for.
func versionFlags(c *cobra.Command) func(of *client.Client, args []string) (*api.ListVersions, error) {
	versions := c.Flags().String("versions", "", "show the versions of a `list`'s sources")
	diff := c.Flags().Bool("diff", false, "with --versions, show which entries were added and removed")
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case !*diff:
			return noArgs(c, args)
		case *versions == "":
			return usageError{errors.New("--diff: name a list with --versions LIST")}
		case len(args) > 2:
			return usageError{fmt.Errorf("%q: --diff compares two versions, and no more", args[2])}
		case slices.Contains(args, ""):
			return usageError{errors.New("an empty VERSION: want the beginning of a checksum")}
		}
		return nil
	}
	return func(of *client.Client, args []string) (*api.ListVersions, error) {
		if *versions == "" {
			return nil, nil
		}
		if *diff && len(args) == 0 {
			args = []string{""} // all
		}
		answer, err := of.Versions(c.Context(), *versions, args...)
		return answer, badRequest(err)
	}
}

func printVersions(out io.Writer, of *api.ListVersions, now time.Time) {
	if !slices.ContainsFunc(of.Sources, func(s api.SourceVersions) bool { return len(s.Versions) > 0 }) {
		fmt.Fprintln(out, "no versions are known: weir saves versions in state_dir, for lists with sources; this list has none yet")
		return
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "source\tsince\t%10s\t%9s\t%9s\tsha256\n", "entries", "added", "removed")
	for _, s := range of.Sources {
		name := s.Source
		for i, v := range slices.Concat(s.Refused, s.Versions) {
			added, removed, state := "-", "-", ""
			if i+1 < len(s.Refused)+len(s.Versions) {
				added, removed = humanize.Comma(int64(v.Added)), humanize.Comma(int64(v.Removed))
			}
			if v.Refusal != "" {
				state = "  REFUSED: " + v.Refusal
			}
			fmt.Fprintf(t, "%s\t%s\t%10s\t%9s\t%9s\t%.12s%s\n", name, relative(&v.Since, now), humanize.Comma(int64(v.Entries)), added, removed, v.SHA256, state)
			name = ""
		}
	}
	t.Flush()
	for _, s := range of.Sources {
		for _, v := range slices.Concat(s.Refused, s.Versions) {
			if v.Diff != nil {
				fmt.Fprintf(out, "\n%s: %.12s against %.12s\n", s.Source, v.SHA256, v.Diff.From)
				printDiff(out, "+", v.Diff.Added, v.Diff.MoreAdded)
				printDiff(out, "-", v.Diff.Removed, v.Diff.MoreRemoved)
			}
		}
	}
}

func printDiff(out io.Writer, sign string, entries []string, more int) {
	for _, e := range entries {
		fmt.Fprintln(out, sign, e)
	}
	if more > 0 {
		fmt.Fprintf(out, "%s and %s more\n", sign, humanize.Comma(int64(more)))
	}
}

func printLists(out io.Writer, of *api.Lists, now time.Time) {
	lists := of.Lists
	if now.Sub(of.At) > listsFresh {
		fmt.Fprintf(out, "as of %s: the daemon is busy\n\n", relative(&of.At, now))
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%10s\t%6s\t%13s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "list", "action", "direction", "entries", "manual", "packets", "feeds", "read", "next")
	for _, l := range lists {
		feeds, read, next := summary(l.Feeds)
		fmt.Fprintf(t, row, l.Name, l.Action, l.Direction, humanize.Comma(int64(l.Entries)), humanize.Comma(int64(l.Manual)),
			caught(l.Packets), feeds, relative(read, now), due(next, now))
	}
	t.Flush()
	gap := "\n"
	for _, l := range lists {
		if l.For != "" {
			fmt.Fprintf(out, "%s%s: only for %s\n", gap, l.Name, l.For)
			gap = ""
		}
		if l.Trial != nil {
			fmt.Fprintf(out, "%s%s: TRIAL: it %v\n", gap, l.Name, l.Trial)
			gap = ""
		}
		if of := l.Collateral; of != nil && of.Addresses > 0 {
			fmt.Fprintf(out, "%s%s: %s\n", gap, l.Name, talkedTo(of, l.Trial != nil && !l.Trial.Enforced, now))
			gap = ""
		}
		if l.Derived > 0 {
			fmt.Fprintf(out, "%s%s: %s around its addresses\n", gap, l.Name, plural(l.Derived, "prefix", "prefixes"))
			gap = ""
		}
		for _, o := range l.LeftOut {
			fmt.Fprintf(out, "%s%s: LEFT OUT %s: %s\n", gap, l.Name, o.Entry, o.Why())
			gap = ""
		}
		for _, s := range l.Spare {
			fmt.Fprintf(out, "%s%s: LEFT OUT %v\n", gap, l.Name, s)
			gap = ""
		}
		if l.Private > 0 {
			fmt.Fprintf(out, "%s%s: %s\n", gap, l.Name, api.PrivateNetworks(l.Private, l.FirstPrivate, l.PrivateBlocked))
			gap = ""
		}
		for _, f := range l.Feeds {
			for _, trouble := range troubles(f, now) {
				fmt.Fprintf(out, "%s%s: %s: %s\n", gap, l.Name, f.Source, trouble)
				gap = ""
			}
		}
	}
}

// caught returns the number of packets that a list has caught, as text.
func caught(packets *uint64) string {
	if packets == nil {
		return "-"
	}
	return humanize.Comma(int64(*packets))
}

// summary returns the state of a list's sources, the time of the oldest reading
// and that of the next.
func summary(feeds []api.FeedSource) (state string, read, next *time.Time) {
	if len(feeds) == 0 {
		return "-", nil, nil
	}
	failed, unread := 0, 0
	for _, f := range feeds {
		if f.Outcome == api.Failed {
			failed++
		}
		if f.Read == nil {
			unread++
		}
		if read == nil || f.Read != nil && f.Read.Before(*read) {
			read = f.Read
		}
		if next == nil || f.Next != nil && f.Next.Before(*next) {
			next = f.Next
		}
	}
	if unread > 0 {
		read = nil
	}
	some := func(n int, what string) string {
		if n == len(feeds) {
			return what
		}
		return fmt.Sprintf("%d of %d %s", n, len(feeds), what)
	}
	switch {
	case failed > 0:
		return some(failed, "FAILED"), read, next
	case unread > 0:
		return some(unread, "not read yet"), read, next
	}
	return "ok", read, next
}

// due returns when something happens next, "now" if it may be under way.
func due(t *time.Time, now time.Time) string {
	if t != nil && t.Before(now) {
		return "now"
	}
	return relative(t, now)
}

func relative(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	if d := t.Sub(now); d > 0 {
		return "in " + nearly(d)
	}
	return brief(now.Sub(*t)) + " ago"
}

// nearly is brief, rounded to the nearest: of a TTL of two hours, "in 1h" would be shown at once.
func nearly(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct{ of, below time.Duration }{{time.Second, 100 * time.Second}, {time.Minute, 100 * time.Minute}, {time.Hour, 2 * day}} {
		if rounded := d.Round(unit.of); rounded < unit.below {
			return brief(rounded)
		}
	}
	return brief(d.Round(day))
}

// brief returns a duration of at most two digits, rounded down.
func brief(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// troubles returns what is wrong with a source.
func troubles(f api.FeedSource, now time.Time) (all []string) {
	former := f.Read == nil && f.Version == "" && f.Entries > 0 // than its settings
	if former && f.Outcome == api.None {
		all = append(all, fmt.Sprintf("NOT READ YET: keeping its %s of before its settings changed", plural(f.Entries, "entry", "entries")))
	}
	if f.Outcome == api.Failed {
		kept := "it has never been read"
		if former {
			kept = fmt.Sprintf("keeping its %s of before its settings changed", plural(f.Entries, "entry", "entries"))
		}
		if f.Read != nil {
			kept = fmt.Sprintf("keeping its %s, read %s", plural(f.Entries, "entry", "entries"), relative(f.Read, now))
		}
		all = append(all, fmt.Sprintf("FAILED %s (%s): %s; %s", plural(f.Failures, "time", "times"), f.Failure, f.Error, kept))
	}
	if f.BadLines > 0 {
		all = append(all, badLines(f.BadLines, f.FirstBad))
	}
	if len(f.LeftOut) > 0 {
		all = append(all, "left out by the format: "+strings.Join(f.LeftOut, ", "))
	}
	if len(f.Wide) > 0 {
		all = append(all, "COVER MUCH, probably a mistake: "+strings.Join(f.Wide, ", "))
	}
	if f.RolledBack != nil {
		all = append(all, fmt.Sprintf("ROLLED BACK %s; the refused contents are skipped until the source has others (weir refresh LIST --accept takes them)", relative(f.RolledBack, now)))
	}
	if f.Unsaved {
		all = append(all, "NOT SAVED: a restart would not find these entries")
	}
	return all
}

func newRefresh() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "refresh [LIST...]",
		Short: "Read the sources of lists now",
		Long: `Makes the running daemon read the sources of the named lists now, or of all
lists, and shows the results. If a source fails, its old contents stay active.

With --accept, contents are accepted that have lost more entries than
max_shrink or grown by more than max_growth, have become empty, or cover more
than max_coverage. That counts for
these contents alone: what is read later is compared with them, and its coverage
is checked again.

With --rollback, a list returns to its contents before the last change of one of
its sources; "weir lists --versions LIST" shows them. What is like the contents
that it returns from is refused until the source has something else: at least
half of the change is gone. --accept takes it all the same.`,
		Example: `  weir refresh
  weir refresh drop scanners
  weir refresh drop --accept
  weir refresh drop --rollback`,
		ValidArgsFunction: completeLists(math.MaxInt),
	}
	socketFlag(c.Flags(), &socket)
	return refreshes(c, &socket, dial, "accept shrunken, grown, empty and wide contents of these lists once")
}

// refreshes completes a command that reads the sources of lists.
func refreshes(c *cobra.Command, socket *string, dial func(*cobra.Command, string) *client.Client, accepts string) *cobra.Command {
	accept := c.Flags().Bool("accept", false, accepts)
	rollback := c.Flags().Bool("rollback", false, "return to the contents of these lists before the last change")
	c.MarkFlagsMutuallyExclusive("accept", "rollback")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		of := dial(c, *socket)
		switch {
		case (*accept || *rollback) && len(names) == 0:
			return usageError{errors.New("--accept, --rollback: name the lists")}
		case *accept:
			return refresh(c, of.Accept, names, *asJSON)
		case *rollback:
			return refresh(c, of.Rollback, names, *asJSON)
		}
		return refresh(c, of.Refresh, names, *asJSON)
	}
	return c
}

// refresh has a daemon or hub change the contents of lists, or with no name of all lists, and
// prints the outcomes.
func refresh(c *cobra.Command, read func(ctx context.Context, list string) (*api.Refreshed, error), names []string, asJSON bool) error {
	if len(names) == 0 {
		names = []string{""} // all
	}
	all := api.Refreshed{Sources: []api.FetchOutcome{}}
	var wrong error
	for _, name := range names {
		r, err := read(c.Context(), name)
		if err != nil {
			wrong = errors.Join(wrong, err)
			break
		}
		all.Sources = append(all.Sources, r.Sources...)
	}
	if asJSON {
		if err := terminal.PrintJSON(c.OutOrStdout(), all); err != nil {
			return err
		}
	} else {
		printRefreshed(c.OutOrStdout(), all.Sources)
	}
	if wrong != nil {
		return wrong
	}
	failed := 0
	for _, s := range all.Sources {
		if s.Outcome == api.Failed {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("failed sources: %d of %d; their old contents stay active", failed, len(all.Sources))
	}
	return nil
}

func printRefreshed(out io.Writer, sources []api.FetchOutcome) {
	for _, s := range sources {
		what := s.Outcome
		if s.Outcome == api.Failed {
			what = fmt.Sprintf("FAILED (%s): %s", s.Failure, s.Error)
		}
		if s.Unsaved {
			what += ", NOT SAVED"
		}
		if s.Rejected {
			what += " (the source is still like what was rolled back; --accept takes it)"
		}
		bad := ""
		if s.BadLines > 0 {
			bad = "; " + badLines(s.BadLines, s.FirstBad)
		}
		fmt.Fprintf(out, "%s: %s: %s; entries: %s%s\n", s.List, s.Source, what, humanize.Comma(int64(s.Entries)), bad)
	}
}

// badLines says how many lines were left out, and the first one.
func badLines(n int, first []string) string {
	text := plural(n, "bad line", "bad lines") + " left out"
	if len(first) > 0 {
		text += ", the first: " + first[0]
	}
	return text
}
