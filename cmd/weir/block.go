package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/compressed"
	"weir/control/config"
	"weir/control/list/listfile"
	"weir/control/ruleset"
)

const entriesLong = `

An entry is an address, a prefix, a range or a flow, as in a list. A flow needs
quotes, because of the shell: 'tcp *:* > 198.51.100.7:443'. With "-", or without
entries if standard input is not a terminal, entries are read from there, one
per line. Changes are all-or-nothing.`

const queueLong = `

While no daemon answers within 30 seconds, or until it filters, the change waits
in its state_dir and is made when it starts or answers again: "queued". A TTL
counts from the command. What the daemon refuses then is in its log and in weir
audit.`

func newBlock() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "block [--ttl TIME] [--reason TEXT] ENTRY... | -",
		Short: "Block addresses, prefixes or flows, permanently or for a time",
		Long: `Adds entries to a block list of the running daemon. When the command returns,
they are blocked, and stay so after a restart if the daemon has a state_dir. An
entry that exists already takes the new TTL and reason.` + entriesLong + queueLong,
		Example: `  weir block 192.0.2.1
  weir block --ttl 1h --reason 'scans ssh' 198.51.100.0/24 2001:db8::/32
  weir block 'udp *:* > 203.0.113.7:53'
  zcat found.txt.gz | weir block --list scanners -`,
	}, api.Change{Action: api.Block})
}

func newAllow() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "allow [--ttl TIME] [--reason TEXT] ENTRY... | -",
		Short: "Let addresses, prefixes or flows pass, whatever blocks them",
		Long: `Adds entries to an allow list of the running daemon. When the command returns,
they pass, and do so after a restart if the daemon has a state_dir. An entry
that exists already takes the new TTL and reason.` + entriesLong + queueLong,
		Example: `  weir allow 192.0.2.1
  weir allow --ttl 8h --reason 'audit of today' 198.51.100.0/24`,
	}, api.Change{Action: api.Allow})
}

func newUnblock() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "unblock ENTRY... | -",
		Short: "Remove entries that weir block added",
		Long: `Removes entries that weir block added from a block list of the running daemon.
Entries of a feed stay blocked; weir allow lets them pass.` + entriesLong + queueLong,
		Example: `  weir unblock 192.0.2.1
  weir unblock --list scanners - < found.txt`,
	}, api.Change{Action: api.Block, Remove: true})
}

func newUnallow() *cobra.Command {
	return newChange(&cobra.Command{
		Use:   "unallow ENTRY... | -",
		Short: "Remove entries that weir allow added",
		Long: `Removes entries that weir allow added from an allow list of the running daemon.
Entries of a feed stay allowed.` + entriesLong + queueLong,
		Example: `  weir unallow 192.0.2.1`,
	}, api.Change{Action: api.Allow, Remove: true})
}

// newChange completes a command that asks for a change.
func newChange(c *cobra.Command, change api.Change) *cobra.Command {
	var socket string
	f := c.Flags()
	f.StringVar(&change.List, "list", "", "`name` of the list (default "+config.DefaultLists.Of(change.List, change.Action)+")")
	ttl := entryFlags(f, &change, "`text` that weir explain shows with the entry")
	if change.Remove == (change.Action == api.Allow) {
		forceFlag(f, &change.Force)
	}
	socketFlag(f, &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		change.TTL, change.SSH = ttl.Seconds(), ruleset.SSHConnection()
		entries, err := entriesOf(c, args)
		if err != nil {
			return err
		}
		changed := &api.Changed{List: config.DefaultLists.Of(change.List, change.Action)}
		if change.Entries = entries.text; len(change.Entries) > 0 {
			if changed, err = submit(c, socket, change); err != nil {
				return entries.locate(err)
			}
		}
		switch {
		case *asJSON:
			return terminal.PrintJSON(c.OutOrStdout(), changed)
		case len(change.Entries) > 0: // else there was nothing to do
			printChanged(c.OutOrStdout(), "weir", change, changed)
			if changed.Monitor {
				fmt.Fprintln(c.ErrOrStderr(), "weir: "+monitorNote)
			}
		}
		return nil
	}
	return c
}

// entryFlags sets up --ttl, which it returns, and --reason, unless entries are removed.
func entryFlags(f *pflag.FlagSet, change *api.Change, reason string) *time.Duration {
	ttl := new(time.Duration)
	if !change.Remove {
		durationFlag(f, ttl, "ttl", 0, "`time` after which the entries expire, as in 90s, 12h or 1d; 0: never")
		f.StringVar(&change.Reason, "reason", "", reason)
	}
	return ttl
}

const monitorNote = "monitor mode is on: nothing is dropped"

// forceFlag is for changes that may block what did not match before.
func forceFlag(f *pflag.FlagSet, force *bool) {
	f.BoolVar(force, "force", false, "do it even if it cuts off this host, or you")
}

// given are entries that were given to a command.
type given struct {
	text  []string
	lines []int // their line numbers in standard input; nil: they are arguments
}

const stdinName = "standard input"

// locate says in which line the entry is that an error is about.
func (g given) locate(err error) error {
	var bad *api.BadRequest
	if errors.As(err, &bad) && bad.Entry != nil && *bad.Entry >= 0 && *bad.Entry < len(g.lines) {
		return fmt.Errorf("%s:%d: %w; nothing was changed", stdinName, g.lines[*bad.Entry], err)
	}
	return err
}

// entriesOf returns the entries in the arguments, or in standard input.
func entriesOf(c *cobra.Command, args []string) (given, error) {
	switch {
	case len(args) == 1 && args[0] == "-":
		return readEntries(c.InOrStdin(), c.ErrOrStderr())
	case len(args) == 0 && !isTerminal(c.InOrStdin()):
		entries, err := readEntries(c.InOrStdin(), c.ErrOrStderr())
		if err == nil && len(entries.text) == 0 {
			err = usageError{errors.New("entries are missing: name them, or write them to standard input")}
		}
		return entries, err
	case len(args) == 0:
		return given{}, usageError{errors.New(`entries are missing: name them, or "-" for standard input`)}
	}
	for _, text := range args {
		if _, err := listfile.ParseEntry(text); err != nil {
			if !strings.HasPrefix(err.Error(), strconv.Quote(text)) {
				err = fmt.Errorf("%q: %w", text, err)
			}
			return given{}, usageError{fmt.Errorf("%w%s", err, entryHint(text))}
		}
	}
	return given{text: args}, nil
}

// domainName matches names of the DNS, whose last label is no number.
var domainName = regexp.MustCompile(`^([0-9A-Za-z_-]+\.)+[A-Za-z][0-9A-Za-z-]*\.?$`)

// entryHint says how to write the entry that an argument was probably meant to be.
func entryHint(text string) string {
	_, noFlow := listfile.ParseEntry(text + " *:* > 192.0.2.1:*")
	switch {
	case noFlow == nil: // the text is a protocol
		return `: a flow is one argument, so put it in quotes, as in 'tcp *:* > 198.51.100.7:443'`
	case domainName.MatchString(text):
		return ": packets have no names, so name the addresses"
	}
	return ""
}

// readEntries reads entries as a list has them, which may be compressed, and
// reports the lines that are wrong. It reads no more than a change may have.
func readEntries(in io.Reader, report io.Writer) (entries given, err error) {
	text, err := compressed.NewReader(in)
	if err != nil {
		return given{}, fmt.Errorf("%s: %w", stdinName, err)
	}
	defer text.Close()
	bad, number, size := 0, 0, 0
	lines := scanLines(text)
	for lines.Scan() {
		number++
		entry := lines.Text()
		if number == 1 {
			entry = strings.TrimPrefix(entry, "\ufeff")
		}
		if comment := strings.IndexAny(entry, "#;"); comment >= 0 {
			entry = entry[:comment]
		}
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if _, err := listfile.ParseEntry(entry); err != nil {
			if bad++; bad <= listfile.MaxErrors {
				fmt.Fprintf(report, "%s:%d: %q: %v\n", stdinName, number, entry, err)
			}
			continue
		}
		if size += len(`"",`) + len(entry); size > client.MaxChange {
			return given{}, client.ErrTooLarge
		}
		entries.text, entries.lines = append(entries.text, entry), append(entries.lines, number)
	}
	switch {
	case lines.Err() != nil:
		return given{}, fmt.Errorf("%w; nothing was changed", lineError(lines.Err(), number))
	case bad > 0:
		return given{}, fmt.Errorf("%s: bad lines: %d of %d; nothing was changed", stdinName, bad, number)
	}
	return entries, nil
}

// printChanged prints what a change has done. program is weir, or weir fleet.
func printChanged(out io.Writer, program string, asked api.Change, c *api.Changed) {
	verb, where, n, unchanged := "blocked", "in", c.Added, "there already"
	switch {
	case asked.Remove:
		verb, where, n, unchanged = "removed", "from", c.Removed, "not there"
	case asked.Action == api.Allow:
		verb = "allowed"
	}
	count := func(n int) string { return humanize.Comma(int64(n)) }
	if c.Queued {
		fmt.Fprintf(out, "queued for list %s: %s; not %s yet: the daemon makes the change when it starts or answers again\n", c.List, count(len(asked.Entries)), verb)
		return
	}
	fmt.Fprintf(out, "%s %s list %s: %s", verb, where, c.List, count(n))
	if c.Unchanged > 0 {
		fmt.Fprintf(out, "; %s: %s", unchanged, count(c.Unchanged))
	}
	fmt.Fprintln(out)
	if asked.Remove && c.Unchanged > 0 {
		if asked.Action == api.Allow {
			fmt.Fprintf(out, "If they pass still, %s explain shows why.\n", program)
		} else {
			fmt.Fprintf(out, "If they are blocked still, %s explain shows why, and %[1]s allow lets them pass.\n", program)
		}
	}
}
