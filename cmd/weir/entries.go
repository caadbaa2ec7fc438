package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/feed"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/control/ruleset"
)

func newEntries() *cobra.Command {
	c := &cobra.Command{
		Use:   "entries [LIST]",
		Short: "Show manual entries: when they expire, who added them, and why",
		Long: `Shows the entries of the running daemon that were added with weir block, allow
and import, of one list or of all, sorted by list and entry. It also shows
entries that have left a feed and stay for the ttl of its list, with "feed" as
the one who added them, and decisions of CrowdSec, with their origin and
scenario; --manual leaves both out. weir export shows what feeds list now.
Behind the entries of all lists, it shows the limits that weir limit has set.`,
		Example: `  weir entries
  weir entries manual --expiring 1h
  weir entries --json | jq -r '.entries[] | select(.user == "fail2ban").entry'`,
		ValidArgsFunction: completeLists(1),
	}
	manual := c.Flags().Bool("manual", false, "without entries that have left a feed")
	var socket string
	socketFlag(c.Flags(), &socket)
	return showsEntries(c, &socket, manual, dial)
}

// showsEntries completes a command that shows manual entries.
func showsEntries(c *cobra.Command, socket *string, manual *bool, dial func(*cobra.Command, string) *client.Client) *cobra.Command {
	var asked api.EntriesQuestion
	durationFlag(c.Flags(), &asked.Expiring, "expiring", 0, "only entries that expire within this `time`, as in 1h")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageError{fmt.Errorf("%q: one list at most", args[1])}
		}
		if len(args) == 1 {
			asked.List = args[0]
		}
		if asked.Expiring < 0 || c.Flags().Changed("expiring") && asked.Expiring == 0 {
			return usageError{errors.New("--expiring: want more than 0")}
		}
		asked.Manual = *manual
		show := printPages
		if *asJSON {
			show = printPagesJSON
		}
		return show(c.OutOrStdout(), entryPages(c.Context(), dial(c, *socket), asked))
	}
	return c
}

// pages calls fn for each page of entries.
type pages func(fn func(*api.Entries) error) error

func entryPages(ctx context.Context, client *client.Client, asked api.EntriesQuestion) pages {
	asked.Limit = api.MaxPage
	return func(fn func(*api.Entries) error) error {
		for {
			page, err := client.Entries(ctx, asked)
			if err != nil {
				return err
			}
			if err := fn(page); err != nil || page.Next == "" {
				return err
			}
			asked.After = page.Next
		}
	}
}

func printPages(out io.Writer, all pages) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%s\t%s\t%s\n"
	header := sync.OnceFunc(func() { fmt.Fprintf(t, row, "list", "entry", "expires", "added", "by", "reason") })
	var limited []api.PoliceOverride
	err := all(func(page *api.Entries) error {
		header() // not before an error
		limited = append(limited, page.Limits...)
		now := time.Now()
		for _, e := range page.Entries {
			expires := "never"
			if e.Expires != nil {
				expires = due(e.Expires, now)
			}
			fmt.Fprintf(t, row, e.List, e.Entry, expires, relative(&e.Added, now), addedBy(e), e.Reason)
		}
		return t.Flush() // pages are aligned one by one
	})
	if err = errors.Join(err, t.Flush()); err == nil && len(limited) > 0 {
		fmt.Fprintln(out)
		printLimits(out, limited, time.Now())
	}
	return err
}

// addedBy says who added an entry.
func addedBy(e api.Entry) string {
	switch {
	case e.Origin != "":
		return e.Origin
	case !e.Manual:
		return "feed"
	case e.UID == nil:
		return cmp.Or(e.Client, "remote")
	case e.User == "":
		return fmt.Sprintf("uid %d", *e.UID)
	}
	return fmt.Sprintf("%s (%d)", e.User, *e.UID)
}

// printPagesJSON prints an object with an entry per line, which need not fit
// into memory.
func printPagesJSON(out io.Writer, all pages) error {
	w := bufio.NewWriter(out)
	before := `{"entries": [`
	var limited []api.PoliceOverride
	err := all(func(page *api.Entries) error {
		limited = append(limited, page.Limits...)
		for _, e := range page.Entries {
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\n%s", before, text)
			before = ","
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, w.Flush())
	}
	if before != "," {
		fmt.Fprint(w, before)
	}
	fmt.Fprint(w, "\n]")
	if len(limited) > 0 {
		text, err := json.Marshal(limited)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, ", \"limits\": %s", text)
	}
	fmt.Fprintln(w, "}")
	return w.Flush()
}

func newFlush() *cobra.Command {
	var change api.FlushChange
	c := &cobra.Command{
		Use:   "flush LIST",
		Short: "Remove all manual entries of a list",
		Long: `Removes all manual entries of a list of the running daemon, at once and without
a question. What its feed lists stays. weir export saves them, without their
times and reasons, and weir import adds them again. What would cut off this
host, or your SSH session, once an allow list has lost its entries, takes
--force.`,
		Example: `  weir flush manual`,
		Args:    theArgs("LIST"), ValidArgsFunction: completeLists(1),
	}
	forceFlag(c.Flags(), &change.Force)
	return question[*api.Changed]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Changed, error) {
			change.SSH = ruleset.SSHConnection()
			return of.Flush(c.Context(), args[0], change)
		},
		text: func(c *cobra.Command, changed *api.Changed) {
			fmt.Fprintf(c.OutOrStdout(), "removed from list %s: %s\n", changed.List, humanize.Comma(int64(changed.Removed)))
		},
	}.complete(c)
}

// formatNames are the formats of weir export and import.
var formatNames = []string{api.FormatPlain, api.FormatIPSet, api.FormatNFT}

const formatUsage = "`format`: plain (an entry per line), ipset (as of ipset save) or nft"

func checkFormat(name string) error {
	if slices.Contains(formatNames, name) {
		return nil
	}
	return usageError{fmt.Errorf("--format %q: want %s", name, strings.Join(formatNames, ", "))}
}

func newExport() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "export LIST [--format plain|ipset|nft]",
		Short: "Print all active entries of a list",
		Long: `Prints all active entries of a list of the running daemon, of its feed and
manual ones: as a list, for ipset restore, or for nft -f. The latter two have a
set for IPv4 and one for IPv6, LIST-4 and LIST-6. They cannot express flows, nor
entries for one direction where the list has both; where such entries are left
out, the exit code is 1.`,
		Example: `  weir export manual
  weir export drop --format ipset | ipset restore
  weir export drop --format nft | nft -f -`,
		Args: theArgs("LIST"), ValidArgsFunction: completeLists(1),
	}
	socketFlag(c.Flags(), &socket)
	return exports(c, &socket, dial)
}

// exports completes a command that prints the entries of a list.
func exports(c *cobra.Command, socket *string, dial func(*cobra.Command, string) *client.Client) *cobra.Command {
	var format string
	c.Flags().StringVar(&format, "format", api.FormatPlain, formatUsage)
	choices(c, "format", formatNames...)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkFormat(format); err != nil {
			return err
		}
		leftOut, err := dial(c, *socket).Export(c.Context(), args[0], format, c.OutOrStdout())
		if err == nil && leftOut > 0 {
			err = fmt.Errorf("entries that format %s cannot express were left out: %s; --format plain has them", format, humanize.Comma(int64(leftOut)))
		}
		return err
	}
	return c
}

// maxImport bounds the text of an import, in bytes. The API takes less.
const maxImport = 256 << 20

// imported is the change that an import makes, by the flags and arguments of a command.
type imported struct {
	api.Change
	format string
	sets   []string
	o      listfile.Options
	ttl    *time.Duration
}

// flags sets up the flags of an import.
func (i *imported) flags(c *cobra.Command, reason string) {
	f := c.Flags()
	f.StringVar(&i.format, "format", api.FormatPlain, "`format` of the file, as above")
	f.BoolVar(&i.o.IgnorePorts, "ignore-ports", false, "read 192.0.2.1:443 as the address alone instead of refusing it")
	listFlag(f, "set", "`name` of a set to read, for ipset and nft (default the only one)", func(name string) error {
		i.sets = append(i.sets, name)
		return nil
	})
	i.Import = true
	i.ttl = entryFlags(f, &i.Change, reason)
	var known []string
	for _, d := range feed.Formats() {
		if d.File {
			known = append(known, cobra.CompletionWithDesc(d.Name, d.About))
		}
	}
	choices(c, "format", known...)
}

// read reads the entries of the file that is named.
func (i *imported) read(c *cobra.Command, args []string) error {
	given, err := feed.ParseFormat(i.format)
	if given.Sets = append(given.Sets, i.sets...); err == nil {
		err = given.Validate()
	}
	if err != nil {
		return usageError{fmt.Errorf("--format: %w", err)}
	}
	i.List, i.TTL, i.SSH = args[0], i.ttl.Seconds(), ruleset.SSHConnection()
	i.o.MaxBad = -1
	i.Entries, err = readImport(c, args[1], given, i.o)
	return err
}

func newImport() *cobra.Command {
	var socket string
	var of imported
	c := &cobra.Command{
		Use:   "import LIST FILE|- [--format FORMAT]",
		Short: "Add the entries of a file to a list",
		Long: `Adds the entries of a file, or of standard input, to a list of the running
daemon: all of them, or none if one is wrong. When the command returns they are
active, and will be after a restart.
` + importLong + importFormats(),
		Example: `  weir import manual blocked.txt --ttl 1d --reason 'incident 42'
  ipset save blacklist | weir import manual - --format ipset
  nft list ruleset | weir import manual - --format nft --set drop-4,drop-6
  weir import manual iocs.csv --format csv,column=ioc --ignore-ports --ttl 30d`,
		Args: theArgs("LIST", "FILE"), ValidArgsFunction: completeLists(1),
	}
	of.flags(c, "`text` that says why: weir entries and explain show it")
	forceFlag(c.Flags(), &of.Force)
	socketFlag(c.Flags(), &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := of.read(c, args); err != nil {
			return err
		}
		client := dial(c, socket)
		all, err := client.Lists(c.Context())
		if err != nil {
			return err
		}
		actions := make(map[string]string)
		for _, l := range all.Lists {
			actions[l.Name] = l.Action
		}
		if of.Action, err = actionOf(actions, of.List); err != nil {
			return err
		}
		changed, err := client.Change(c.Context(), of.Change)
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), changed)
		}
		printChanged(c.OutOrStdout(), "weir", of.Change, changed)
		return nil
	}
	return c
}

// importLong says what both commands do that import entries.
const importLong = `Entries that were there already take the new TTL and reason. The file may be
compressed. Timeouts in it are ignored: use --ttl.

A format is a name, with the options that it has in weir.yaml, as in
csv,column=2 or json,path=.data[].ip. The formats of files:
`

// importFormats returns the names of the formats of files, in lines for a help.
func importFormats() string {
	text, line := "", ""
	for _, d := range feed.Formats() {
		if !d.File {
			continue
		}
		if len(line)+len(d.Name) > 75 {
			text, line = text+line+"\n", ""
		}
		line += d.Name + " "
	}
	return text + strings.TrimSpace(line)
}

// readImport reads the entries of a file, "-" for standard input, and reports the
// lines that are wrong.
func readImport(c *cobra.Command, path string, format feed.Format, o listfile.Options) ([]string, error) {
	name, read, report, err := readIn(c, path, format, o)
	for _, bad := range report.Errors {
		fmt.Fprintln(c.ErrOrStderr(), bad.Error())
	}
	printLeftOut(c, report)
	switch {
	case report.Bad > 0:
		return nil, fmt.Errorf("%s: bad lines: %d; nothing was changed", name, report.Bad)
	case err != nil:
		return nil, fmt.Errorf("%w; nothing was changed", err)
	case read.Len() == 0:
		return nil, fmt.Errorf("%s: no entries", name)
	}
	entries := make([]string, 0, read.Len())
	for _, p := range read.V4 {
		entries = append(entries, p.String())
	}
	for _, p := range read.V6 {
		entries = append(entries, list.V6Of(p).String())
	}
	for _, k := range read.Flows {
		entries = append(entries, k.String())
	}
	return entries, nil
}

// readIn reads a file in a format, "-" for standard input. It returns its name in
// errors.
func readIn(c *cobra.Command, path string, format feed.Format, o listfile.Options) (string, list.Entries, listfile.Report, error) {
	name, in := path, c.InOrStdin()
	if path == "-" {
		name = stdinName
	} else {
		f, err := os.Open(path)
		if err != nil {
			return name, list.Entries{}, listfile.Report{}, err
		}
		defer f.Close()
		in = f
	}
	entries, report, err := feed.Read(name, in, format, maxImport, o)
	return name, entries, report, err
}

// actionOf returns the action of a list, by those of all.
func actionOf(actions map[string]string, name string) (string, error) {
	action, ok := actions[name]
	if !ok {
		return "", api.NoList(name, slices.Sorted(maps.Keys(actions)))
	}
	return action, nil
}

// completeLists completes the first arguments, most at most, with the names of the
// running weir's lists, and those that follow with files.
func completeLists(most int) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) (names []string, _ cobra.ShellCompDirective) {
		if len(args) >= most {
			if takesFiles[c.Name()] {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		socket, err := c.Flags().GetString("socket")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		all, err := client.Dial(socket).Lists(ctx)
		if err != nil { // there is nothing to complete
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, l := range all.Lists {
			if strings.HasPrefix(l.Name, begun) {
				names = append(names, cobra.CompletionWithDesc(l.Name, l.Action))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
