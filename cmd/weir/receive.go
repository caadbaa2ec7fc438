package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
	"weir/control/api/client"
	"weir/control/receive"
)

func newReceive() *cobra.Command {
	var r receive.Receiver
	var socket, listen, router, passwords, as string
	var asJSON bool
	c := &cobra.Command{
		Use:   "receive --as AS --neighbor IP=AS,... --list LIST --own PREFIX,...",
		Short: "Drop what BGP neighbors announce as blackholes or FlowSpec",
		Long: `Waits for BGP neighbors to connect, announces nothing to them, and has the
daemon drop what they announce: packets to blackholes (RFC 7999), and packets of
FlowSpec rules (RFC 8955, RFC 8956). Rules become entries of a list or, where
these do not say it, patterns of weir limit; with a rate, limits.

weir refuses routes that it cannot follow exactly, that are outside --own, wider
or more than the options permit, or that weir block and weir limit would refuse
without --force. The log and --state say why.

A route that is withdrawn is gone within a second. When a session ends, its
routes stay for --hold. When this command ends or is killed, they stay as long
at most: entries and patterns end by themselves. --list names a list in
weir.yaml for nothing else, as in lists: {bgp: {action: block}}.`,
		Example: `  weir receive --as 64500 --router-id 192.0.2.2 --neighbor 192.0.2.1=64500 --list bgp --own 203.0.113.0/24
  weir receive --as 64500 --listen 192.0.2.2:179 --neighbor 198.51.100.9=64510 --passwords /etc/weir/bgp --list bgp --own 203.0.113.0/24,2001:db8::/32 --dry-run
  weir receive --as 64500 --router-id 192.0.2.2 --neighbor 198.51.100.8=65332 --community 65332:888 --blackholes src --own 203.0.113.0/24 --list bogons --min-ipv4 8 --max-covered 1000000000`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&as, "as", "", "`number` of your own autonomous system")
	f.StringVar(&router, "router-id", "", "`address` that identifies this host in BGP (default that of --listen)")
	f.StringVar(&listen, "listen", ":179", "`address` and port to wait at")
	listFlag(f, "neighbor", "`neighbors` with their AS, as in 192.0.2.1=64500, joined by commas", func(text string) error {
		address, number, _ := strings.Cut(text, "=")
		a, err := netip.ParseAddr(address)
		n, bad := strconv.ParseUint(number, 10, 32)
		if err != nil || bad != nil || a.Zone() != "" || n == 0 {
			return fmt.Errorf("%.100q: want an address and an AS, as in 192.0.2.1=64500", text)
		}
		r.Neighbors = append(r.Neighbors, receive.Neighbor{Address: a.Unmap(), AS: uint32(n)})
		return nil
	})
	f.StringVar(&passwords, "passwords", "", "`file` of TCP MD5 passwords: lines of a neighbor's address and its password")
	f.StringVar(&r.List, "list", "", "`name` of the list, which has nothing else")
	listFlag(f, "own", "`prefixes`, joined by commas, in which neighbors may have packets dropped", prefixes(&r.Own))
	communitiesFlag(f, &r.Communities)
	blackholes := "dst"
	f.StringVar(&blackholes, "blackholes", blackholes, "`side` of packets that a blackhole is: dst, or src as of bogons")
	choices(c, "blackholes", "dst", "src")
	durationFlag(f, &r.Hold, "hold", 10*time.Minute, "`time` for which routes stay when their session has ended")
	f.IntVar(&r.MaxRoutes, "max-routes", 1000, "the largest `number` of routes of a neighbor")
	f.IntVar(&r.MaxPatterns, "max-patterns", 8, "the largest `number` of patterns, of the daemon's 16")
	f.IntVar(&r.MaxCovered, "max-covered", 65536, "the largest `number` of addresses, or IPv6 networks of 64 bits, that all routes cover")
	f.IntVar(&r.Min4, "min-ipv4", 24, "the shortest `length` of IPv4 prefixes")
	f.IntVar(&r.Min6, "min-ipv6", 56, "the shortest `length` of IPv6 prefixes")
	f.StringVar(&r.State, "state", "", "`file` that says which neighbors and routes there are, and what became of them")
	f.BoolVar(&r.Dry, "dry-run", false, "drop nothing: log what would be done")
	socketFlag(f, &socket)
	f.BoolVar(&asJSON, "json", false, "print changes as JSON, a line each")
	c.RunE = func(c *cobra.Command, _ []string) error {
		n, err := strconv.ParseUint(as, 10, 32)
		if err != nil && as != "" {
			return usageError{fmt.Errorf("--as %.100q: want a number, as in 64500", as)}
		}
		r.AS = uint32(n)
		if r.Listen, err = netip.ParseAddrPort(listen); strings.HasPrefix(listen, ":") {
			r.Listen, err = netip.ParseAddrPort("[::]" + listen)
		}
		if err != nil {
			return usageError{fmt.Errorf("--listen %.100q: want an address and a port, as in 192.0.2.2:179", listen)}
		}
		if r.RouterID = r.Listen.Addr(); router != "" {
			if r.RouterID, err = netip.ParseAddr(router); err != nil {
				return usageError{fmt.Errorf("--router-id %.100q: want an IPv4 address", router)}
			}
		}
		if blackholes != "dst" && blackholes != "src" {
			return usageError{fmt.Errorf("--blackholes %.100q: want dst or src", blackholes)}
		}
		if r.Sources = blackholes == "src"; len(r.Communities) == 0 {
			r.Communities = []string{blackhole}
		}
		if err := r.Validate(); err != nil {
			return usageError{err}
		}
		if err := readPasswords(passwords, r.Neighbors); err != nil {
			return err
		}
		if r.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)); asJSON {
			r.Out = terminal.Raw(c.OutOrStdout())
		}
		defer interrupt.InOrder()() // neighbors hear of it
		return r.Run(c.Context(), client.Dial(socket))
	}
	return c
}

// readPasswords reads the passwords of neighbors.
func readPasswords(file string, all []receive.Neighbor) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--passwords: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		bad := func(err error) error { return fmt.Errorf("--passwords: %s:%d: %w", file, number, err) }
		address, password, _ := strings.Cut(line, " ")
		a, err := netip.ParseAddr(address)
		const most = 80 // TCP_MD5SIG_MAXKEYLEN
		if password = strings.TrimSpace(password); err != nil || password == "" || len(password) > most {
			return bad(fmt.Errorf("want an address and a password of at most %d bytes", most))
		}
		found := false
		for i := range all {
			if all[i].Address == a.Unmap() {
				all[i].Password, found = password, true
			}
		}
		if !found {
			return bad(errors.New("no --neighbor has this address"))
		}
	}
	return nil
}
