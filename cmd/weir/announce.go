package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
	"weir/control/announce"
	"weir/control/api/client"
)

// matchesCommunity are communities as in 65535:666, and large ones.
var matchesCommunity = regexp.MustCompile(`^[0-9]{1,10}(:[0-9]{1,10}){1,2}$`).MatchString

func newAnnounce() *cobra.Command {
	a := announce.Announcer{Spec: announce.Spec{Kind: announce.Blackhole, Next4: "self", Next6: "self"}}
	var socket string
	var interval time.Duration
	c := &cobra.Command{
		Use:   "announce --own PREFIX,...",
		Short: "Announce heavy hitters by BGP, through ExaBGP",
		Long: `Prints lines for ExaBGP, which runs this command as a process: each heavy hitter
of a tracker becomes a blackhole route (RFC 7999) or a FlowSpec rule (RFC 8955),
so that routers before this host drop its packets. It is withdrawn when the flow
has not been heavy for --hold, and all are when the command ends.

Destinations must be in a prefix of --own: a blackhole drops all that is sent to
one, wanted packets included, to save the rest. Sources (--tracker src) are
FlowSpec rules, or blackholes for routers that check sources, and never in a
prefix of --own, private or local.

Networks are never announced that would cut off this host or its operator: own
addresses, gateways, resolvers, logins; nor those that an allow list or failsafe
lets pass; nor any that is shorter than a host route, unless --min-ipv4 and
--min-ipv6 permit it.
Nothing new is announced in monitor mode, or while the daemon does not answer.

What is announced, refused and withdrawn is logged on standard error. With
--dry-run the lines are comments, which ExaBGP ignores.`,
		Example: `  weir announce --own 203.0.113.0/24 --dry-run
  weir announce --own 203.0.113.0/24,2001:db8::/32 --hold 30m --community 65535:666,64500:666
  weir announce --own 203.0.113.0/24 --tracker src --kind flowspec --max-routes 500`,
		Args: noArgs,
	}
	f := c.Flags()
	listFlag(f, "own", "`prefixes` of your own network, joined by commas", prefixes(&a.Own))
	listFlag(f, "protect", "`prefixes` that no announcement may touch, such as those of BGP neighbors", prefixes(&a.Protect))
	listFlag(f, "tracker", "announce the heavy hitters of these `trackers`, joined by commas: dst, src, src/24, flow (default dst)", func(name string) error {
		a.Trackers = append(a.Trackers, name)
		return nil
	})
	f.TextVar(&a.Kind, "kind", a.Kind, "`kind` of announcements: blackhole or flowspec")
	choices(c, "kind", string(announce.Blackhole), string(announce.FlowSpec))
	durationFlag(f, &a.Hold, "hold", 10*time.Minute, "`time` after which a flow that is no longer heavy is withdrawn")
	f.IntVar(&a.Max, "max-routes", 100, "the largest `number` of announcements at a time")
	f.IntVar(&a.Min4, "min-ipv4", 32, "the shortest `length` of IPv4 prefixes")
	f.IntVar(&a.Min6, "min-ipv6", 128, "the shortest `length` of IPv6 prefixes")
	communitiesFlag(f, &a.Communities)
	listFlag(f, "next-hop", "`addresses` of the next hop, one for IPv4 and one for IPv6 (default self)", func(text string) error {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return fmt.Errorf("%.100q: want an address, as in 192.0.2.1", text)
		}
		if address.Is4() {
			a.Next4 = address.String()
		} else {
			a.Next6 = address.String()
		}
		return nil
	})
	f.StringVar(&a.State, "state", "", "`file` of the current announcements, so that a process that is killed leaves none for good")
	f.BoolVar(&a.Dry, "dry-run", false, "announce nothing: print the lines as comments")
	durationFlag(f, &interval, "interval", time.Second, "`time` between two queries of the daemon")
	socketFlag(f, &socket)
	f.BoolVar(&a.JSON, "json", false, "print changes as JSON, a line each, instead of lines for ExaBGP")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if len(a.Trackers) == 0 {
			a.Trackers = []string{"dst"}
		}
		if len(a.Communities) == 0 {
			a.Communities = []string{blackhole}
		}
		const shortest = 100 * time.Millisecond
		if interval < shortest {
			return usageError{fmt.Errorf("--interval %v: it must be %v or more", interval, shortest)}
		}
		if err := a.Validate(); err != nil {
			return usageError{err}
		}
		a.Out, a.Log = terminal.Raw(c.OutOrStdout()), slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
		defer interrupt.InOrder()() // what is announced is withdrawn
		go logRefused(c.InOrStdin(), a.Log)
		return a.Run(c.Context(), client.Dial(socket), interval)
	}
	return c
}

// prefixes returns a function that reads a prefix and appends it.
func prefixes(to *[]netip.Prefix) func(string) error {
	return func(text string) error {
		p, err := netip.ParsePrefix(text)
		if address, bad := netip.ParseAddr(text); bad == nil {
			p, err = address.Prefix(address.BitLen())
		}
		if err != nil || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			return fmt.Errorf("%.100q: want a prefix without host bits, as in 203.0.113.0/24", text)
		}
		*to = append(*to, p)
		return nil
	}
}

// blackhole is the community of RFC 7999.
const blackhole = "65535:666"

// communitiesFlag adds --community.
func communitiesFlag(f *pflag.FlagSet, to *[]string) {
	listFlag(f, "community", "`communities` of blackholes, joined by commas (default "+blackhole+")", func(text string) error {
		if !matchesCommunity(text) {
			return fmt.Errorf("%.100q: want numbers, as in 65535:666", text)
		}
		*to = append(*to, text)
		return nil
	})
}

// logRefused logs that ExaBGP has refused a line. It answers each line, and would wait if
// the answers were not read.
func logRefused(answers io.Reader, log *slog.Logger) {
	lines := bufio.NewReaderSize(answers, 4<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		if string(line) == "error\n" {
			log.Error("ExaBGP has refused a line: its log says why")
		}
	}
}
