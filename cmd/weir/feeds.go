package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/feed"
	"weir/control/quantity"
)

// knownFeed is a feed in the JSON of weir feeds.
type knownFeed struct {
	Name     string            `json:"name"`
	About    string            `json:"about"`
	Use      feed.Use          `json:"use"`
	Interval quantity.Duration `json:"interval"` // the shortest
	License  string            `json:"license"`
	Private  bool              `json:"private,omitempty"`
	Page     string            `json:"page"`
	URLs     []feed.URL        `json:"urls"`
	Format   string            `json:"format"`
}

func newFeeds() *cobra.Command {
	c := &cobra.Command{
		Use:   "feeds [NAME]",
		Short: "Print the feeds that a list can name",
		Long: `Prints the known feeds, or all about one of them, with a list to copy into
weir.yaml. "feed: NAME" in a list stands for the feed's URLs and format, and for
the shortest interval that its maintainers accept, if it is more than an hour.
Nothing is fetched here.

The use says which packets a feed is made for: "sources" those of hosts that
attack; "both" also those to such hosts, by a second list with direction: out;
"destinations" those to servers that own hosts should not use; "provider" those
of a provider's hosts, for which a list must say whether it blocks or allows.

The licence is the maintainers' and may exclude commercial use: read their page.`,
		Example: `  weir feeds
  weir feeds firehol_level1
  weir feeds --json | jq -r '.[] | select(.use == "provider").name'`,
		Args:              maybeArg("NAME"),
		ValidArgsFunction: completeFeeds,
	}
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		known := feed.Catalog()
		if len(args) == 1 {
			var name feed.Name
			if err := name.UnmarshalText([]byte(args[0])); err != nil {
				return usageError{err}
			}
			k, _ := name.Known()
			known = []feed.Known{k}
		}
		all := make([]knownFeed, len(known))
		for i, k := range known {
			all[i] = knownFeed{
				Name: string(k.Name), About: k.About, Use: k.Use, Interval: quantity.Duration(k.Least), License: k.License,
				Private: k.Private, Page: k.Page, URLs: k.URLs, Format: k.Format.String(),
			}
		}
		out := c.OutOrStdout()
		switch {
		case *asJSON && len(args) == 1:
			return terminal.PrintJSON(out, all[0])
		case *asJSON:
			return terminal.PrintJSON(out, all)
		case len(args) == 1:
			return printFeed(out, all[0])
		}
		return printFeeds(out, all)
	}
	return c
}

func completeFeeds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		for _, k := range feed.Catalog() {
			names = append(names, cobra.CompletionWithDesc(string(k.Name), k.About))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func printFeeds(out io.Writer, all []knownFeed) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "NAME\tUSE\tAT MOST EVERY\tLICENCE\tCONTENTS\n")
	for _, k := range all {
		fmt.Fprintf(t, "%s\t%s\t%v\t%s\t%s\n", k.Name, k.Use, k.Interval, k.License, k.About)
	}
	return t.Flush()
}

func printFeed(out io.Writer, k knownFeed) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	row(k.Name, k.About)
	row("use", string(k.Use))
	row("at most every", k.Interval.String())
	row("licence", k.License)
	if k.Private {
		row("private", "lists private networks, too, which are left out unless exclude_private is false")
	}
	row("page", k.Page)
	for _, u := range k.URLs {
		row("url", string(u))
	}
	row("format", k.Format)
	if err := t.Flush(); err != nil {
		return err
	}
	lines := []string{"lists:", "  " + k.Name + ":", "    feed: " + k.Name}
	if k.Use == feed.Provider {
		lines = append(lines, "    action: allow            # or block")
	}
	if k.Use == feed.Both {
		lines = append(lines, "  "+k.Name+"_out:           # what own hosts send, on interfaces with egress: true", "    feed: "+k.Name, "    direction: out")
	}
	_, err := fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
	return err
}
