package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/fleet/authority"
	"weir/control/quantity"
)

func newToken() *cobra.Command {
	c := &cobra.Command{
		Use:   "token COMMAND",
		Short: "Let hosts join the fleet by themselves",
		Long: `A token lets hosts join the fleet with weir join, each of which makes its own
keys. join in the hub's configuration says where. The hub keeps no secret of a
token, but the number of hosts, the time, and their addresses.`,
		Example: `  weir-hub token create --label paris
  weir-hub token list`,
		Args: noCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newTokenCreate(), newTokenList(), newTokenRevoke())
	return c
}

// tokenMade is a new token in JSON.
type tokenMade struct {
	authority.Token
	URL     string `json:"url"`
	Text    string `json:"text"` // what weir join takes
	Command string `json:"command"`
}

func newTokenCreate() *cobra.Command {
	var t authority.Token
	var ranges []string
	ttl := quantity.Duration(time.Hour)
	c := &cobra.Command{
		Use:   "create [--ttl TIME] [--count N] [--label NAME,...] [--range CIDR,...]",
		Short: "Make a token, and print the command with which a host joins",
		Long: `Makes a token, and prints the command that joins a host to the fleet. Who has the
token can have one more host join, until it is used up or expires: treat it as a
password. It also names the keys of the hub, so that the host trusts no other.
It is printed once, and not kept here. The hub need not run meanwhile.

Labels group nodes, for rollouts. A node of a site connects to the site's
server, and not to the hub.`,
		Example: `  weir-hub token create --label paris,canary
  weir-hub token create --count 20 --ttl 1d --range 192.0.2.0/24`,
		Args: noArgs,
	}
	f := c.Flags()
	f.TextVar(&ttl, "ttl", ttl, "`time` within which hosts join")
	f.IntVar(&t.Count, "count", 1, "how many hosts join, at most")
	f.StringSliceVar(&t.Labels, "label", nil, "`names` of groups that the nodes are in, joined by commas")
	f.StringSliceVar(&ranges, "range", nil, "`networks` from which hosts may join, joined by commas (default any)")
	f.StringVar(&t.Site, "site", "", "`name` of the site whose server the nodes connect to")
	asJSON := f.Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if t.Count < 1 || t.Count > 100_000 {
			return usageError{fmt.Errorf("--count %d: want 1 to 100000", t.Count)}
		}
		if err := checkTTL(ttl); err != nil {
			return err
		}
		for _, text := range ranges {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return usageError{fmt.Errorf("--range %q: want a network, as in 192.0.2.0/24", text)}
			}
			t.Ranges = append(t.Ranges, p.Masked())
		}
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		if h.Join.Listen == "" {
			return fmt.Errorf("%s: hosts have nowhere to join: add join: {listen: 0.0.0.0:4223}, and restart the hub", *file)
		}
		t.Expires = time.Now().Add(time.Duration(ttl)).UTC()
		made := tokenMade{URL: h.JoinURL()}
		if made.Token, made.Text, err = a.NewToken(t); err != nil {
			return err
		}
		made.Command = "weir join " + made.URL + " " + made.Text
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), made)
		}
		fmt.Fprintf(c.ErrOrStderr(), "token %s: hosts: %d, until %s. On each, as root:\n", made.ID, made.Count, made.Expires.Format(time.RFC3339))
		fmt.Fprintln(c.OutOrStdout(), made.Command)
		return nil
	}
	return c
}

func newTokenList() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "Show tokens, and which hosts have joined",
		Long: `Shows the tokens that were made, from the directory of keys: the hub need not
run. Those that ended more than 30 days ago go when another one is made.`,
		Example: "  weir-hub token list\n  weir-hub token list --json | jq -r '.tokens[].joined[].node'",
		Args:    noArgs,
	}
	shows(c, "tokens", (*authority.Authority).Tokens, func(t authority.Token) string {
		return fmt.Sprintf("%s  %-26s joined %d of %d  %s", t.ID, until(t.Ended(time.Now()), t.Expires), len(t.Joined), t.Count, strings.Join(t.Labels, ","))
	})
	return c
}

// shows completes a command that prints records of the directory of keys: a line for each, or JSON.
func shows[T any](c *cobra.Command, key string, read func(*authority.Authority) ([]T, error), line func(T) string) {
	asJSON := c.Flags().Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		_, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		all, err := read(a)
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string][]T{key: append([]T{}, all...)})
		}
		for _, one := range all {
			fmt.Fprintln(c.OutOrStdout(), line(one))
		}
		return nil
	}
}

// until says why a token has ended, or when it does.
func until(ended string, expires time.Time) string {
	if ended != "" {
		return ended
	}
	return "until " + expires.Format(time.RFC3339)
}

// checkTTL returns why a token cannot have a lifetime.
func checkTTL(ttl quantity.Duration) error {
	if ttl <= 0 || time.Duration(ttl) > 365*24*time.Hour {
		return usageError{fmt.Errorf("--ttl %v: want more than 0s, and 365d at most", ttl)}
	}
	return nil
}

func newTokenRevoke() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "Let no further host join with a token",
		Long: `Lets no further host join with a token, which weir-hub token list shows. Nodes
that have joined stay: weir-hub revoke cuts them off.`,
		Example: "  weir-hub token revoke 1f0c22aa",
		Args:    exactly("TOKEN"),
	}
	asJSON := c.Flags().Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		_, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		id, _, _ := strings.Cut(args[0], ".") // also where it is given whole
		if err := a.RevokeToken(id); err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string]string{"revoked": id})
		}
		fmt.Fprintf(c.OutOrStdout(), "revoked: token %s\n", id)
		return nil
	}
	return c
}
